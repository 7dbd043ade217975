"""Sums over processes: the little that several processes must agree on.

Loss normalisers and importances are added up as sums and counts, so that any number of processes gives the
numbers of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor


def processes() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Which of them this one is."""
    return dist.get_rank() if processes() > 1 else 0


def total(value: Tensor) -> Tensor:
    """The sum of a tensor over all processes (itself when there is one)."""
    if processes() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value


def share(indices: Sequence[int]) -> Sequence[int]:
    """This process's part of a batch: every sample goes to exactly one process."""
    return indices[rank() :: processes()]

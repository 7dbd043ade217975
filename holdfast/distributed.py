"""Sums over processes.

Loss normalisers and importances are added up as sums and counts, so that any number of processes gives the
same numbers as one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor


def processes() -> int:
    """Return the number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Return the rank of this process."""
    return dist.get_rank() if processes() > 1 else 0


def total(value: Tensor) -> Tensor:
    """Return the sum of a tensor over all processes; the tensor itself if there is only one."""
    if processes() == 1:
        return value
    value = value.detach().clone()
    dist.all_reduce(value)
    return value


def share(indices: Sequence[int]) -> Sequence[int]:
    """Return this process's part of a batch: every sample goes to exactly one process."""
    return indices[rank() :: processes()]

"""Several processes: sums over those that train together, and the Ray cluster.

Loss normalisers and importances are added up as sums and counts, so that any number of processes gives the
same numbers as one.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor

from holdfast.errors import HoldfastError


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


def connect_ray(ray: Any, address: str | None, **options: Any) -> None:
    """Connect to a Ray cluster, or start a local one, which ends with this process."""
    if ray.is_initialized():
        return
    _knock(address or "")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a local cluster reports to nobody
    try:
        ray.init(
            address=address,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            **options,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        first = str(error).strip().partition("\n")[0]
        if address is None:
            raise HoldfastError(f"cannot start a local Ray cluster ({first})") from None
        raise HoldfastError(f"--address {address}: no Ray cluster answers there ({first})") from None


def _knock(address: str) -> None:
    """Test the address first, if it has a port: Ray itself would retry for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon:
        return
    try:
        socket.create_connection((host, int(port)), timeout=5).close()
    except (OSError, ValueError) as error:
        raise HoldfastError(f"--address {address}: no Ray cluster answers there ({error})") from None

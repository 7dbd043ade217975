"""Support for weights that FSDP2 has split into shards (DTensor)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor


def sharded(weight: Tensor) -> bool:
    """Return whether a tensor is sharded, that is, a DTensor."""
    return isinstance(weight, DTensor)


def cut_like(value: Tensor, weight: Tensor) -> Tensor:
    """Shard a tensor like a weight, if needed; every process must hold the full tensor."""
    if not isinstance(weight, DTensor) or isinstance(value, DTensor):
        return value
    where = value.to(weight.device)
    return distribute_tensor(where, weight.device_mesh, weight.placements, src_data_rank=None)


def whole(value: Tensor) -> Tensor:
    """Return the full tensor. For a sharded one, every process must call this: a collective operation."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def same_everywhere(mark: str) -> bool:
    """Return whether the string is equal in all processes. A collective operation."""
    every: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mark)
    return set(every) == {mark}


def local(value: Any) -> Any:
    """Return this process's shard of a tensor, sharing its memory; return other values unchanged."""
    return value.to_local() if isinstance(value, DTensor) else value


class Total:
    """A sum over weights that is equal in all processes."""

    def __init__(self) -> None:
        self.own = 0.0
        """Sum over weights that are not sharded."""
        self.shards: dict[tuple[DeviceMesh, tuple[Placement, ...]], float] = {}

    def add(self, value: float, weight: Tensor) -> None:
        """Add this process's value for a weight or for its shard."""
        if isinstance(weight, DTensor):
            where = weight.device_mesh, weight.placements
            self.shards[where] = self.shards.get(where, 0.0) + value
        else:
            self.own += value

    def everywhere(self) -> float:
        """Return the sum over all weights, adding up the shards of all processes. A collective operation."""
        total = self.own
        for (mesh, placements), value in self.shards.items():
            found = torch.tensor(value, dtype=torch.float64, device=mesh.device_type)
            for number, placement in enumerate(placements):
                if placement.is_shard():
                    dist.all_reduce(found, group=mesh.get_group(number))
            total += float(found)
        return total


def plain_name(name: str) -> str:
    """Return a weight's name without the parts added by DDP, torch.compile and activation checkpointing."""
    return name.replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "").removeprefix("module.")

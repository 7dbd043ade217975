"""Weights that FSDP2 has cut into shards: tensors that belong to them are cut the same way."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, distribute_tensor


def sharded(weight: Tensor) -> bool:
    """Whether a weight is spread over several processes."""
    return isinstance(weight, DTensor)


def cut_like(value: Tensor, weight: Tensor) -> Tensor:
    """This process's part of a tensor that belongs to a weight; every process has the whole of it."""
    if not isinstance(weight, DTensor) or isinstance(value, DTensor):
        return value
    where = value.to(weight.device)
    return distribute_tensor(where, weight.device_mesh, weight.placements, src_data_rank=None)


def whole(value: Tensor) -> Tensor:
    """All of a tensor, wherever its shards are: every process must ask for it at once."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def same_everywhere(mark: str) -> bool:
    """Whether all processes say the same: each must ask."""
    every: list[str | None] = [None] * dist.get_world_size()
    dist.all_gather_object(every, mark)
    return set(every) == {mark}


def local(value: Any) -> Any:
    """This process's shard of a tensor, on the same memory; anything else as it is."""
    return value.to_local() if isinstance(value, DTensor) else value


class Total:
    """A sum over weights that every process must come to alike."""

    def __init__(self) -> None:
        self.own = 0.0
        """Of weights that every process has whole."""
        self.shards: dict[tuple[DeviceMesh, tuple[Placement, ...]], float] = {}

    def add(self, value: float, weight: Tensor) -> None:
        """Add what this process has found on a weight, or on its shard of it."""
        if isinstance(weight, DTensor):
            where = weight.device_mesh, weight.placements
            self.shards[where] = self.shards.get(where, 0.0) + value
        else:
            self.own += value

    def everywhere(self) -> float:
        """The sum over all processes: each must ask for it."""
        total = self.own
        for (mesh, placements), value in self.shards.items():
            found = torch.tensor(value, dtype=torch.float64, device=mesh.device_type)
            for number, placement in enumerate(placements):
                if placement.is_shard():
                    dist.all_reduce(found, group=mesh.get_group(number))
            total += float(found)
        return total


def plain_name(name: str) -> str:
    """A weight's name without what DDP, torch.compile and activation checkpointing put into it."""
    return name.removeprefix("module.").replace("_orig_mod.", "").replace("_checkpoint_wrapped_module.", "")

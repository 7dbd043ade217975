"""Weights that FSDP2 has cut into shards: tensors that belong to them are cut the same way."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from holdfast.errors import HoldfastError


def sharded(weight: Tensor) -> bool:
    """Whether a weight is spread over several processes."""
    return isinstance(weight, DTensor)


def cut_like(value: Tensor, weight: Tensor) -> Tensor:
    """This process's part of a tensor that belongs to a weight; every process has the whole of it."""
    if not isinstance(weight, DTensor) or isinstance(value, DTensor):
        return value
    if value.is_meta:
        raise HoldfastError(
            "this process has no weights to hold: set cpu_ram_efficient_loading to false for FSDP"
        )
    where = value.to(weight.device)
    return distribute_tensor(where, weight.device_mesh, weight.placements, src_data_rank=None)


def whole(value: Tensor) -> Tensor:
    """All of a tensor, wherever its shards are: every process must ask for it at once."""
    return value.full_tensor() if isinstance(value, DTensor) else value


def plain_name(name: str) -> str:
    """A weight's name without what DistributedDataParallel and torch.compile put into it."""
    return name.removeprefix("module.").replace("_orig_mod.", "")

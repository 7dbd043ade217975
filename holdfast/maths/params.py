"""Params: tensors by name, of the trainable weights only.

Every frozen copy (old model, look-ahead model, teacher) is a `Params`, put into the model by `using` or
`restore` or run by `predict`; a module is never copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from holdfast.maths.equations import Params


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the live trainable weights by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def snapshot(model: nn.Module) -> Params:
    """Return a copy of the current trainable weights."""
    return {name: weight.detach().clone() for name, weight in trainable(model).items()}


@torch.no_grad()
def restore(model: nn.Module, params: Params) -> None:
    """Copy a snapshot back into the model."""
    for name, weight in trainable(model).items():
        weight.copy_(params[name])


@contextmanager
def using(model: nn.Module, params: Params) -> Iterator[None]:
    """Run a block with these weights in the model, then restore its own."""
    own = snapshot(model)
    try:
        restore(model, params)
        yield
    finally:
        restore(model, own)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run a block without dropout. A model in eval mode, which threads may share, is left alone."""
    was_training = model.training
    if was_training:
        model.eval()
    try:
        yield
    finally:
        if was_training:
            model.train()


def predict(model: nn.Module, params: Params, *args: Any, **kwargs: Any) -> Any:
    """Return the model's output under other weights, such as a teacher's, without changing its own."""
    return torch.func.functional_call(model, params, args, kwargs)


def zeros(params: Params) -> Params:
    """Return `Params` of the same names and shapes, all 0."""
    return {name: torch.zeros_like(value) for name, value in params.items()}


def grow(params: Params, rows: Params, *, zero: bool) -> Params:
    """Append new head rows: their initial values for weights, zeros for importances and the like."""
    return {
        name: torch.cat([value, torch.zeros_like(rows[name]) if zero else rows[name].clone()])
        if name in rows
        else value
        for name, value in params.items()
    }


def without_row(params: Params, row: int) -> Params:
    """Return the params without a row of the head."""
    return {
        name: torch.cat([value[:row], value[row + 1 :]]) if "head.linear." in name else value
        for name, value in params.items()
    }


def precise(value: torch.Tensor) -> torch.Tensor:
    """Convert to at least single precision: half-precision weights cannot hold a small difference."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def layer_of(name: str) -> str:
    """Return the part of the model that holds a weight: a numbered layer, or the top-level part."""
    numbered = re.search(r"(?:^|\.)(\d+)\.", name)
    return f"layer {int(numbered[1]) + 1}" if numbered else name.partition(".")[0]


def kind_of(name: str) -> str:
    """Return the role of a weight in its layer, such as q_proj or input_layernorm."""
    return name.rpartition(".")[0].rpartition(".")[2] or name


def size(params: Params) -> int:
    """Return the total number of entries."""
    return sum(value.numel() for value in params.values())


__all__ = [
    "Params",
    "eval_mode",
    "grow",
    "kind_of",
    "layer_of",
    "precise",
    "predict",
    "restore",
    "size",
    "snapshot",
    "trainable",
    "using",
    "without_row",
    "zeros",
]


def misfit(expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]) -> str:
    """Return the name of the first tensor that is missing, unknown or of another shape or type, or ''."""
    for name in sorted({*expected, *found}):
        mine, its = expected.get(name), found.get(name)
        if mine is None or its is None or (mine.shape, mine.dtype) != (its.shape, its.dtype):
            return name
    return ""

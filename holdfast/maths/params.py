"""Params: names to tensors, over the trainable weights only.

Every frozen copy (old model, look-ahead model, teacher) is a `Params` run through `functional_call`; a
module is never deep-copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from holdfast.maths.equations import Params


def trainable(model: nn.Module) -> dict[str, nn.Parameter]:
    """The live trainable weights, by name."""
    return {name: weight for name, weight in model.named_parameters() if weight.requires_grad}


def snapshot(model: nn.Module) -> Params:
    """A copy of the trainable weights as they are now."""
    return {name: weight.detach().clone() for name, weight in trainable(model).items()}


@torch.no_grad()
def restore(model: nn.Module, params: Params) -> None:
    """Put a snapshot back into the model."""
    for name, weight in trainable(model).items():
        weight.copy_(params[name])


@contextmanager
def using(model: nn.Module, params: Params) -> Iterator[None]:
    """Run the block with these weights in the model, then put its own back."""
    own = snapshot(model)
    try:
        restore(model, params)
        yield
    finally:
        restore(model, own)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Run the block without dropout."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def predict(model: nn.Module, params: Params, *args: Any, **kwargs: Any) -> Any:
    """The model's answer under other weights, without touching its own: how teachers are run."""
    return torch.func.functional_call(model, params, args, kwargs)


def zeros(params: Params) -> Params:
    """Params of the same names and shapes, all 0."""
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
    """Take a head row out."""
    return {
        name: torch.cat([value[:row], value[row + 1 :]]) if "head.linear." in name else value
        for name, value in params.items()
    }


def precise(value: torch.Tensor) -> torch.Tensor:
    """In single precision at least: half-precision weights cannot hold a small difference."""
    return value.to(torch.promote_types(value.dtype, torch.float32))


def layer_of(name: str) -> str:
    """The part of the model a weight is in: a numbered layer, or what comes before and after them."""
    numbered = re.search(r"(?:^|\.)(\d+)\.", name)
    return f"layer {int(numbered[1]) + 1}" if numbered else name.partition(".")[0]


def kind_of(name: str) -> str:
    """What a weight is for, whichever layer it is in: q_proj, input_layernorm, embed_tokens."""
    return name.rpartition(".")[0].rpartition(".")[2] or name


def size(params: Params) -> int:
    """How many numbers there are."""
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

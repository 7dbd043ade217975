"""Notices by how much gradients are clipped: a step that is clipped by s is a step of s times the size."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

_original = torch.nn.utils.clip_grad_norm_


class Clipping:
    """While it watches, remembers the factor that the latest call of `clip_grad_norm_` has applied.

    Trainer, Accelerate and hand-written loops all come through this function of torch; none of them tells
    its callbacks what it did.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.own = {id(param) for param in params}
        self.factor = 1.0

    def taken(self) -> float:
        """The factor of the step at hand; the next one starts from 1 again."""
        factor, self.factor = self.factor, 1.0
        return factor

    def start(self) -> None:
        """Watch."""
        _watching.add(self)
        torch.nn.utils.clip_grad_norm_ = _watched

    def stop(self) -> None:
        """Watch no longer; the last one leaves torch as it was."""
        _watching.discard(self)
        if not _watching and torch.nn.utils.clip_grad_norm_ is _watched:
            torch.nn.utils.clip_grad_norm_ = _original


_watching: weakref.WeakSet[Clipping] = weakref.WeakSet()


def _watched(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Tensor:
    """Clip as torch does, and tell those whose weights it was."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    norm: Tensor = _original(listed, max_norm, *args, **kwargs)
    total = float(norm)
    factor = min(1.0, float(max_norm) / (total + 1e-6)) if math.isfinite(total) else 1.0  # as torch has it
    for one in _watching:
        if any(id(parameter) in one.own for parameter in listed):
            one.factor = factor
    return norm

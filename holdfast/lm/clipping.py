"""Notices by how much gradients are clipped: a step that is clipped by s is a step of s times the size."""

from __future__ import annotations

import math
import sys
import weakref
from collections.abc import Iterable
from typing import Any

import torch.nn.utils.clip_grad
from torch import Tensor

from holdfast.lm.shards import whole

_module: Any = sys.modules["torch.nn.utils.clip_grad"]
_original = _module._clip_grads_with_norm_
_public = torch.nn.utils.clip_grads_with_norm_  # the same under the name by which others call it


class Clipping:
    """While it watches, remembers the factor that each weight's gradient was clipped by since the last step.

    `clip_grad_norm_`, by whatever name it was imported, ends in one function of torch; Trainer, Accelerate
    and most loops come through it, and none of them tells its callbacks what it did. FSDP1 clips by itself.
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.own = {id(param) for param in params}
        self.factors: dict[int, float] = {}

    def taken(self) -> dict[int, float]:
        """The factors of the step at hand, by the ids of weights; the next one starts without any."""
        factors, self.factors = self.factors, {}
        return factors

    def start(self) -> None:
        """Watch."""
        _watching.add(self)
        _module._clip_grads_with_norm_ = _watched
        torch.nn.utils.clip_grads_with_norm_ = _watched

    def stop(self) -> None:
        """Watch no longer; the last one leaves torch as it was."""
        _watching.discard(self)
        if not _watching and _module._clip_grads_with_norm_ is _watched:
            _module._clip_grads_with_norm_ = _original
            torch.nn.utils.clip_grads_with_norm_ = _public


_watching: weakref.WeakSet[Clipping] = weakref.WeakSet()


def _watched(parameters: Any, max_norm: float, total_norm: Tensor, *args: Any, **kwargs: Any) -> None:
    """Clip as torch does, and tell those whose weights it was."""
    listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    _original(listed, max_norm, total_norm, *args, **kwargs)
    total = float(whole(total_norm))
    factor = min(1.0, float(max_norm) / (total + 1e-6)) if math.isfinite(total) else 1.0  # as torch has it
    for one in _watching:
        for weight in map(id, listed):
            if weight in one.own:
                one.factors[weight] = factor * one.factors.get(weight, 1.0)

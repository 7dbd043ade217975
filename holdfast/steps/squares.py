"""Squared gradients of a training run, from which the curvature of its loss is estimated."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from holdfast.maths.params import Params, precise


def add_up_squares(optimizer: Optimizer, params: dict[str, nn.Parameter]) -> Params:
    """Return sums of squared gradients that grow with every step of the optimiser."""
    sums = {name: torch.zeros_like(precise(weight.detach())) for name, weight in params.items()}
    names = {weight: name for name, weight in params.items()}

    @torch.no_grad()
    def add(own: Optimizer, args: Any, kwargs: Any) -> None:
        for group in own.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    sums[names[weight]] += precise(weight.grad).square()

    optimizer.register_step_pre_hook(add)
    return sums

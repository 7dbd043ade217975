"""The quadratic penalty as an exact proximal step after the optimiser's own.

Inside the loss a penalty's gradient goes through Adam's moments, which divide its strength out again, and at
large strengths plain gradient descent on it diverges (Lubana et al. 2022 analyse this and interpolate
explicitly). Here the optimiser sees the task loss only; afterwards each weight u goes to the minimiser of
½(θ - u)²/r + (λ/2) a (θ - θ*)², a point between u and its anchor for every r, λ and a: nothing can diverge.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.params import Params

STRONGEST = 1e30  # keeps c/(1+c) a number; there it is 1 in floating point anyway


def pulled(u: Tensor, anchor: Tensor, strength: Tensor) -> Tensor:
    """(u + c θ*)/(1 + c), c = r λ a, as an interpolation: a weight at its anchor stays there exactly."""
    precision = torch.promote_types(u.dtype, torch.float32)
    c = strength.to(precision).clamp(max=STRONGEST)
    return torch.lerp(u.to(precision), anchor.to(precision), c / (1 + c)).to(u.dtype)


def step_sizes(optimizer: Optimizer, weight: Tensor, group: dict[str, Any]) -> Tensor | float:
    """r: Adam's own step size lr/(sqrt(v̂)+ε), so that fixed points are those of loss + penalty; else lr."""
    state = optimizer.state.get(weight, {})
    if "exp_avg_sq" not in state:
        return float(group["lr"])
    correction = 1 - group["betas"][1] ** float(state["step"])
    denominator: Tensor = (state["exp_avg_sq"] / correction).sqrt_().add_(group["eps"])
    return group["lr"] / denominator  # type: ignore[no-any-return]


def pull_after_step(
    optimizer: Optimizer, params: dict[str, torch.nn.Parameter], anchor: Params, weights: Params, lam: float
) -> None:
    """Make every step of the optimiser end with the proximal step; λ = 0 leaves it alone altogether."""
    if lam == 0:
        return

    @torch.no_grad()
    def pull(own: Optimizer, args: Any, kwargs: Any) -> None:
        for group in own.param_groups:
            for weight in group["params"]:
                name = names[weight]
                # λ meets the importance first: r λ alone may overflow, and infinity times 0 is no number.
                strength = step_sizes(own, weight, group) * (lam * weights[name])
                weight.copy_(pulled(weight, anchor[name], strength))

    names = {weight: name for name, weight in params.items()}
    optimizer.register_step_post_hook(pull)


def hold_after_step(
    optimizer: Optimizer, params: dict[str, torch.nn.Parameter], anchor: Params, weights: Params
) -> None:
    """λ = ∞: entries with importance above 0 go back to their anchor after each step, others train."""
    held = {name: weights[name] > 0 for name in params}

    @torch.no_grad()
    def hold(own: Optimizer, args: Any, kwargs: Any) -> None:
        for name, weight in params.items():
            weight.copy_(torch.where(held[name], anchor[name], weight))

    optimizer.register_step_post_hook(hold)

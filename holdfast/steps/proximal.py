"""The quadratic penalty as an exact proximal step after the optimiser's own.

Inside the loss a penalty's gradient goes through Adam's moments, which divide its strength out again, and at
large strengths plain gradient descent on it diverges (Lubana et al. 2022 analyse this and interpolate
explicitly). Here the optimiser sees the task loss only; afterwards each weight u moves to the minimiser of
½(θ - u)²/r + (λ/2) a (θ - θ*)², a point between u and its anchor for every r, λ and a: it cannot diverge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from holdfast.maths.params import Params, precise

STRONGEST = 1e30  # keeps c/(1+c) from becoming NaN; there it is 1 in floating point anyway


def pulled(u: Tensor, anchor: Tensor, strength: Tensor) -> Tensor:
    """Return (u + c θ*)/(1 + c), c = r λ a, interpolated: a weight at its anchor stays there exactly."""
    c = precise(strength).clamp(max=STRONGEST)
    return torch.lerp(precise(u), precise(anchor), c / (1 + c)).to(u.dtype)


def skipped(optimizer: Optimizer) -> bool:
    """Return whether a fused optimiser skipped its step because half-precision gradients overflowed."""
    overflow = getattr(optimizer, "found_inf", None)
    return overflow is not None and bool(overflow)


def has_own_steps(state: Mapping[str, Any], group: Mapping[str, Any], weight: Tensor) -> bool:
    """Return whether an optimiser keeps Adam's second moment of every entry of a weight."""
    moment = state.get("exp_avg_sq")
    return "step" in state and "betas" in group and moment is not None and moment.shape == weight.shape


def step_sizes(
    state: Mapping[str, Any], group: Mapping[str, Any], *, adam: bool = True, part: Any = ...
) -> Tensor | float:
    """Return r: Adam's step size lr/(sqrt(v̂)+ε), so that fixed points are those of loss + penalty; else lr.

    `state` is the optimiser's state of a weight; `part` is an index of some of its entries.
    """
    if not adam or "exp_avg_sq" not in state or "betas" not in group:
        return float(group["lr"])
    correction = 1 - group["betas"][1] ** float(state["step"])
    if not correction:  # no step has been taken yet
        return 0.0
    denominator: Tensor = (state["exp_avg_sq"][part] / correction).sqrt_().add_(group["eps"])
    return denominator.reciprocal_().mul_(group["lr"])


@dataclass(frozen=True)
class Pull:
    """One quadratic pull: (λ/2) Σ a (θ - anchor)²."""

    anchor: Params
    weights: Params
    lam: float

    def gradient(self, name: str, weight: Tensor) -> Tensor:
        """Return λ a (θ - anchor), which this pull adds to the gradient when it is part of the loss."""
        if name not in self.weights:  # a throw-away head has no past
            return torch.zeros_like(weight)
        return self.lam * self.weights[name] * (weight - self.anchor[name])


def pull_after_step(
    optimizer: Optimizer, params: dict[str, torch.nn.Parameter], pulls: Sequence[Pull]
) -> None:
    """End every step of the optimiser with the joint proximal step of all these pulls.

    With two anchors (an old and an auxiliary model) the target is their mean, weighted by strength. Without
    pulls (λ = 0) the optimiser stays unchanged.
    """
    pulls = [pull for pull in pulls if pull.lam]
    if not pulls:
        return

    @torch.no_grad()
    def pull(own: Optimizer, args: Any, kwargs: Any) -> None:
        if skipped(own):
            return
        for group in own.param_groups:
            for weight in group["params"]:
                if names[weight] not in pulls[0].weights:  # a throw-away head has no past
                    continue
                name, r = names[weight], step_sizes(own.state.get(weight, {}), group)
                target, total = precise(pulls[0].anchor[name]), pulls[0].lam * pulls[0].weights[name].double()
                for one in pulls[1:]:
                    # The step size is common to all: shares depend only on λ a, which double precision holds.
                    mine = one.lam * one.weights[name].double()
                    share = torch.nan_to_num(mine / (total + mine))  # 0/0: nothing pulls here
                    target = torch.lerp(target, precise(one.anchor[name]), share.to(target.dtype))
                    total = total + mine
                # Bound λ a before multiplying it by r: infinity times a step size of 0 is NaN.
                weight.copy_(pulled(weight, target, r * total.clamp(max=STRONGEST).to(target.dtype)))

    names = {weight: name for name, weight in params.items()}
    optimizer.register_step_post_hook(pull)


def hold_after_step(
    optimizer: Optimizer, params: dict[str, torch.nn.Parameter], pulls: Sequence[Pull]
) -> None:
    """Reset entries with importance above 0 to their anchor after each step (λ = ∞); the others train."""
    held = [(pull.anchor, {name: value > 0 for name, value in pull.weights.items()}) for pull in pulls]
    if not held:
        return

    @torch.no_grad()
    def hold(own: Optimizer, args: Any, kwargs: Any) -> None:
        for anchor, entries in held:
            for name, held_entries in entries.items():
                weight = params[name]
                weight.copy_(torch.where(held_entries, anchor[name], weight))

    optimizer.register_step_post_hook(hold)

"""UPGD as a torch optimiser, and the curvature that its second-order utility needs.

Utility-based perturbed gradient descent (Elsayed, Mahmood, ICLR 2024): every weight carries an estimate of
how much the loss would rise if it were 0. Useful weights move little, useless ones freely and with noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from holdfast.maths.params import Params, precise

Maximum = Literal["corrected", "raw"]
Scaling = Literal["global", "local"]
TINY = 1e-30  # a largest utility below this says nothing about which weights are useful


class UPGDOptimizer(Optimizer):
    """Weight-wise UPGD. `utility` and `steps` belong to the caller, by weight name, and are updated in place.

    `curvature` is read at each step. Where it has a weight's Hessian diagonal the utility is of second order.
    """

    def __init__(
        self,
        params: dict[str, nn.Parameter],
        lr: float,
        *,
        utility: Params,
        steps: Params,
        curvature: Params | None = None,
        beta: float = 0.999,
        sigma: float = 1e-3,
        weight_decay: float = 0.0,
        factor: float = 2.0,
        maximum: Maximum = "corrected",
        scaling: Scaling = "global",
        protecting: bool = True,
    ) -> None:
        defaults = {"lr": lr, "beta": beta, "sigma": sigma, "weight_decay": weight_decay, "factor": factor}
        super().__init__(params.values(), defaults)
        self.names = {weight: name for name, weight in params.items()}
        self.utility, self.steps, self.curvature = utility, steps, {} if curvature is None else curvature
        self.maximum, self.scaling, self.protecting = maximum, scaling, protecting
        # All processes draw the same noise, and dropout keeps its own stream.
        self.noise = torch.Generator().manual_seed(torch.initial_seed())

    @torch.no_grad()
    @override
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update the utilities, then the weights: the more useful, the less."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        found = [
            (self.names[weight], weight, group)
            for group in self.param_groups
            for weight in group["params"]
            if weight.grad is not None
        ]
        corrected = {name: self._updated(name, weight, group["beta"]) for name, weight, group in found}
        top = self._top(corrected)
        for name, weight, group in found:
            self._move(weight, gate(corrected[name], top), group)
        return loss

    def _updated(self, name: str, weight: Tensor, beta: float) -> Tensor:
        """Update the running utility of one tensor; return it corrected for its start at 0."""
        assert weight.grad is not None
        value = precise(weight)
        instant = -precise(weight.grad) * value
        if name in self.curvature:
            instant = instant + 0.5 * self.curvature[name] * value.square()
        self.utility[name].mul_(beta).add_(instant, alpha=1 - beta)
        self.steps[name].add_(1)
        corrected: Tensor = self.utility[name] / (1 - beta ** float(self.steps[name]))
        return corrected

    def _top(self, corrected: Params) -> float | None:
        """Return the largest utility of the network; None if each row is scaled by itself."""
        if self.scaling == "local":
            return None
        source = (
            corrected if self.maximum == "corrected" else {name: self.utility[name] for name in corrected}
        )
        return max((float(value.max()) for value in source.values() if value.numel()), default=0.0)

    def _move(self, weight: Tensor, useful: Tensor, group: dict[str, Any]) -> None:
        """Set w ← (1 - lr wd) w - c lr (g + ξ)(1 - s); without protection subtract lr (g + ξ (1 - s))."""
        assert weight.grad is not None
        gradient, value = precise(weight.grad), precise(weight)
        shape = weight.shape
        noise = group["sigma"] * torch.randn(shape, generator=self.noise).to(gradient)
        if self.protecting:
            update = group["factor"] * (gradient + noise) * (1 - useful)
        else:
            update = gradient + noise * (1 - useful)
        lr = group["lr"]
        weight.copy_((1 - lr * group["weight_decay"]) * value - lr * update)


def gate(utility: Tensor, top: float | None) -> Tensor:
    """Return s in (0, 1): how useful a weight is relative to the most useful one, or to its row's norm.

    If no weight of the network is useful, the quotient would reverse the order: all gates are ½ instead.
    """
    if top is None:
        return torch.sigmoid(utility / utility.norm(dim=-1, keepdim=True).clamp(min=1e-12))
    if top <= TINY:
        return torch.full_like(utility, 0.5)
    return torch.sigmoid(utility / top)


def hutchinson(loss: Tensor, params: dict[str, nn.Parameter], generator: torch.Generator) -> Params:
    """Return z ⊙ Hz with random signs z: an unbiased estimate of the Hessian's diagonal, by double backward.

    The graph of the loss is kept for the backward pass of the training step.
    """
    weights = list(params.values())
    gradients = torch.autograd.grad(loss, weights, create_graph=True, allow_unused=True)
    signs = [(2 * torch.randint(0, 2, w.shape, generator=generator) - 1).to(w) for w in weights]
    # Only gradients that depend on the weights have a second derivative.
    products = [
        (g * z).sum() for g, z in zip(gradients, signs, strict=True) if g is not None and g.requires_grad
    ]
    seconds: tuple[Tensor | None, ...] = (None,) * len(weights)
    if products:
        seconds = torch.autograd.grad(
            torch.stack(products).sum(), weights, retain_graph=True, allow_unused=True
        )
    return {
        name: torch.zeros_like(z) if second is None else z * second
        for name, z, second in zip(params, signs, seconds, strict=True)
    }

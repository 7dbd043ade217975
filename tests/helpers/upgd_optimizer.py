"""UPGD's optimiser on plain tensors."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.steps.upgd import UPGDOptimizer

BETA, LR, DECAY = 0.9, 0.1, 0.01


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


class Run:
    """An optimiser on plain tensors, stepped with made-up gradients."""

    def __init__(self, curvature: dict[str, Tensor] | None = None, *, seed: int = 0, **rest: Any) -> None:
        starts = {name: rest.pop(name) for name in list(rest) if isinstance(rest[name], Tensor)}
        self.params = {name: nn.Parameter(value.clone()) for name, value in starts.items()}
        exact = {n: torch.promote_types(p.dtype, torch.float32) for n, p in self.params.items()}
        self.utility = {n: torch.zeros(p.shape, dtype=exact[n]) for n, p in self.params.items()}
        self.steps = {name: torch.zeros(()) for name in self.params}
        self.curvature = {} if curvature is None else curvature
        torch.manual_seed(seed)
        values: dict[str, Any] = {"lr": LR, "beta": BETA, "sigma": 0.0} | rest
        self.optimizer = UPGDOptimizer(
            self.params, utility=self.utility, steps=self.steps, curvature=self.curvature, **values
        )

    def step(self, **gradients: Tensor | None) -> None:
        for name, gradient in gradients.items():
            self.params[name].grad = None if gradient is None else gradient.clone()
        self.optimizer.step()

    def __getitem__(self, name: str) -> Tensor:
        return self.params[name].detach()

    def corrected(self, name: str, beta: float = BETA) -> Tensor:
        return self.utility[name] / (1 - beta ** float(self.steps[name]))

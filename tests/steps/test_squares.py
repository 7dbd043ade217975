"""Sums of squared gradients over the steps of an optimiser."""

from __future__ import annotations

import torch
from torch import nn
from torch.optim import SGD

from holdfast.steps.squares import add_up_squares


def test_two_steps_by_hand() -> None:
    weights = {"a": nn.Parameter(torch.tensor([1.0, -2.0])), "b": nn.Parameter(torch.tensor([3.0]))}
    optimizer = SGD(weights.values(), 0.25)
    sums = add_up_squares(optimizer, weights)
    assert all(not value.any() for value in sums.values())
    for _ in range(2):  # of θ_a², whose gradient is 2 θ: (2, -4), then, from (0.5, -1), (1, -2)
        optimizer.zero_grad()
        weights["a"].square().sum().backward()
        optimizer.step()
    assert sums["a"].tolist() == [5.0, 20.0]
    assert sums["b"].tolist() == [0.0], "it has no gradient"
    assert weights["a"].tolist() == [0.25, -0.5], "the steps are the optimiser's own"


def test_half_precision_gradients_do_not_vanish() -> None:
    weight = nn.Parameter(torch.ones(1, dtype=torch.float16))
    optimizer = SGD([weight], 0.0)
    sums = add_up_squares(optimizer, {"w": weight})
    weight.grad = torch.full((1,), 1e-5, dtype=torch.float16)
    optimizer.step()
    assert float(sums["w"]) > 9e-11

"""The proximal step: exact, unchanged at the anchor, stable at every strength."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD, AdamW, Optimizer

from holdfast.steps.proximal import Pull, hold_after_step, pull_after_step, pulled, step_sizes

singles = st.floats(-1e4, 1e4, width=32)


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def adamw(weight: nn.Parameter, lr: float = 0.05) -> AdamW:
    return AdamW([weight], lr=lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)


def train(optimizer: Optimizer, loss: Callable[[], torch.Tensor], steps: int) -> None:
    for _ in range(steps):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()


def test_pulled_by_hand() -> None:
    # (u + c θ*)/(1 + c): (4 + 1·2)/2, (4 + 3·2)/4, c = 0, (8 + .25·(-2))/1.25
    result = pulled(tensor(4, 4, 4, 8), tensor(2, 2, 2, -2), tensor(1, 3, 0, 0.25))
    assert result.tolist() == pytest.approx([3, 2.5, 4, 6])


@given(singles, singles, st.floats(-30, 30))
def test_pulled_is_the_minimiser(u: float, anchor: float, exponent: float) -> None:
    c = torch.tensor(10.0**exponent).item()
    result = pulled(tensor(u), tensor(anchor), tensor(c)).item()
    exact = (u + c * anchor) / (1 + c)  # in Python's float64
    assert result == pytest.approx(exact, abs=1e-6 * max(abs(u), abs(anchor), 1e-30))


def test_pulled_minimises_the_proximal_objective() -> None:
    u, anchor, r, lam, a = 0.7, -0.2, 0.05, 40.0, 0.3

    def objective(theta: float) -> float:
        return (theta - u) ** 2 / (2 * r) + lam / 2 * a * (theta - anchor) ** 2

    best = pulled(tensor(u), tensor(anchor), tensor(r * lam * a)).item()
    assert all(objective(best) < objective(best + step) for step in (-1e-3, 1e-3))


@given(singles, singles, st.floats(1e-30, 1e30))
def test_it_never_leaves_the_segment_between_weight_and_anchor(u: float, anchor: float, c: float) -> None:
    result = pulled(tensor(u), tensor(anchor), tensor(c)).item()
    assert min(u, anchor) <= result <= max(u, anchor)
    assert abs(result - anchor) <= abs(u - anchor)


@given(st.lists(singles, min_size=1, max_size=8), st.floats(0, 2.0**127, width=32))
def test_a_weight_at_its_anchor_stays_bit_equal(values: list[float], c: float) -> None:
    u = torch.tensor(values)
    for dtype in (torch.float32, torch.bfloat16):
        at = u.to(dtype)
        result = pulled(at, at.clone(), torch.full_like(u, c))
        assert result.dtype == dtype
        assert torch.equal(result, at)


def test_infinite_strength_is_the_anchor() -> None:
    assert pulled(tensor(3.0), tensor(-1.0), tensor(torch.inf)).item() == -1.0


def test_lambda_zero_is_no_hook_bit_for_bit_and_another_is_not() -> None:
    def run(lam: float | None) -> torch.Tensor:
        weight = nn.Parameter(torch.linspace(-1, 1, 9, dtype=torch.float64))
        anchor = weight.detach().clone()
        optimizer = adamw(weight)
        if lam is not None:
            pull_after_step(optimizer, {"w": weight}, [Pull({"w": anchor}, {"w": torch.ones(9)}, lam)])
        train(optimizer, lambda: (weight**3 - weight).sum().sin(), 7)
        return weight.detach()

    assert torch.equal(run(None), run(0.0))
    assert not torch.equal(run(None), run(1e-2))


@pytest.mark.parametrize("lam", [0.1, 1.0, 30.0])
def test_fixed_point_with_adamw_is_the_optimum_of_loss_and_penalty(lam: float) -> None:
    # ½ h (θ - b)² + (λ/2) a (θ - θ*)² has its minimum at (h b + λ a θ*)/(h + λ a)
    h, b, a, anchor = 2.0, 3.0, 0.5, -1.0
    weight = nn.Parameter(tensor(anchor))
    optimizer = adamw(weight)
    pull_after_step(optimizer, {"w": weight}, [Pull({"w": tensor(anchor)}, {"w": tensor(a)}, lam)])
    train(optimizer, lambda: (h / 2 * (weight - b) ** 2).sum(), 1500)
    optimum = (h * b + lam * a * anchor) / (h + lam * a)
    assert weight.item() == pytest.approx(optimum, rel=0.01)


def test_one_step_of_sgd_uses_the_learning_rate() -> None:
    # u = 1 - .1·2 = .8; c = .1·5·a: (.8 + .5·1)/(1.5) with a = 1, (.8 + 0)/1 with a = 0
    weight = nn.Parameter(tensor(1.0, 1.0))
    optimizer = SGD([weight], lr=0.1)
    pull_after_step(optimizer, {"w": weight}, [Pull({"w": tensor(1.0, 1.0)}, {"w": tensor(1.0, 0.0)}, 5.0)])
    train(optimizer, lambda: 2 * weight.sum(), 1)
    assert weight.tolist() == pytest.approx([1.3 / 1.5, 0.8])
    assert step_sizes(optimizer.state.get(weight, {}), optimizer.param_groups[0]) == 0.1


def test_one_step_of_adamw_uses_adams_own_step_size() -> None:
    # after one step v̂ = g² and m̂ = g: u = 1 - .1·sign(g), r = .1/|g|; c = r·λ = .1/2·5 and .1/4·5
    weight = nn.Parameter(tensor(1.0, 1.0))
    optimizer = adamw(weight, lr=0.1)
    pull_after_step(optimizer, {"w": weight}, [Pull({"w": tensor(0.0, 0.0)}, {"w": tensor(1.0, 1.0)}, 5.0)])
    train(optimizer, lambda: 2 * weight[0] - 4 * weight[1], 1)
    assert weight.tolist() == pytest.approx([0.9 / 1.25, 1.1 / 1.125], rel=1e-5)


def test_the_step_size_is_that_of_the_weights_own_group() -> None:
    slow, fast = nn.Parameter(tensor(0.0)), nn.Parameter(tensor(0.0))
    optimizer = SGD([{"params": [slow], "lr": 0.1}, {"params": [fast], "lr": 1.0}], lr=9.0)
    params, zero, one = {"slow": slow, "fast": fast}, tensor(0.0), tensor(1.0)
    pull_after_step(optimizer, params, [Pull(dict.fromkeys(params, zero), dict.fromkeys(params, one), 1.0)])
    train(optimizer, lambda: -(slow + fast).sum(), 1)
    assert [slow.item(), fast.item()] == pytest.approx([0.1 / 1.1, 0.5])


def test_held_entries_never_move_and_the_others_train() -> None:
    start = torch.linspace(0.1, 0.6, 6)
    free = [adamw_run(start, hold=None), adamw_run(start, hold=torch.zeros(6))]
    assert torch.equal(*free)
    alpha = tensor(1.0, 0.0, 1e-30, 0.0, 5.0, 0.0)
    held = adamw_run(start, hold=alpha)
    assert torch.equal(held[alpha > 0], start[alpha > 0])
    assert (held != start)[alpha == 0].all()
    assert torch.equal(held[alpha == 0], free[0][alpha == 0])


def adamw_run(start: torch.Tensor, hold: torch.Tensor | None) -> torch.Tensor:
    weight = nn.Parameter(start.clone())
    optimizer = adamw(weight)
    if hold is not None:
        hold_after_step(optimizer, {"w": weight}, [Pull({"w": start.clone()}, {"w": hold}, math.inf)])
    train(optimizer, lambda: (weight**2).sum(), 5)
    return weight.detach()

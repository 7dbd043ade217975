"""Every equation, compared with worked examples and with a loop over single elements."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.maths.equations import (
    Pooling,
    balance,
    curvature,
    cutoff,
    held,
    lam_up,
    modulate,
    pool,
    quadratic_penalty,
    reachable,
    relative_importance,
    up_bounds,
)

# ρ = 4/5, 1/2, 0/0, 1/10; their mean is .35 and τ = .8 · .35 = .28
PAST, AHEAD = torch.tensor([4.0, 1.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 0.0, 9.0])
RHO, TAU = torch.tensor([0.8, 0.5, 0.0, 0.1]), 0.28

alphas = st.floats(0, 1e6, allow_subnormal=False)
pairs = st.lists(st.tuples(alphas, alphas), min_size=1, max_size=20)


def both(rows: list[tuple[float, float]]) -> tuple[Tensor, Tensor]:
    past, ahead = torch.tensor(rows, dtype=torch.float64).T
    return past.clone(), ahead.clone()


def test_relative_importance_by_hand_and_zero_over_zero_is_zero() -> None:
    rho = relative_importance(PAST, AHEAD)
    torch.testing.assert_close(rho, RHO)
    assert rho[2] == 0


@given(pairs)
def test_relative_importance_by_element(rows: list[tuple[float, float]]) -> None:
    past, ahead = both(rows)
    rho = relative_importance(past, ahead)
    assert rho.tolist() == [p / (p + a + 1e-10) for p, a in rows]
    assert all(0 <= r <= 1 for r in rho.tolist())


def test_epsilon_is_a_parameter() -> None:
    assert relative_importance(torch.tensor([1.0]), torch.tensor([1.0]), eps=2.0).item() == 0.25


def test_cutoff_is_a_fraction_of_the_mean_of_the_whole_tensor() -> None:
    assert cutoff(RHO) == pytest.approx(TAU)
    assert cutoff(RHO, 0.5) == pytest.approx(0.175)
    assert cutoff(RHO.reshape(2, 2)) == pytest.approx(TAU)
    assert cutoff(torch.empty(0, 3)) == 0.0


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        # up 2, down 1/2: above τ up·ρ·α = 2·.8·4, 2·.5·1; below it down·ρ·α = 0, .5·.1·1
        ("balance", [6.4, 1.0, 0.0, 0.05]),
        ("cf", [6.4, 1.0, 0.0, 1.0]),
        ("kt", [4.0, 1.0, 0.0, 0.05]),
    ],
)
def test_modulate_by_hand(strategy: str, expected: list[float]) -> None:
    torch.testing.assert_close(modulate(PAST, RHO, TAU, 2.0, 0.5, strategy), torch.tensor(expected))


def test_modulate_is_balance_unless_told_otherwise_and_refuses_other_words() -> None:
    assert torch.equal(modulate(PAST, RHO, TAU, 2, 0.5), modulate(PAST, RHO, TAU, 2, 0.5, "balance"))
    with pytest.raises(ValueError, match=r"'both'.*balance, cf or kt"):
        modulate(PAST, RHO, TAU, 2.0, 0.5, "both")  # type: ignore[arg-type]


@pytest.mark.parametrize(("strategy", "expected"), [("balance", 0.25), ("cf", 1.0), ("kt", 0.25)])
def test_rho_equal_to_tau_falls_low(strategy: str, expected: float) -> None:
    one = torch.ones(1)
    assert modulate(one, one / 2, 0.5, 100.0, 0.5, strategy).item() == expected
    just_above = math.nextafter(0.5, 0.0)
    high = modulate(one.double(), one.double() / 2, just_above, 100.0, 0.5, strategy).item()
    assert high == (1.0 if strategy == "kt" else 50.0)


@given(pairs, st.floats(0, 1.5), st.floats(0, 1e4), st.floats(0, 1))
def test_modulate_by_element(
    rows: list[tuple[float, float]], fraction: float, up: float, down: float
) -> None:
    past, ahead = both(rows)
    rho = relative_importance(past, ahead)
    tau = cutoff(rho, fraction)
    for strategy in ("balance", "cf", "kt"):
        expected = []
        for alpha, r in zip(past.tolist(), rho.tolist(), strict=True):
            if r > tau:
                expected.append(alpha if strategy == "kt" else up * r * alpha)
            else:
                expected.append(alpha if strategy == "cf" else down * r * alpha)
        assert modulate(past, rho, tau, up, down, strategy).tolist() == expected


def test_up_bounds_of_the_published_run() -> None:
    lowest, highest = up_bounds(0.3765, 4.495, 77.3)
    assert lowest == pytest.approx(2.6560425)  # 1/.3765; rounded up, the 3 of the authors' code
    assert highest == pytest.approx(17.1968854)
    assert up_bounds(0.3765, 4.49536009, 77.30662811)[1] == pytest.approx(17.197, abs=5e-4)


def test_up_bounds_at_the_edges() -> None:
    assert up_bounds(0.01, 1.0, 50.0) == (20.0, 50.0)  # τ is floored at .05
    assert up_bounds(0.0, 1.0, 5.0) == (20.0, 20.0)  # the upper bound is at least the lower bound
    assert up_bounds(0.5, 0.0, 77.3) == (2.0, 2.0)  # λ = 0
    assert up_bounds(0.05, 1.0, 1.0) == (20.0, 20.0)


def test_lambda_up_shrinks_from_its_upper_bound_and_stops_at_the_lower_one() -> None:
    # τ = .4, λ_max/λ = 40: from 40 by 10 % per trial, as printed; 1/τ = 2.5
    assert lam_up(0.4, 2.0, 80.0, 1.0) == 40.0
    assert lam_up(0.4, 2.0, 80.0, 0.9) == pytest.approx(36.0)
    assert lam_up(0.4, 2.0, 80.0, 0.9**26) == pytest.approx(40 * 0.9**26)  # 2.58
    assert lam_up(0.4, 2.0, 80.0, 0.9**27) == lam_up(0.4, 2.0, 80.0, 0.0) == 2.5
    assert lam_up(0.4, 0.0, 80.0, 1.0) == 2.5  # λ = 0


@given(st.floats(0, 1), st.floats(0, 1e9), st.floats(0, 1e9))
def test_up_bounds_are_ordered_and_finite_below(tau: float, lam: float, lam_max: float) -> None:
    lowest, highest = up_bounds(tau, lam, lam_max)
    assert 1 <= lowest <= 20
    assert highest >= lowest
    if lam > 0 and lam_max / lam > lowest:
        assert highest == lam_max / lam


def test_running_mean_over_three_tasks_is_the_plain_mean() -> None:
    pooled = {"w": torch.tensor([0.0])}
    after = []
    for seen, alpha in enumerate((2.0, 4.0, 9.0)):
        pooled = pool(pooled, {"w": torch.tensor([alpha])}, seen)
        after.append(pooled["w"].item())
    assert after == [2.0, 3.0, 5.0]


def test_pool_max_and_unknown() -> None:
    pooled = pool({"w": torch.tensor([2.0, 4.0])}, {"w": torch.tensor([3.0, 1.0])}, 7, "max")
    assert pooled["w"].tolist() == [3.0, 4.0]
    with pytest.raises(ValueError, match=r"'median'.*mean, max, sum, ema, half"):
        pool({}, {}, 0, "median")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sum", [2.0, 6.0, 15.0]),
        ("ema", [1.0, 2.5, 5.75]),
        ("half", [2.0, 3.0, 6.0]),
        ("max", [2.0, 4.0, 9.0]),
    ],
)
def test_pool_of_2_4_9(how: Pooling, expected: list[float]) -> None:
    """specs/importance_estimators.md, section 2, and the results of its other rules."""
    pooled, after = {"w": torch.zeros(1)}, []
    for seen, alpha in enumerate([2.0, 4.0, 9.0]):
        pooled = pool(pooled, {"w": torch.tensor([alpha])}, seen, how)
        after.append(pooled["w"].item())
    assert after == expected


@given(st.lists(st.lists(alphas, min_size=3, max_size=3), min_size=1, max_size=6))
def test_pool_by_element(tasks: list[list[float]]) -> None:
    mean = largest = {"w": torch.zeros(3, dtype=torch.float64)}
    for seen, alpha in enumerate(tasks):
        new = {"w": torch.tensor(alpha, dtype=torch.float64)}
        mean, largest = pool(mean, new, seen), pool(largest, new, seen, "max")
    for j in range(3):
        column = [task[j] for task in tasks]
        assert mean["w"][j].item() == pytest.approx(sum(column) / len(column), rel=1e-12, abs=1e-12)
        assert largest["w"][j].item() == max(column)


def test_quadratic_penalty_worked_example_with_its_gradient() -> None:
    # importance_estimators.md, section 8: Ω = MAS reference, Σ ΩΔ² = .043125, λ = 3
    anchor = torch.tensor([[0.5, -0.25], [-0.5, 0.75]], dtype=torch.float64)
    omega = torch.tensor([[0.75, 0.75], [2.25, 3.25]], dtype=torch.float64)
    theta = (anchor + torch.tensor([[0.1, -0.2], [0.05, 0.0]])).requires_grad_()
    penalty = quadratic_penalty({"W": theta}, {"W": anchor}, {"W": omega}, 3.0)
    penalty.backward()
    assert penalty.item() == pytest.approx(0.0646875)
    expected = torch.tensor([[0.225, -0.45], [0.3375, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(theta.grad, expected, atol=1e-7, rtol=1e-6)


@settings(max_examples=40)
@given(st.integers(0, 2**31), st.floats(0, 1e4))
def test_quadratic_penalty_by_element(seed: int, lam: float) -> None:
    random = torch.Generator().manual_seed(seed)
    shapes = {"a": (2, 3), "b": (4,), "none": (0, 2)}
    theta, anchor, omega = (
        {n: torch.rand(s, generator=random, dtype=torch.float64) for n, s in shapes.items()} for _ in range(3)
    )
    # entries are matched by name, not by order
    backwards = dict(reversed(omega.items()))
    total = 0.0
    for name in shapes:
        for t, a, o in zip(*(p[name].flatten().tolist() for p in (theta, anchor, omega)), strict=True):
            total += lam / 2 * o * (t - a) ** 2
    assert quadratic_penalty(theta, anchor, backwards, lam).item() == pytest.approx(total, rel=1e-12)


def x() -> Tensor:
    return torch.tensor([0.3, 0.0, 0.9])


def y() -> Tensor:
    return torch.tensor([0.2, 0.5, 0.1])


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: relative_importance(a, b),
        lambda a, b: modulate(a, b, 0.15, 1.0, 1.0),
        lambda a, b: modulate(a, b, 0.15, 1.0, 1.0, "cf"),
        lambda a, b: modulate(a, b, 0.15, 1.0, 1.0, "kt"),
        lambda a, b: modulate(a, b, 2.0, 1.0, 1.0, "cf"),  # α' equals α, but is a copy
        lambda a, b: modulate(a, b, -1.0, 1.0, 1.0, "kt"),
        lambda a, b: pool({"w": a}, {"w": b}, 0)["w"],
        lambda a, b: pool({"w": a}, {"w": b}, 2)["w"],
        lambda a, b: pool({"w": a}, {"w": b}, 2, "max")["w"],
        lambda a, b: pool({"w": a}, {"w": a}, 2, "max")["w"],
        lambda a, b: quadratic_penalty({"w": a}, {"w": b}, {"w": a}, 2.0),
        lambda a, b: torch.tensor(cutoff(a)),
    ],
)
def test_inputs_are_neither_changed_nor_shared(call) -> None:
    first, second = x(), y()
    result = call(first, second)
    assert torch.equal(first, x())
    assert torch.equal(second, y())
    result.fill_(7.0)
    assert torch.equal(first, x())
    assert torch.equal(second, y())


def test_what_a_training_may_still_reach_by_hand() -> None:
    # best .5 after four of ten epochs; the best of the first two was .3: .1 an epoch, six epochs are left
    assert reachable([0.1, 0.3, 0.5, 0.4], 10, 2) == pytest.approx(0.5 + 0.1 * 6)
    assert reachable([0.5, 0.3, 0.4, 0.4], 10, 2) == 0.5, "nothing was gained"
    assert reachable([0.1, 0.3, 0.5], 10, 2) == math.inf, "too early to say"


@given(st.lists(st.floats(0, 1), min_size=2, max_size=30), st.integers(1, 15), st.integers(0, 30))
def test_reachable_by_slow_loop(scores: list[float], window: int, left: int) -> None:
    found = reachable(scores, len(scores) + left, window)
    if len(scores) < 2 * window:
        assert found == math.inf
        return
    before = now = 0.0
    for epoch, score in enumerate(scores):
        now = max(now, score)
        if epoch < len(scores) - window:
            before = now
    assert found == pytest.approx(now + (now - before) * left / window)


# ---- the quadratic model ------------------------------------------------------------------------------

START = {"w": torch.tensor([0.0, 1.0, 2.0, 3.0])}
THERE = {"w": torch.tensor([2.0, 1.0, 4.0, 1.0]), "new": torch.tensor([7.0])}
SQUARES = {"w": torch.tensor([16.0, 9.0, 0.0, 4.0])}
PULL = {"w": torch.tensor([1.0, 5.0, 3.0, 0.0])}


def test_the_quadratic_model_by_hand() -> None:
    h = curvature(SQUARES, START, THERE)
    assert h["w"].tolist() == [2.0, math.inf, 0.0, 1.0]  # 4/2, 3/0, 0/2, 2/2
    # Σ h Δ² = 2·4 + 0·4 + 1·4, Σ α' Δ² = 1·4 + 3·4
    assert balance(h, PULL, START, THERE) == pytest.approx(12 / 16)
    # c = 2/(2 + 2), 0 (its curvature is infinite, and it did not move), 6/6, 0
    found = held(START, THERE, PULL, h, 2.0)
    assert found["w"].tolist() == [1.0, 1.0, 2.0, 1.0]
    assert found["new"].tolist() == [7.0], "what has no past is free"
    assert torch.equal(held(START, THERE, PULL, h, 0.0)["w"], THERE["w"])
    assert held(START, THERE, PULL, h, math.inf)["w"].tolist() == [0.0, 1.0, 2.0, 1.0]


def test_nothing_that_moved_is_held() -> None:
    assert balance({"w": torch.ones(4)}, {}, START, THERE) == 0.0
    assert balance({"w": torch.ones(4)}, {"w": torch.zeros(4)}, START, THERE) == 0.0


numbers = st.floats(0.01, 100)


@given(st.lists(st.tuples(numbers, numbers, st.floats(-9, 9), st.floats(-9, 9)), min_size=1), numbers)
def test_held_weights_minimise_the_quadratic(
    rows: list[tuple[float, float, float, float]], lam: float
) -> None:
    """The slow way: no small step from it lowers ½ h (θ - θ_la)² + ½ λ α' (θ - θ_{k-1})²."""
    h, weights, start, there = (
        {"w": torch.tensor(column, dtype=torch.float64)} for column in zip(*rows, strict=True)
    )
    for (bend, weight, before, ahead), best in zip(
        rows, held(start, there, weights, h, lam)["w"], strict=True
    ):

        def total(x: float, bend=bend, weight=weight, before=before, ahead=ahead) -> float:
            return bend * (x - ahead) ** 2 + lam * weight * (x - before) ** 2

        least = total(float(best))
        assert all(total(float(best) + step) >= least - 1e-9 for step in (-0.01, 0.01))

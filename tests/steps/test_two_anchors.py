"""The proximal step towards two anchors, at every strength and in every precision."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, AdamW

from holdfast.steps.proximal import Pull, pull_after_step

values = st.floats(-1e4, 1e4, width=32)
# 0, the extremes of the range, and every order of magnitude in between.
strengths = st.one_of(
    st.sampled_from([0.0, 1e-45, 1e-30, 1.0, 1e30, 1e38]),
    st.floats(-38, 38).map(lambda exponent: 10.0**exponent),
)
below_the_ceiling = strengths.filter(lambda s: s <= 1e30)
entry = st.tuples(values, values, values, strengths, strengths)
exact_entry = st.tuples(values, values, values, below_the_ceiling, below_the_ceiling)


def columns(entries: list[tuple[float, ...]], dtype: torch.dtype) -> list[Tensor]:
    """Draw u, the old and the auxiliary anchor, and both strengths."""
    return [torch.tensor(column, dtype=dtype) for column in zip(*entries, strict=True)]


def stepped(u: Tensor, *pulls: tuple[Tensor, Tensor], lam: float = 1.0, lr: float = 1.0) -> Tensor:
    """Take an SGD step with zero gradient, followed by pulls of strength lr · lam · s."""
    weight = nn.Parameter(u.clone())
    optimizer = SGD([weight], lr=lr)
    both = [Pull({"w": anchor}, {"w": strength}, lam) for anchor, strength in pulls]
    pull_after_step(optimizer, {"w": weight}, both)
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    return weight.detach()


def closed_form(u: float, one: float, two: float, s: float, s_a: float) -> float:
    """Return (u + s θ_old + s_a θ_aux)/(1 + s + s_a) in exact arithmetic."""
    u, one, two, s, s_a = map(Fraction, (u, one, two, s, s_a))
    return float((u + s * one + s_a * two) / (1 + s + s_a))


def test_by_hand():
    # (6 + 2·3 + 1·(-4))/(1 + 2 + 1) = 2, and with r λ = .1 · 5 = .5 in front: (6 + 3 - 2)/(1 + 1 + .5)
    u, one, two, s, s_a = columns([(6.0, 3.0, -4.0, 2.0, 1.0)], torch.float64)
    assert stepped(u, (one, s), (two, s_a)).item() == pytest.approx(2.0, abs=1e-12)
    assert stepped(u, (one, s), (two, s_a), lam=5.0, lr=0.1).item() == pytest.approx(2.8, abs=1e-12)


def test_the_step_minimises_both_pulls_together():
    u, one, two, r, lam, a, lam_a, a_aux = 0.7, -0.2, 1.9, 0.05, 40.0, 0.3, 8.0, 2.0

    def objective(theta: float) -> float:
        pulls = lam / 2 * a * (theta - one) ** 2 + lam_a / 2 * a_aux * (theta - two) ** 2
        return (theta - u) ** 2 / (2 * r) + pulls

    weight = nn.Parameter(torch.tensor([u], dtype=torch.float64))
    optimizer = SGD([weight], lr=r)
    old = Pull({"w": torch.full_like(weight, one)}, {"w": torch.full_like(weight, a)}, lam)
    aux = Pull({"w": torch.full_like(weight, two)}, {"w": torch.full_like(weight, a_aux)}, lam_a)
    pull_after_step(optimizer, {"w": weight}, [old, aux])
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    best = weight.item()
    assert all(objective(best) < objective(best + step) for step in (-1e-4, 1e-4))


@given(st.lists(exact_entry, min_size=1, max_size=20))
def test_it_is_the_closed_form_in_double_precision(entries):
    u, one, two, s, s_a = columns(entries, torch.float64)
    found = stepped(u, (one, s), (two, s_a)).tolist()
    for theta, values in zip(found, entries, strict=True):
        assert theta == pytest.approx(closed_form(*values), abs=1e-12 * max(map(abs, values[:3])) + 1e-300)


@given(st.lists(exact_entry, min_size=1, max_size=20))
def test_it_is_the_closed_form_in_single_precision(entries):
    u, one, two, s, s_a = columns(entries, torch.float32)
    found = stepped(u, (one, s), (two, s_a)).tolist()
    for i, theta in enumerate(found):
        values = [column[i].item() for column in (u, one, two, s, s_a)]
        assert theta == pytest.approx(closed_form(*values), abs=1e-6 * max(map(abs, values[:3])) + 1e-44)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@given(entries=st.lists(entry, min_size=1, max_size=20))
@example(entries=[(1.0, 2.0, 3.0, 1e38, 1e38), (1.0, 2.0, 3.0, 0.0, 0.0), (0.0, 0.0, 0.0, 1e38, 0.0)])
def test_it_never_leaves_what_the_three_points_span(dtype, entries):
    u, one, two, s, s_a = columns(entries, dtype)
    found = stepped(u, (one, s), (two, s_a))
    assert found.dtype == dtype
    assert torch.isfinite(found).all()
    points = torch.stack([u, one, two])
    assert (found >= points.amin(0)).all()
    assert (found <= points.amax(0)).all()


@pytest.mark.parametrize("lam", [0.0, 1e-38, 1.0, 1e38])
@pytest.mark.parametrize("lam_a", [0.0, 1e-38, 1.0, 1e38])
def test_no_strength_makes_a_weight_no_number(lam, lam_a):
    """With importances of 0 and of extreme sizes, after AdamW's steps."""
    a = torch.tensor([0.0, 1e-45, 1e-20, 1.0, 1e20, 0.0, 1e38])
    a_aux = torch.tensor([0.0, 0.0, 1e38, 1.0, 1e-20, 1e38, 1e38])
    weight = nn.Parameter(torch.linspace(-1, 1, 7))
    one, two = weight.detach().clone(), 2 * weight.detach()
    optimizer = AdamW([weight], lr=0.05)
    before: list[Tensor] = []
    optimizer.register_step_post_hook(lambda *args: before.append(weight.detach().clone()))
    pull_after_step(
        optimizer, {"w": weight}, [Pull({"w": one}, {"w": a}, lam), Pull({"w": two}, {"w": a_aux}, lam_a)]
    )
    for _ in range(4):
        optimizer.zero_grad()
        (weight**3 - weight)[1:].sum().backward()  # the first has gradient 0: r = lr/ε
        optimizer.step()
        assert torch.isfinite(weight).all()
        points = torch.stack([before[-1], one, two])
        assert (weight >= points.amin(0)).all()
        assert (weight <= points.amax(0)).all()
        assert weight[0] == before[-1][0], "there is no pull there"


@given(st.lists(st.tuples(values, values, values), min_size=1, max_size=20), st.booleans())
def test_two_strengths_of_zero_leave_the_weight(entries, by_lam):
    u, one, two = columns(entries, torch.float32)
    s = torch.ones_like(u) if by_lam else torch.zeros_like(u)
    assert torch.equal(stepped(u, (one, s), (two, s), lam=0.0 if by_lam else 1e38), u)


@given(st.lists(entry, min_size=1, max_size=20))
def test_a_second_strength_of_zero_is_one_anchor(entries):
    u, one, two, s, _ = columns(entries, torch.float32)
    none = torch.zeros_like(s)
    alone = stepped(u, (one, s))
    assert torch.equal(stepped(u, (one, s), (two, none)), alone)
    assert torch.equal(stepped(u, (two, none), (one, s)), alone), "a first strength of zero is ignored"


@given(st.lists(exact_entry, min_size=1, max_size=20))
def test_two_pulls_to_one_anchor_are_one_of_their_sum(entries):
    u, one, _, s, s_a = columns(entries, torch.float64)
    both, alone = stepped(u, (one, s), (one, s_a)), stepped(u, (one, s + s_a))
    assert torch.allclose(both, alone, rtol=1e-12, atol=1e-12)


@given(st.lists(exact_entry, min_size=1, max_size=20))
def test_the_order_of_the_anchors_does_not_matter(entries):
    u, one, two, s, s_a = columns(entries, torch.float64)
    there, back = stepped(u, (one, s), (two, s_a)), stepped(u, (two, s_a), (one, s))
    assert torch.allclose(there, back, rtol=0, atol=1e-11)


@given(st.lists(st.tuples(values, strengths, strengths), min_size=1, max_size=20))
def test_a_weight_where_both_anchors_are_stays_bit_equal(entries):
    u, s, s_a = columns(entries, torch.float32)
    assert torch.equal(stepped(u, (u.clone(), s), (u.clone(), s_a)), u)


def test_equal_strengths_beyond_single_precision_meet_half_way():
    u, one, two, s = columns([(0.0, 1.0, 2.0, 1e10), (9.0, -3.0, 5.0, 1e38)], torch.float32)
    assert stepped(u, (one, s), (two, s), lam=1e38).tolist() == pytest.approx([1.5, 1.0], abs=1e-6)


@pytest.mark.parametrize(("s", "s_a"), [(1e38, 1e31), (1e31, 1e38), (1e36, 3e36)])
def test_of_two_huge_strengths_the_ratio_is_kept(s, s_a):
    u, one, two, s, s_a = columns([(0.0, 1.0, 2.0, s, s_a)], torch.float64)
    expected = closed_form(0.0, 1.0, 2.0, s.item(), s_a.item())
    assert stepped(u, (one, s), (two, s_a)).item() == pytest.approx(expected, abs=1e-6)

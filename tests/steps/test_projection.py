"""Projectors: the spec's worked example, rules, edge cases and algebra."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from helpers.projection import kept, random_moment
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from holdfast.steps.projection import correlation, projector


def double(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# ---- the worked example: specs/adabop.md, section 8 ---------------------------------------------------

X = double([[2, 0, 1], [0, 1, 0], [2, 1, 1]])
F = X.T @ X
STEP = double([[1, 2, 3], [-1, 0, 1]])
STRICT = double([[0.2, 0, -0.4], [0, 0, 0], [-0.4, 0, 0.8]])
LOOSE = double(
    [
        [0.25085138, -0.21821789, -0.37457431],
        [-0.21821789, 0.93643578, -0.10910895],
        [-0.37457431, -0.10910895, 0.81271284],
    ]
)
SOFT = double(
    [
        [0.41512605, -0.10084034, -0.29243697],
        [-0.10084034, 0.67226891, -0.05042017],
        [-0.29243697, -0.05042017, 0.85378151],
    ]
)


def assert_printed(found: Tensor, expected: Tensor) -> None:
    """Compare to the eight printed digits."""
    assert found.dtype == torch.float64
    assert float((found - expected).abs().max()) < 1e-8


@pytest.mark.parametrize(
    ("lam", "tau", "count"), [(0.1, 1.2, 2), (0.1, 1.5, 2), (0.3, 1.2, 1), (0.3, 1.5, 2), (0.3, 5.0, 3)]
)
def test_how_many_vectors_the_ratio_keeps(lam, tau, count):
    assert kept(projector(F, lam, tau=tau)) == count


def test_the_strict_projector():
    P = projector(F, 0.3, tau=1.2)
    assert_printed(P, STRICT)
    assert_printed(STEP @ P, double([[-1, 0, 2], [-0.6, 0, 1.2]]))
    assert float((STEP @ P @ X.T).abs().max()) < 1e-14


@pytest.mark.parametrize("lam", [0.1, 0.3])
def test_the_loose_projector(lam):
    P = projector(F, lam, tau=1.5)
    assert_printed(P, LOOSE)
    normal = P / torch.linalg.norm(P)
    assert_printed(normal, P / 2**0.5)
    assert_printed(normal[0], double([0.17737871, -0.15430335, -0.26486404]))
    moved = [[-1.30930734, 1.32732684, 1.84534633], [-0.62542569, 0.10910895, 1.18728716]]
    assert_printed(STEP @ P, double(moved))


@pytest.mark.parametrize("lam", [0.1, 0.3])
def test_the_fraction_of_the_worked_example(lam):
    assert_printed(projector(F, lam, selection="fraction", fraction=0.4), STRICT)


def test_the_soft_projector():
    P = projector(F, 0.3, selection="soft", tau=1.0, fraction=0.0)
    assert_printed(P, SOFT)
    change = [[0.84033613, 1.09243697, 1.93277311], [-0.26890756, 0.05042017, -0.21848739]]
    assert_printed(STEP @ P @ X.T, double(change))
    assert_printed(STEP @ X.T, double([[5, 2, 7], [-1, 0, -1]]))


def owm(rows: Tensor, a: float) -> Tensor:
    """Run the recursion of Orthogonal Weights Modification, one input at a time."""
    P = torch.eye(rows.shape[1], dtype=torch.float64)
    for x in rows:
        k = P @ x
        P = P - torch.outer(k, k) / (a + x @ k)
    return P


@pytest.mark.parametrize("lam", [0.005, 0.3, 10.0])
def test_the_soft_projector_is_what_owm_arrives_at(lam):
    assert torch.allclose(projector(F, lam, selection="soft"), owm(X, 1 / lam), rtol=0, atol=1e-13)


G = double([[0.02, 0.01, 0], [0, 0.03, -0.01]])
BEFORE = double([[0.03, 0, 0.01], [0.01, 0.02, 0]])


def test_the_correlation_of_the_worked_example():
    assert correlation(G, BEFORE) == pytest.approx(0.02435843, abs=1e-8)
    assert correlation(G, BEFORE, scale_free=True) == pytest.approx(0.72127246, abs=1e-8)


def test_how_the_correlation_scales():
    """The size of the new gradient never matters; that of the old one does, unless normalised."""
    assert correlation(7 * G, BEFORE) == pytest.approx(correlation(G, BEFORE), rel=1e-12)
    assert correlation(G, 7 * BEFORE) == pytest.approx(7 * correlation(G, BEFORE), rel=1e-12)
    free = correlation(G, BEFORE, scale_free=True)
    assert correlation(7 * G, 5 * BEFORE, scale_free=True) == pytest.approx(free, rel=1e-12)


def test_gradients_that_have_nothing_in_common():
    assert correlation(double([[1, 0, 0]]), double([[0, 2, 0], [0, 0, 3]])) == 0.0
    assert correlation(double([[0, 5, 0]]), double([[0, 2, 0]]), scale_free=True) == pytest.approx(1.0)


# ---- rules and edges ----------------------------------------------------------------------------------


@pytest.mark.parametrize("d", [5, 64])
def test_with_a_fraction_lambda_is_inert(d):
    moment = random_moment(d)
    weak, strong = (projector(moment, lam, selection="fraction", fraction=0.3) for lam in (0.005, 100.0))
    assert torch.allclose(weak, strong, rtol=0, atol=1e-12)
    assert kept(weak) == int(0.3 * d)
    ratios = [projector(moment, lam, tau=2.0) for lam in (0.005, 100.0)]
    assert kept(ratios[0]) > kept(ratios[1]), "with a ratio, λ must have an effect"


def test_a_fraction_keeps_at_least_one_vector():
    moment = random_moment(64)
    P = projector(moment, 0.1, selection="fraction", fraction=0.01)
    assert kept(P) == 1
    assert float((P @ moment).trace()) == pytest.approx(float(torch.linalg.eigvalsh(moment)[0]), rel=1e-9)


def test_a_fraction_of_all_is_everything():
    P = projector(random_moment(5), 0.1, selection="fraction", fraction=1.0)
    assert torch.allclose(P, torch.eye(5, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(("selection", "open_ways"), [("ratio", 6), ("fraction", 1), ("soft", 6)])
def test_inputs_that_were_all_zero(selection, open_ways):
    P = projector(torch.zeros(6, 6), 0.3, selection=selection)
    assert torch.isfinite(P).all()
    assert kept(P) == open_ways
    assert kept(P @ P) == open_ways


@pytest.mark.parametrize("scale_free", [False, True])
def test_gradients_that_are_zero(scale_free):
    zero = torch.zeros_like(G)
    assert correlation(zero, BEFORE, scale_free=scale_free) == 0.0
    assert correlation(G, zero, scale_free=scale_free) == 0.0
    assert correlation(zero, zero, scale_free=scale_free) == 0.0


def test_round_off_below_zero_is_no_eigenvalue():
    """A moment in single precision may be slightly indefinite; a strong λ must not amplify that."""
    moment = torch.diag(double([-1e-9, 0.0, 1.0]))
    P = projector(moment, 1e10, tau=1.5)
    assert torch.allclose(P, torch.diag(double([1, 1, 0])))
    soft = projector(moment, 1e10, selection="soft")
    assert torch.allclose(soft, torch.diag(double([1, 1, 1e-10])), atol=1e-12)


@pytest.mark.parametrize("selection", ["ratio", "fraction", "soft"])
def test_single_precision_is_decomposed_in_double(selection):
    moment = random_moment(8).float()
    found = projector(moment, 0.3, selection=selection, tau=1.5)
    assert found.dtype == torch.float64
    assert torch.equal(found, projector(moment.double(), 0.3, selection=selection, tau=1.5))


# ---- properties ---------------------------------------------------------------------------------------

# Integers: an eigenvalue of their Gram matrix is 0 or clearly above.
sides = st.integers(1, 7)
inputs = st.tuples(sides, sides).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.integers(-3, 3).map(float))
)
strengths = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)
ratios = st.floats(1.01, 30.0)


def moment_of(rows: np.ndarray) -> Tensor:
    x = torch.from_numpy(rows)
    return x.T @ x / len(x)


@given(inputs, strengths, ratios)
def test_a_hard_projector_is_one(rows, lam, tau):
    moment = moment_of(rows)
    P = projector(moment, lam, tau=tau)
    assert torch.allclose(P, P.T, atol=1e-12)
    assert torch.allclose(P @ P, P, atol=1e-12)
    spectrum = np.sort(1 + lam * np.linalg.eigvalsh(moment.numpy()).clip(0))
    limit = tau * spectrum[0]
    surely = int((spectrum < limit * (1 - 1e-9)).sum())
    perhaps = int((spectrum < limit * (1 + 1e-9)).sum())
    assert surely <= kept(P) <= perhaps
    assert abs(float(P.trace()) - kept(P)) < 1e-9
    assert torch.allclose(P @ moment, moment @ P, atol=1e-9), "it commutes with the moment"


@given(inputs, st.floats(0, 1))
def test_a_fraction_is_a_projector_on_the_least_used(rows, fraction):
    moment = moment_of(rows)
    P = projector(moment, 1.0, selection="fraction", fraction=fraction)
    count = max(int(len(P) * fraction), 1)
    assert torch.allclose(P, P.T, atol=1e-12)
    assert torch.allclose(P @ P, P, atol=1e-12)
    assert float(P.trace()) == pytest.approx(count, abs=1e-9)
    least = np.sort(np.linalg.eigvalsh(moment.numpy()))[:count].sum()
    assert float((P @ moment).trace()) == pytest.approx(least, abs=1e-9)


@given(inputs, strengths)
def test_a_soft_projector_shrinks(rows, lam):
    moment = moment_of(rows)
    P = projector(moment, lam, selection="soft")
    assert torch.allclose(P, P.T, atol=1e-12)
    values = torch.linalg.eigvalsh(P)
    assert float(values.min()) >= -1e-12
    assert float(values.max()) <= 1 + 1e-12
    eye = torch.eye(len(P), dtype=torch.float64)
    assert torch.allclose(P @ (eye + lam * moment), eye, atol=1e-9 * (1 + lam * float(moment.abs().max())))


@given(inputs, st.integers(0, 100))
def test_in_the_null_space_old_outputs_stay(rows, seed):
    """With τ just above 1 and a strong λ, no update changes the output for an old input."""
    moment = moment_of(rows)
    rank = int(np.linalg.matrix_rank(rows))
    assume(rank < rows.shape[1])
    P = projector(moment, 1e6, tau=1.001)
    assert kept(P) == rows.shape[1] - rank
    update = torch.randn(3, rows.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert float((update @ P @ torch.from_numpy(rows).T).abs().max()) < 1e-6
    assert float((update @ P).abs().max()) > 0

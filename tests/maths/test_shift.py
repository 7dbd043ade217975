"""How far a mean has moved: by hand, and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from holdfast.maths.shift import Spread, at_least, holm, mixing, shift, spread


def test_a_shift_by_hand():
    """Σ = diag(4, 1), δ = (2, 1), v = 0.5: |δ|² = 5, by chance 2.5; tr Σ² = 17, scale 1.7, f = 25/17."""
    found = shift(torch.tensor([2.0, 1.0]), 0.5, Spread(5.0, 17.0))
    assert found.size == pytest.approx(math.sqrt(2.5 / 5))
    assert found.p == pytest.approx(chi2.sf(5 / 1.7, 25 / 17))
    assert shift(torch.tensor([0.5, 0.0]), 0.5, Spread(5.0, 17.0)).size == 0
    assert shift(torch.zeros(2), 0.5, Spread(0.0, 0.0)) == (0.0, 1.0)
    assert shift(torch.ones(2), 0.5, Spread(0.0, 0.0)) == (math.inf, 0.0)


def test_in_one_dimension_it_is_the_square_of_a_normal_number():
    """f = 1 and |δ|²/v σ² is χ²_1: 1.96 standard errors have p = 0.05."""
    factor, variance = 0.1, 3.0
    delta = torch.tensor([1.959964 * math.sqrt(factor * variance)], dtype=torch.float64)
    assert shift(delta, factor, Spread(variance, variance**2)).p == pytest.approx(0.05, abs=1e-6)


def test_a_spread_by_hand():
    """S = diag(2, 1), 4 degrees of freedom: 16/(3 · 6) · (5 - 9/4) = 2.444..., but at least 9/2."""
    assert spread(torch.diag(torch.tensor([2.0, 1.0])), 4) == (3.0, 4.5)
    # S = diag(9, 1), f = 9: 81/(8 · 11) · (82 - 100/9) = 65.25, at least 100/2
    assert spread(torch.diag(torch.tensor([9.0, 1.0])), 9) == pytest.approx((10, 81 / 88 * (82 - 100 / 9)))


def test_the_spread_is_unbiased_with_fewer_sentences_than_dimensions():
    random = np.random.RandomState(0)
    scales = np.linspace(0.1, 3, 40) ** 2
    found = []
    for _ in range(300):
        z = random.standard_normal((12, 40)) * np.sqrt(scales)
        found.append(spread(torch.from_numpy(np.cov(z.T)), 11))
    mean = np.mean(found, axis=0)
    assert mean[0] == pytest.approx(scales.sum(), rel=0.02)
    assert mean[1] == pytest.approx(np.square(scales).sum(), rel=0.05)


@pytest.mark.parametrize(("n", "m"), [(10, 300), (200, 60)])
def test_p_is_uniform_where_nothing_has_changed(n, m):
    """The slow witness: p against the share of simulated differences that are larger."""
    random = np.random.RandomState(1)
    scales = np.exp(-np.arange(30) / 6)
    own = Spread(float(scales.sum()), float(np.square(scales).sum()))
    means = [random.standard_normal((k, 30)) * np.sqrt(scales / size) for k, size in ((4000, n), (4000, m))]
    every = torch.from_numpy(means[0] - means[1])
    values = np.array([shift(one, 1 / n + 1 / m, own).p for one in every])
    for level in (0.01, 0.05, 0.2, 0.5):
        assert (values < level).mean() == pytest.approx(level, abs=0.02)
    lengths = np.square(every.numpy()).sum(1)
    ranks = (lengths[:, None] <= lengths[None]).mean(1)  # permutation: how many are at least as long
    assert np.abs(ranks - values).max() < 0.03


def test_holm_by_hand():
    """0.01·3, 0.02·2 = 0.04, then 0.03·1, but not below the one before."""
    assert holm([0.03, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_binomial_by_hand():
    """At least 1 of 2 at 0.5: 3/4; at least 0: 1."""
    assert at_least(1, 2, 0.5) == pytest.approx(0.75)
    assert at_least(0, 2, 0.5) == 1
    assert at_least(3, 4, 0.1) == pytest.approx(4 * 0.1**3 * 0.9 + 0.1**4)


def test_the_distance_of_mixes_by_hand_and_by_simulation():
    before, after = [0.5, 0.3, 0.2], [0.3, 0.3, 0.4]
    distance, chance = mixing(before, after, 400)
    assert distance == pytest.approx(0.2)
    drawn = np.random.RandomState(2).multinomial(400, before, 4000) / 400
    assert chance == pytest.approx(np.abs(drawn - before).sum(1).mean() / 2, rel=0.05)

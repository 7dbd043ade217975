"""A test of whether a mean has moved, computed from sums alone.

With δ the difference of two means and v its variance factor, such as 1/n + 1/m, |δ|² has under no change the
mean v tr Σ and the variance 2 v² tr Σ². It is compared with the scaled χ² of the same mean and variance
(Satterthwaite 1946). Unlike Hotelling's T² this holds with fewer sentences than dimensions (Bai, Saranadasa
1996), whose estimate of tr Σ² is used.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from scipy.stats import binom, chi2
from torch import Tensor


class Spread(NamedTuple):
    """How much sentences vary: tr Σ and tr Σ²."""

    trace: float
    squares: float


class Shift(NamedTuple):
    """How far a mean has moved."""

    size: float
    """|δ| beyond chance, in standard deviations √(tr Σ)."""
    p: float
    """Probability of a δ at least as large without any change."""


def spread(covariance: Tensor, free: float) -> Spread:
    """Return unbiased estimates of tr Σ and tr Σ² from a sample covariance S of `free` degrees of freedom.

    tr Σ² is estimated by f² / ((f - 1)(f + 2)) · (tr S² - (tr S)² / f), as in equation 3.14 of Bai and
    Saranadasa (1996), and is at least the (tr Σ)² / d of a round cloud.
    """
    trace, squares = float(covariance.trace()), float(covariance.square().sum())
    if free > 1:
        squares = free**2 / ((free - 1) * (free + 2)) * (squares - trace**2 / free)
    return Spread(trace, max(squares, trace**2 / len(covariance)))


def shift(delta: Tensor, factor: float, own: Spread) -> Shift:
    """Return how far δ, of covariance `factor` · Σ under no change, lies from 0.

    |δ|² is compared with a χ²_f, a = v tr Σ² / tr Σ and f = (tr Σ)² / tr Σ².
    """
    found = float(delta.double().square().sum())
    if not own.trace > 0:
        return Shift(math.inf, 0.0) if found > 0 else Shift(0.0, 1.0)
    size = math.sqrt(max(found - factor * own.trace, 0.0) / own.trace)
    scale = factor * own.squares / own.trace
    return Shift(size, float(chi2.sf(found / scale, own.trace**2 / own.squares)))


def holm(values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for their number (Holm 1979)."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    found, highest = [0.0] * len(values), 0.0
    for rank, i in enumerate(order):
        highest = max(highest, min(1.0, (len(values) - rank) * values[i]))
        found[i] = highest
    return found


def at_least(count: int, n: int, share: float) -> float:
    """Return the probability of at least `count` of `n` where `share` are expected (binomial)."""
    return float(binom.sf(count - 1, n, share))


def mixing(before: Sequence[float], after: Sequence[float], n: float) -> tuple[float, float]:
    """Return the distance ½ Σ|q_k - p_k| of two mixes of labels, and what it is by chance with n sentences.

    By chance, q_k differs from p_k by √(2 p_k (1 - p_k) / (π n)) on average.
    """
    distance = sum(abs(q - p) for p, q in zip(before, after, strict=True)) / 2
    chance = sum(math.sqrt(2 * p * (1 - p) / (math.pi * n)) for p in before) / 2
    return distance, chance

"""Means, confidence intervals and paired tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A mean and its uncertainty."""

    mean: float
    std: float | None
    """Sample standard deviation (n - 1); None for a single value."""
    half: float | None
    """Half width of the 95 % confidence interval of the mean, by Student's t; None for a single value."""
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of some values and its uncertainty."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return Estimate(mean, None, None, n)
    std = float(np.std(values, ddof=1))
    return Estimate(mean, std, float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n), n)


def within(found: Estimate, most: float) -> tuple[float, float]:
    """Return the ends of the confidence interval, but none beyond what is possible: -most and most."""
    half = found.half or 0.0
    return max(found.mean - half, -most), min(found.mean + half, most)


@dataclass(frozen=True)
class Comparison:
    """The mean difference of paired values, and its p-value."""

    difference: Estimate
    p: float


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Run a paired t-test on at least two pairs; p is 1 if all are equal, NaN if all differ by the same."""
    gaps = np.subtract(first, second)
    if np.ptp(gaps) < 1e-12:  # no variance: a t-test is impossible
        return Comparison(estimate(gaps.tolist()), 1.0 if abs(gaps[0]) < 1e-12 else math.nan)
    return Comparison(estimate(gaps.tolist()), float(stats.ttest_rel(first, second).pvalue))


def holm(values: Sequence[float]) -> list[float]:
    """Correct p-values for multiple comparisons (Holm 1979); NaN stays NaN."""
    found = [math.nan] * len(values)
    known = sorted((p, i) for i, p in enumerate(values) if not math.isnan(p))
    largest = 0.0
    for rank, (p, i) in enumerate(known):  # a NaN counts as a comparison too
        largest = max(largest, min(1.0, p * (len(values) - rank)))
        found[i] = largest
    return found

"""Means, their uncertainty, and whether two methods differ by more than chance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Estimate:
    """A mean over runs."""

    mean: float
    std: float | None
    """Of the sample (n - 1); None for a single run."""
    half: float | None
    """Half of the 95 % confidence interval of the mean, by Student's t."""
    count: int


def estimate(values: Sequence[float]) -> Estimate:
    """The mean of some runs and how sure it is."""
    n = len(values)
    mean = float(np.mean(values))
    if n < 2:
        return Estimate(mean, None, None, n)
    std = float(np.std(values, ddof=1))
    return Estimate(mean, std, float(stats.t.ppf(0.975, n - 1)) * std / math.sqrt(n), n)


@dataclass(frozen=True)
class Comparison:
    """The mean difference of paired runs, and how likely one as large is by chance."""

    difference: Estimate
    p: float


def compare(first: Sequence[float], second: Sequence[float]) -> Comparison:
    """Paired t-test of runs of the same orders and seeds; of at least two."""
    gaps = np.subtract(first, second)
    if np.ptp(gaps) < 1e-12:  # the same gap in every run: chance cannot be judged by it
        return Comparison(estimate(gaps.tolist()), 1.0 if abs(gaps[0]) < 1e-12 else math.nan)
    return Comparison(estimate(gaps.tolist()), float(stats.ttest_rel(first, second).pvalue))


def holm(values: Sequence[float]) -> list[float]:
    """p-values corrected for being several (Holm 1979); no number stays none."""
    found = [math.nan] * len(values)
    known = sorted((p, i) for i, p in enumerate(values) if not math.isnan(p))
    largest = 0.0
    for rank, (p, i) in enumerate(known):  # one that cannot be told was looked at all the same
        largest = max(largest, min(1.0, p * (len(values) - rank)))
        found[i] = largest
    return found

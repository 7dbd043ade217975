"""The stability-plasticity frontier: how much of the past is kept at each score of the new task."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean

Point = tuple[float, float]
"""The score of the new task, and the score of the old one."""


def frontier(points: Sequence[Point]) -> list[Point]:
    """Return the upper envelope: the points that no other point beats, by ascending new score.

    A point is beaten if another is at least as good in both scores. The envelope is level from the lowest
    new score of all points to the first that is not beaten: whoever asks for less of the new task need not
    keep less of the old.

    >>> frontier([(0.9, 0.1), (0.5, 0.8), (0.4, 0.7), (0.9, 0.3)])
    [(0.4, 0.8), (0.5, 0.8), (0.9, 0.3)]
    """
    kept: list[Point] = []
    for new, old in sorted(points, reverse=True):
        if not kept or old > kept[-1][1]:
            kept.append((new, old))
    lowest = min((new for new, _ in points), default=0.0)
    if kept and lowest < kept[-1][0]:
        kept.append((lowest, kept[-1][1]))
    return kept[::-1]


def at(curve: Sequence[Point], new: float) -> float:
    """Return the old score of a frontier at a new score within its range, interpolated linearly."""
    for (left, above), (right, below) in pairwise(curve):
        if left <= new <= right:
            share = (new - left) / (right - left)
            return above + share * (below - above)
    if curve and new == curve[0][0]:
        return curve[0][1]
    raise ValueError(f"{new} is outside the frontier")


@dataclass(frozen=True)
class Gap:
    """The area between two frontiers over the new scores that both reach."""

    low: float
    high: float
    area: float

    @property
    def mean(self) -> float:
        """The mean difference of the old scores at equal new score."""
        return self.area / (self.high - self.low)


def gap(one: Sequence[Point], other: Sequence[Point], *, least: float = 0.0) -> Gap | None:
    """Return the area by which the first frontier lies above the second; negative if it lies below.

    The frontiers are those of the given points. Only new scores from `least` up count. None if the
    frontiers share no range of new scores.

    >>> gap([(0.0, 1.0), (1.0, 0.5)], [(0.0, 0.5), (1.0, 0.5)]).area
    0.25
    """
    first, second = frontier(one), frontier(other)
    if not first or not second:
        return None
    low, high = max(first[0][0], second[0][0], least), min(first[-1][0], second[-1][0])
    if low >= high:
        return None
    # Between neighbouring points of either frontier both are straight, so that the trapezoids are exact.
    inside = {new for new, _ in (*first, *second) if low < new < high}
    places = sorted(inside | {low, high})
    gaps = [at(first, new) - at(second, new) for new in places]
    area = sum(
        (right - left) * (before + after) / 2
        for (left, before), (right, after) in pairwise(zip(places, gaps, strict=True))
    )
    return Gap(low, high, area)


def bootstrap(
    groups: Sequence[Sequence[float]], *, draws: int = 10_000, share: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Return a percentile interval of the mean of the groups' means (Efron 1979).

    Each draw takes groups with replacement, then values within each of them: values of one group, such as
    seeds of one pair of tasks, resemble each other. Every group counts the same, however many values it has.
    """
    draw = random.Random(seed)
    means = []
    for _ in range(draws):
        drawn = [[draw.choice(group) for _ in group] for group in draw.choices(groups, k=len(groups))]
        means.append(fmean(map(fmean, drawn)))
    means.sort()
    outside = round((1 - share) / 2 * draws)
    return means[outside], means[draws - 1 - outside]

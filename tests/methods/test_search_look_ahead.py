"""The search for lambda_down and lambda_up."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers.plans import Result, drive
from hypothesis import given
from hypothesis import strategies as st

from holdfast.methods.search import (
    loosen,
    paper_path,
    rounded,
    short_path,
    slope,
)

# ---- lambda_down and lambda_up -----------------------------------------------------------------------


def follow(score: Callable[[int], float], **options: Any) -> list[tuple[float, float]]:
    """Return all trials of the paper's path if the n-th (from 1) has the score score(n)."""
    scores: list[float] = []
    trials = []
    for trial in paper_path(scores, **options):
        trials.append(trial)
        scores.append(score(len(trials)))
    return trials


def powers(n: int, factor: float = 0.9) -> list[float]:
    return [pytest.approx(factor**i) for i in range(n)]


def test_paper_path_switches_once_when_more_than_fifteen_trials_are_flat() -> None:
    trials = follow(lambda n: 0.5)
    # trials 1..16 shrink lambda_down; then m = .9^1 .. .9^22, the first below .1
    assert [down for down, _ in trials[:16]] == powers(16)
    assert {m for _, m in trials[:16]} == {1.0}
    assert {down for down, _ in trials[16:]} == {trials[15][0]}
    assert [m for _, m in trials[15:]] == powers(23)
    assert len(trials) == 38
    assert trials[-1][1] < 0.1 <= trials[-2][1]


def test_paper_path_never_switches_back() -> None:
    # flat up to trial 16, then rising fast: m continues to shrink, even below .1
    trials = follow(lambda n: 0.5 if n <= 16 else 0.01 * n, budget=60)
    assert {down for down, _ in trials[16:]} == {trials[15][0]}
    assert len(trials) == 60


@pytest.mark.parametrize(("gain", "switches"), [(0.0029, True), (0.0031, False), (-0.01, True)])
def test_paper_path_slope_rule(gain: float, switches: bool) -> None:
    trials = follow(lambda n: 0.5 + gain * n, budget=20)
    assert (trials[-1][1] < 1.0) is switches


def test_paper_path_looks_at_the_last_ten_scores_only() -> None:
    # a jump at trial 10 is in the window of trials 7..16 but not in that of 11..20
    trials = follow(lambda n: 0.1 if n < 10 else 0.9, budget=25)
    switch = next(i for i, (_, m) in enumerate(trials) if m < 1) + 1
    steep = [
        n
        for n in range(16, 25)
        if np.polyfit(range(10), [0.1 if k < 10 else 0.9 for k in range(n - 9, n + 1)], 1)[0] >= 0.003
    ]
    assert switch == max(steep) + 2


@pytest.mark.parametrize("budget", [1, 16, 20, 40])
def test_paper_path_honours_the_budget(budget: int) -> None:
    assert len(follow(lambda n: n / 100, budget=budget)) == budget


def test_paper_path_without_room_for_up_ends_at_the_plateau() -> None:
    trials = follow(lambda n: 0.5, up_matters=False)
    assert len(trials) == 16
    assert {m for _, m in trials} == {1.0}
    assert len(follow(lambda n: n / 100, up_matters=False)) == 40


def test_paper_path_drop() -> None:
    assert [down for down, _ in follow(lambda n: n / 100, drop=0.2, budget=5)] == powers(5, 0.8)


def test_short_path() -> None:
    down = [(1.0, 1.0), (0.3, 1.0), (0.1, 1.0)]
    assert list(short_path([])) == [*down, (0.1, 0.3), (0.1, 0.1)]
    assert list(short_path([], up_matters=False)) == down


def loosened(scores: list[float], target: float) -> tuple[tuple[Result, bool], list[Result]]:
    waiting = iter(scores)
    plan = loosen(short_path, lambda down, up: {"down": down, "up": up}, target)
    return drive(plan, lambda choice: next(waiting))


def test_loosen_stops_at_the_first_that_reaches_the_target() -> None:
    (trial, matched), made = loosened([0.1, 0.5, 0.9, 0.2, 0.3], 0.5)
    assert matched
    assert len(made) == 2
    assert trial is made[1]
    assert trial.choice == {"down": 0.3, "up": 1.0}


def test_loosen_else_keeps_the_best_and_the_earlier_on_ties() -> None:
    (trial, matched), made = loosened([0.1, 0.4, 0.3, 0.4, 0.2], 0.5)
    assert not matched
    assert len(made) == 5
    assert trial is made[1]


def test_loosen_shows_the_path_every_score_so_far() -> None:
    shown: list[list[float]] = []

    def path(scores):
        for _ in range(3):
            yield 1.0, 1.0
            shown.append(list(scores))

    waiting = iter([0.1, 0.2, 0.3])
    drive(loosen(path, lambda down, up: {}, 1.0), lambda choice: next(waiting))
    assert shown == [[0.1], [0.1, 0.2], [0.1, 0.2, 0.3]]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=12))
def test_slope_is_least_squares(values: list[float]) -> None:
    assert slope(values) == pytest.approx(np.polyfit(range(len(values)), values, 1)[0], abs=1e-9)


def test_slope_by_hand_and_one_value_is_not_flat() -> None:
    assert slope([0.1, 0.4, 0.4]) == pytest.approx(0.15)
    assert slope([0.5]) == slope([]) == math.inf


def test_rounded_makes_one_point_of_two_roads() -> None:
    assert rounded(0.1 + 0.2) == rounded(0.3)
    assert rounded(1.23456789012e-7) == 1.23456789e-07
    assert rounded(1.0000001) != rounded(1.0000002)

"""Search plans with a fake trainer: the trials they ask for, their results, the number of trainings."""

import math
from collections.abc import Callable
from typing import Any

import pytest
from helpers.plans import FREE, Result, at, descend, drive
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.methods.search import best_rate, rounded, smallest, strongest, strongest_lam
from holdfast.settings import Settings

# ---- learning rate -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "winner"), [((0.8, 0.8, 0.7), 0), ((0.1, 0.8, 0.8), 1), ((0, 0, 0), 0), ((0.1, 0.2, 0.3), 2)]
)
def test_best_rate_the_first_wins_ties(scores: tuple[float, ...], winner: int) -> None:
    rates = (3e-5, 3e-4, 3e-3)
    best, made = drive(best_rate(rates, {"lam": 0.0}), lambda c: scores[rates.index(c["lr"])])
    assert [trial.choice for trial in made] == [{"lr": rate, "lam": 0.0} for rate in rates]
    assert best is made[winner]


# ---- lambda_max --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 5, 8, 9])
def test_smallest_finds_every_position_and_none(n: int) -> None:
    points = [10.0**i for i in range(n)]
    for first in range(n + 1):
        plan = smallest(points, at, lambda trial: trial.score == 1)
        answer, made = drive(plan, lambda c, first=first: float(points.index(c["lam"]) >= first))
        assert answer == ((points[first], True) if first < n else (points[-1], False))
        assert len(made) <= math.ceil(math.log2(n + 1))  # 4 for the nine points of lambda_max
        assert len({trial.choice["lam"] for trial in made}) == len(made)


# ---- lambda ------------------------------------------------------------------------------------------


def plasticity(choice: dict[str, float]) -> float:
    return 0.9 / (1 + choice["lam"] / 4)  # chsf.md, example A


@pytest.mark.parametrize("engine", ["linear", "bisect"])
def test_chsf_example_a(engine: Any) -> None:
    plan = strongest(10.0, at, lambda t: t.score >= 0.9 * 0.9, FREE, decay=0.9, engine=engine)
    found, made = drive(plan, plasticity)
    assert found.value == pytest.approx(0.423912, abs=5e-7)
    assert found.trial.score == pytest.approx(0.813759, abs=5e-7)
    assert found.trial.choice == at(found.value)
    assert found.flags == ()
    if engine == "linear":
        assert len(made) == 31
        assert made[-1] is found.trial
        assert made[-2].choice["lam"] == pytest.approx(0.471013, abs=5e-7)
        assert made[-2].score == pytest.approx(0.805187, abs=5e-7)
    coarse = strongest(10.0, at, lambda t: t.score >= 0.8 * 0.9, FREE, decay=0.5, engine=engine)
    assert drive(coarse, plasticity)[0].value == 0.625


@pytest.mark.parametrize("steps", [1, 2, 3, 7, 8, 16, 31, 60])
def test_both_engines_agree_on_every_monotone_score(steps: int) -> None:
    grid = [rounded(10.0 * 0.9**j) for j in range(steps + 1)]
    for threshold in [*grid, 0.0]:
        walked, _ = descend(lambda lam, t=threshold: lam <= t, steps=steps, engine="linear")
        halved, tried = descend(lambda lam, t=threshold: lam <= t, steps=steps, engine="bisect")
        assert walked.value == halved.value == threshold
        assert walked.flags == halved.flags == ()
        assert len(tried) <= math.ceil(math.log2(steps)) + 2
        assert set(tried) <= set(grid)
        if threshold == 0.0:  # nothing accepted: the unregularised trial, not trained again
            assert walked.trial is halved.trial is FREE


@settings(max_examples=60)
@given(st.integers(1, 400), st.data())
def test_bisect_uses_few_trainings(steps: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, steps + 1))
    grid = [rounded(10.0 * 0.9**j) for j in range(steps + 1)]
    threshold = grid[first] if first <= steps else 0.0
    found, tried = descend(lambda lam: lam <= threshold, steps=steps)
    assert found.value == threshold
    assert len(tried) <= math.ceil(math.log2(steps)) + 2
    assert len(set(tried)) == len(tried)


@pytest.mark.parametrize("engine", ["linear", "bisect"])
def test_a_start_that_passes_is_taken_and_never_raised(engine: Any) -> None:
    found, tried = descend(lambda lam: True, start=3.0, engine=engine)
    assert (found.value, tried) == (3.0, [3.0])


def test_limit() -> None:
    passes = [10.0 * 0.5**j for j in (6, 7, 8)]  # only the weakest three of the grid 0..8
    options = {"decay": 0.5, "steps": 8}
    found, tried = descend(lambda lam: lam in passes, limit=4, engine="linear", **options)
    assert (found.value, found.trial, found.flags, len(tried)) == (0.0, FREE, ("limit",), 4)
    # bisect: 0 fails, (0+9)//2 = 4 fails, 6 passes; the limit is reached before 5 is tried
    found, tried = descend(lambda lam: lam in passes, limit=3, engine="bisect", **options)
    assert tried == [10.0, 10 * 0.5**4, 10 * 0.5**6]
    assert (found.value, found.flags) == (10 * 0.5**6, ("limit",))
    found, tried = descend(lambda lam: lam in passes, limit=2, engine="bisect", **options)
    assert (found.value, found.trial, found.flags, len(tried)) == (0.0, FREE, ("limit",), 2)
    found, tried = descend(lambda lam: lam in passes, limit=4, engine="bisect", **options)
    assert (found.value, found.flags, len(tried)) == (10 * 0.5**6, (), 4)


@pytest.mark.parametrize("engine", ["linear", "bisect"])
def test_known_trials_are_free_and_do_not_count(engine: Any) -> None:
    def passes(lam: float) -> bool:
        return lam <= 2.5

    known = {lam: Result(at(lam), float(passes(lam))) for lam in (10.0, 5.0, 1.25, 0.3)}  # .3 is off the grid
    found, tried = descend(passes, decay=0.5, steps=8, limit=1, known=known, engine=engine)
    assert (found.value, tried, found.flags) == (2.5, [2.5], ())
    everything = known | {2.5: Result(at(2.5), 1.0)}
    found, tried = descend(passes, decay=0.5, steps=8, limit=0, known=everything, engine=engine)
    assert (found.value, tried) == (2.5, [])
    assert found.trial is everything[2.5]


def test_bisect_does_not_look_above_a_known_failure() -> None:
    grid = [rounded(10.0 * 0.9**j) for j in range(17)]
    known = {grid[j]: Result(at(grid[j]), 0.0) for j in (0, 8)}
    found, tried = descend(lambda lam: lam <= grid[12], steps=16, known=known)
    assert found.value == grid[12]
    assert max(tried) < grid[8]
    assert len(tried) <= 4  # nine possible answers: 9 .. 16 and none


def test_known_points_of_lambda_max_lie_on_the_grid_below_it() -> None:
    # the points 10^i/(lr max alpha) and start · 10^-j must coincide, or trials are repeated
    for scale in (3e-4 * 0.042, 3e-3 * 0.7431, 1.7e-5):
        points = [rounded(10**i / scale) for i in range(9)]
        known = {lam: Result(at(lam), 0.0) for lam in points}
        _, tried = descend(lambda lam: False, start=points[-1], decay=0.1, steps=7, known=known)
        assert tried == []


def test_non_monotone_scores_are_flagged() -> None:
    # grid 16, 8, 4, 2, 1: 16 fails, 8 unknown, 4 passes, 2 is known to fail
    known = {4.0: Result(at(4.0), 1.0), 2.0: Result(at(2.0), 0.0)}
    found, tried = descend(lambda lam: False, start=16.0, decay=0.5, steps=4, known=known)
    assert (found.value, found.flags, tried) == (4.0, ("non-monotone",), [16.0, 8.0])


@given(st.lists(st.booleans(), min_size=2, max_size=30), st.data())
def test_whatever_the_scores_bisect_returns_an_accepted_point_whose_stronger_neighbour_failed(
    verdicts: list[bool], data: st.DataObject
) -> None:
    verdicts[0] = False
    grid = [rounded(10.0 * 0.9**j) for j in range(len(verdicts))]
    shown = data.draw(st.sets(st.integers(1, len(grid) - 1)))
    known = {grid[j]: Result(at(grid[j]), float(verdicts[j])) for j in shown}
    found, tried = descend(lambda lam: verdicts[grid.index(lam)], steps=len(grid) - 1, known=known)
    seen = {**{grid[j]: verdicts[j] for j in shown}, **{lam: verdicts[grid.index(lam)] for lam in tried}}
    place = grid.index(found.value) if found.value else len(grid)
    if found.value:
        assert seen[found.value]
    else:
        assert found.trial is FREE
    assert seen[grid[place - 1]] is False
    assert not any(passed for lam, passed in seen.items() if lam > found.value)
    contradicted = any(not passed for lam, passed in seen.items() if lam < found.value)
    assert found.flags == (("non-monotone",) if contradicted else ())


# ---- lambda_max, then lambda -------------------------------------------------------------------------

POINTS = [10.0**i for i in range(9)]
GOLD = Result({"lam": 0.0}, 0.95)


def search_lam(
    score: Callable[[float], float],
    movement: Callable[[float], float] | None,
    previous: float = 0.0,
    **changes: Any,
) -> tuple[Any, list[float]]:
    plan = strongest_lam(
        POINTS,
        at,
        GOLD,
        accept=lambda trial: trial.score >= 0.9 * 0.95,
        previous=previous,
        movement=movement and (lambda trial: movement(trial.choice["lam"])),
        settings=Settings(**{"lam_decay": 0.1, "lam_steps": 7, "lam_trials": 5} | changes),
    )
    decision, made = drive(plan, lambda choice: score(choice["lam"]))
    return decision, [trial.choice["lam"] for trial in made]


def falling(lam: float) -> float:
    return 0.95 if lam <= 10 else 0.8 if lam <= 100 else 0.5


def stiff(lam: float) -> float:
    return 1 / (1 + lam)  # at most .01 of the free movement from lambda = 99 on


def test_lambda_max_needs_the_score_and_the_movement_of_the_strongest_point() -> None:
    decision, tried = search_lam(falling, stiff)
    assert decision.notes == {"gold": 0.95, "lam_max": 1e3, "flags": []}  # 100 still scores higher
    assert decision.trial.choice == at(10.0)
    assert len(tried) == len(set(tried)) <= 1 + 4 + 2
    decision, _ = search_lam(lambda lam: 0.5, stiff)
    assert decision.notes["lam_max"] == 100.0  # where scores are equal, movement decides
    assert decision.trial is GOLD


def test_a_saturated_task_takes_lambda_max_whatever_was_propagated() -> None:
    for previous in (0.0, 3.0):
        decision, _ = search_lam(lambda lam: 0.94, stiff, previous)
        assert decision.trial.choice == at(100.0)
        assert decision.notes["flags"] == ["saturated"]


def test_a_saturated_task_takes_the_strongest_point_where_lambda_max_falls_short() -> None:
    # thr · gold is .855: λ_max = 100 scores .85, within .01 of the strongest's .858, but too low
    decision, _ = search_lam(lambda lam: 0.858 if lam == POINTS[-1] else 0.85, stiff)
    assert decision.notes == {"gold": 0.95, "lam_max": 100.0, "flags": ["saturated"]}
    assert decision.trial.choice == at(1e8)
    assert decision.trial.score == 0.858


def test_lambda_max_at_the_lowest_point_is_looked_for_further_down() -> None:
    decision, tried = search_lam(lambda lam: 0.95 if lam < 0.05 else 0.0, None)
    assert decision.notes == {"gold": 0.95, "lam_max": 0.1, "flags": []}
    assert tried[:6] == [1e4, 1e2, 1e1, 1.0, 0.1, 0.01]
    assert decision.trial.choice == at(0.01)
    # with the movement as the measure too
    decision, tried = search_lam(lambda lam: 0.5, lambda lam: 1.0 if lam < 0.05 else 0.0)
    assert decision.notes["lam_max"] == 0.1
    assert tried[0] == 1e8


def test_a_model_that_never_learns_is_flagged_floor() -> None:
    decision, tried = search_lam(lambda lam: 0.0, None)
    assert decision.notes["lam_max"] == 1e-4
    assert decision.notes["flags"][0] == "floor"
    assert decision.trial is GOLD
    assert tried[:8] == [1e4, 1e2, 1e1, 1.0, 0.1, 0.01, 1e-3, 1e-4]


def test_weights_that_jitter_however_strong_the_penalty_do_not_push_lambda_max_to_the_top() -> None:
    decision, _ = search_lam(falling, lambda lam: max(stiff(lam), 0.3))
    assert decision.notes["lam_max"] == 1e3
    assert decision.notes["flags"] == []


def test_a_model_that_only_the_strongest_point_holds_is_flagged_ceiling() -> None:
    decision, _ = search_lam(falling, lambda lam: float(lam < 1e8))
    assert decision.notes["lam_max"] == 1e8
    assert decision.notes["flags"][0] == "ceiling"


def test_in_the_printed_setting_lambda_max_is_where_the_score_is_zero() -> None:
    decision, _ = search_lam(lambda lam: 0.95 if lam < 5 else 0.9 if lam < 5e4 else 0.02, None)
    assert decision.notes == {"gold": 0.95, "lam_max": 1e5, "flags": []}
    assert decision.trial.choice == at(1e4)
    # no saturation: the strongest point passes, and the search starts there
    decision, tried = search_lam(lambda lam: 0.9, None)
    assert decision.notes["flags"] == ["ceiling"]
    assert decision.trial.choice == at(1e8)
    assert tried == [1e4, 1e7, 1e8]


@pytest.mark.parametrize(("previous", "start"), [(0.0, 1e3), (50.0, 50.0), (1e6, 1e3)])
def test_the_search_starts_at_the_previous_lambda_but_not_above_lambda_max(
    previous: float, start: float
) -> None:
    decision, tried = search_lam(falling, stiff, previous)
    assert decision.trial.choice["lam"] == rounded(start * 0.1 ** (1 if start == 50 else 2))
    if start == 50.0:
        assert start in tried

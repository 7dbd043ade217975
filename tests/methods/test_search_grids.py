"""Search plans over plain grids with a fake trainer: the first gain, the best of a grid, the λ grid."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from helpers.plans import Result, at, descend, drive
from hypothesis import given
from hypothesis import strategies as st

from holdfast.methods.search import best_of_grid, first_gain, lam_grid, strongest
from holdfast.settings import Settings, preset

scores = st.integers(0, 4).map(lambda n: n / 4)  # few values: many ties


# ---- up a grid to the first gain ----------------------------------------------------------------------

POINTS = [0.01, 0.02, 0.04]
BASE = Result(at(0.0), 0.5)


def climb(values: list[float], target: float = 0.9) -> tuple[Any, bool, list[Result]]:
    table = dict(zip(POINTS, values, strict=True))
    (trial, gained), made = drive(first_gain(POINTS, at, BASE, target), lambda c: table[c["lam"]])
    return trial, gained, made


@pytest.mark.parametrize(
    ("values", "tried", "gained"),
    [
        ([0.51, 0.9, 0.9], 1, True),
        ([0.4, 0.6, 0.9], 2, True),
        ([0.5, 0.5, 0.500001], 3, True),
        ([0.5, 0.5, 0.5], 3, False),  # a tie with the base is no gain
        ([0.4, 0.3, 0.2], 3, False),
    ],
)
def test_the_first_that_beats_the_base_ends_it(values, tried, gained):
    trial, found, made = climb(values)
    assert [one.choice for one in made] == [at(point) for point in POINTS[:tried]]
    assert found is gained
    assert trial is (made[-1] if gained else BASE)


def test_reaching_the_target_ends_it_where_the_base_lies_above():
    trial, gained, made = climb([0.29, 0.3, 0.5], target=0.3)
    assert (trial, gained, len(made)) == (made[1], True, 2)
    trial, gained, made = climb([0.5, 0.4, 0.4], target=0.5)
    assert (trial, gained, len(made)) == (made[0], True, 1), "the target itself is enough"


def test_an_empty_grid_is_the_base():
    assert drive(first_gain([], at, BASE, 0.0), lambda c: 1.0) == ((BASE, False), [])


def test_points_are_asked_for_one_by_one():
    asked = []

    def points():
        for point in POINTS:
            asked.append(point)
            yield point

    drive(first_gain(points(), at, BASE, 0.9), lambda c: 0.4 if c["lam"] < 0.02 else 0.6)
    assert asked == [0.01, 0.02]


@given(st.lists(scores, max_size=8), scores, scores)
def test_first_gain_by_slow_loop(values, base, target):
    start = Result(at(0.0), base)
    points = [float(i + 1) for i in range(len(values))]
    (trial, gained), made = drive(first_gain(points, at, start, target), lambda c: values[int(c["lam"]) - 1])
    good = [i for i, value in enumerate(values) if value > base or value >= target]
    assert gained is bool(good)
    assert len(made) == (good[0] + 1 if good else len(values))
    assert trial is (made[-1] if good else start)


# ---- the best of rates and a grid ---------------------------------------------------------------------

RATES = (1e-4, 1e-3, 1e-2)
GRID = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 1}, {"a": 2, "b": 2}]


def best_of(score: Any, *, product: bool, rates: Any = RATES, grid: Any = GRID) -> tuple[Any, list[Result]]:
    return drive(best_of_grid(rates, grid, product=product), score)


def key(choice: dict[str, Any]) -> tuple[float, ...]:
    return choice["lr"], choice["a"], choice["b"]


def test_a_product_tries_every_pair_once():
    best, made = best_of(lambda c: 0.9 if key(c) == (1e-4, 2, 1) else 0.5, product=True)
    every = {(lr, point["a"], point["b"]) for lr, point in product(RATES, GRID)}
    tried = [key(trial.choice) for trial in made]
    assert len(tried) == len(RATES) * len(GRID) == len(set(tried))
    assert set(tried) == every
    assert all(set(trial.choice) == {"lr", "a", "b"} for trial in made)
    assert key(best.choice) == (1e-4, 2, 1), "though 1e-4 is not the best rate at the first point"


def test_after_the_rates_the_grid_is_tried_at_the_best_of_them():
    best, made = best_of(lambda c: 0.5 + 0.1 * (c["lr"] == 1e-3) + 0.01 * c["b"], product=False)
    tried = [key(trial.choice) for trial in made]
    assert tried == [
        (1e-4, 1, 1),
        (1e-3, 1, 1),
        (1e-2, 1, 1),
        (1e-3, 1, 2),
        (1e-3, 2, 1),
        (1e-3, 2, 2),
    ]
    assert best is made[3], "(2, 2) has the same score, but comes later"


def test_after_the_rates_the_rate_does_not_change_any_more():
    """A better point does not lead to other rates."""
    _, made = best_of(lambda c: 0.9 if c["a"] == 2 else 0.1 * (c["lr"] == 1e-2), product=False)
    assert {trial.choice["lr"] for trial in made[3:]} == {1e-2}
    assert len(made) == len(RATES) + len(GRID) - 1


@pytest.mark.parametrize("whole", [True, False])
def test_of_equals_the_earliest_is_taken(whole):
    best, made = best_of(lambda c: 0.5, product=whole)
    assert best is made[0]
    best, made = best_of(lambda c: 0.5 + 0.1 * (c["a"] == 2), product=whole)
    assert best is next(trial for trial in made if trial.choice["a"] == 2)


@pytest.mark.parametrize("whole", [True, False])
def test_one_rate_and_one_point(whole):
    best, made = best_of(lambda c: 0.0, product=whole, rates=RATES[:1], grid=GRID[:1])
    assert [trial.choice for trial in made] == [{"lr": 1e-4, "a": 1, "b": 1}]
    assert best is made[0]
    _, made = best_of(lambda c: 0.0, product=whole, rates=RATES[:1])
    assert len(made) == 4, "with one rate both modes are equal"
    _, made = best_of(lambda c: 0.0, product=whole, grid=GRID[:1])
    assert len(made) == 3, "with one point both modes are the rate search"


@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.data())
def test_best_of_grid_by_slow_loop(rates, points, whole, data):
    table = data.draw(st.lists(scores, min_size=rates * points, max_size=rates * points))
    every = [10.0**-i for i in range(rates)]

    def score(choice: dict[str, Any]) -> float:
        return table[every.index(choice["lr"]) * points + choice["p"]]

    grid = [{"p": p} for p in range(points)]
    before = [dict(point) for point in grid]
    best, made = best_of(score, product=whole, rates=every, grid=grid)
    assert grid == before
    tried = [(trial.choice["lr"], trial.choice["p"]) for trial in made]
    assert len(set(tried)) == len(tried) == (rates * points if whole else rates + points - 1)
    highest = max(trial.score for trial in made)
    assert best is next(trial for trial in made if trial.score == highest)
    if not whole:
        column = table[::points]
        assert {lr for lr, p in tried if p} <= {every[column.index(max(column))]}


# ---- the λ grid of a run ------------------------------------------------------------------------------


def test_lam_grid_says_how_a_run_walks():
    settings = Settings(lam_decay=0.3, lam_steps=11, lam_trials=4, engine="linear")
    assert lam_grid(settings) == {"decay": 0.3, "steps": 11, "limit": 4, "engine": "linear"}
    assert lam_grid(Settings()) == {"decay": 0.9, "steps": 175, "limit": None, "engine": "bisect"}
    assert lam_grid(preset("small")) == {"decay": 0.1, "steps": 7, "limit": 5, "engine": "bisect"}


@pytest.mark.parametrize("trials", [1, 3, None])
@pytest.mark.parametrize("steps", [2, 5])
def test_the_search_for_lambda_obeys_it(trials, steps):
    settings = Settings(lam_decay=0.5, lam_steps=steps, lam_trials=trials, engine="linear")
    found, tried = descend(lambda lam: False, start=8.0, **lam_grid(settings))
    assert tried == [8.0 * 0.5**j for j in range(min(steps + 1, trials or 99))]
    assert found.value == 0.0
    assert found.flags == (("limit",) if trials and trials <= steps else ())


def test_it_is_what_strongest_takes():
    """Without settings, `strongest` uses the grid of a run with default settings."""

    def walk(**options: Any) -> list[Any]:
        plan = strongest(10.0, at, lambda trial: trial.score > 0, BASE, **options)
        return [trial.choice for trial in drive(plan, lambda c: float(c["lam"] < 0.3))[1]]

    assert walk() == walk(**lam_grid(Settings()))
    assert walk() != walk(**lam_grid(preset("small")))

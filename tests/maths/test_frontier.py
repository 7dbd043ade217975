"""The frontier and the area between two of them, by hand and by a slow obvious sum."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.maths.frontier import Point, at, bootstrap, frontier, gap

scores = st.floats(0, 1).map(lambda value: round(value, 3))
clouds = st.lists(st.tuples(scores, scores), min_size=2, max_size=8)

LA = [(0.2, 0.9), (0.6, 0.8), (1.0, 0.2), (0.5, 0.5)]  # the last is beaten by (0.6, 0.8)
MAS = [(0.4, 0.7), (0.8, 0.3), (0.9, 0.1)]


def test_the_area_by_hand() -> None:
    # Shared: 0.4 to 0.9. LA there: .85 at .4, .8 at .6, .5 at .8, .35 at .9. MAS: .7, .5, .3, .1.
    # Gaps .15, .3, .2, .25: trapezoids .2(.225) + .2(.25) + .1(.225) = .045 + .05 + .0225
    found = gap(LA, MAS)
    assert found is not None
    assert (found.low, found.high) == (0.4, 0.9)
    assert found.area == pytest.approx(0.1175)
    assert found.mean == pytest.approx(0.235)


def test_a_curve_is_level_where_asking_for_less_keeps_no_more() -> None:
    # MAS is beaten at .2 by its point at .6: level at .5 from .2 to .6. Gaps .3 all along.
    found = gap([(0.1, 0.8), (0.7, 0.8)], [(0.2, 0.3), (0.6, 0.5)])
    assert found is not None
    assert (found.low, found.high) == (0.2, 0.6)
    assert found.area == pytest.approx(0.12)


def test_only_scores_from_the_least_count() -> None:
    found = gap(LA, MAS, least=0.8)
    assert found is not None
    assert found.area == pytest.approx(0.0225)


def test_curves_without_a_common_range_cannot_be_compared() -> None:
    assert gap([(0.1, 0.9), (0.2, 0.8)], [(0.5, 0.9), (0.9, 0.1)]) is None
    assert gap(LA, MAS, least=0.95) is None
    assert gap([], MAS) is None
    assert gap([(0.5, 0.5)], MAS) is None, "a single point has no range"
    with pytest.raises(ValueError, match="outside"):
        at(frontier(MAS), 0.95)


@given(clouds)
def test_no_point_of_the_frontier_is_beaten(points: list[Point]) -> None:
    """The slow way: compare every point with every other."""

    def beaten(point: Point) -> bool:
        return any(new >= point[0] and old >= point[1] and (new, old) != point for new, old in points)

    best = sorted({point for point in points if not beaten(point)})
    level = [(low, best[0][1])] if (low := min(points)[0]) < best[0][0] else []
    assert frontier(points) == level + best


@given(clouds, clouds)
def test_the_area_is_the_sum_of_many_thin_slices(one: list[Point], other: list[Point]) -> None:
    found, back = gap(one, other), gap(other, one)
    if found is None or back is None:
        assert found is back is None
        return
    assert back.area == pytest.approx(-found.area)
    first, second, slices = frontier(one), frontier(other), 4000
    width = (found.high - found.low) / slices
    middles = [found.low + (i + 0.5) * width for i in range(slices)]
    assert sum(at(first, new) - at(second, new) for new in middles) * width == pytest.approx(
        found.area, abs=2e-3
    )


def test_the_interval_takes_groups_as_they_are() -> None:
    # Three groups without spread: a draw's mean is that of three of them, 1/27 of draws are all 0.
    low, high = bootstrap([[0.0, 0.0], [0.3, 0.3], [0.6, 0.6]], draws=4000)
    assert (low, high) == (0.0, pytest.approx(0.6))
    assert bootstrap([[0.2, 0.2]]) == (pytest.approx(0.2), pytest.approx(0.2))
    low, high = bootstrap([[0.0, 1.0]] * 50, draws=2000)  # sd of the mean of 100: 0.05
    assert low == pytest.approx(0.4, abs=0.03)
    assert high == pytest.approx(0.6, abs=0.03)
    assert bootstrap([[0.1, 0.5, 0.9]]) == bootstrap([[0.1, 0.5, 0.9]]), "the same draws every time"

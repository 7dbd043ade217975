"""Figures as SVG: every value is where its axis says."""

from __future__ import annotations

import re

import pytest

from holdfast.report.drawing import Drawing, Shape, drawn
from holdfast.report.plots import Axis, Figure, Grid, Plot, Ridges, Series


def plotted(*series: Series, x: Axis | None = None, y: Axis | None = None) -> Drawing:
    return drawn(Figure("t", Plot(list(series), x or Axis("x"), y or Axis("y"))))


def circles(drawing: Drawing) -> list[tuple[float, float]]:
    found = [shape.attributes for shape in drawing.shapes if shape.tag == "circle"]
    return [(float(one["cx"]), float(one["cy"])) for one in found]


def tick(drawing: Drawing, text: str, axis: str) -> float:
    """Return where the tick with this text is; the texts of the y axis end at it."""
    end = {"x": "middle", "y": "end"}[axis]
    [found] = [one for one in drawing.shapes if one.text == text and one.attributes.get("text-anchor") == end]
    return float(found.attributes["x"]) if axis == "x" else float(found.attributes["y"]) - 4


def dots(x: list[float], y: list[float | None], **rest: object) -> Series:
    return Series("a", x, y, "#123456", mark="dot", **rest)  # type: ignore[arg-type]


def test_points_are_where_the_ticks_of_their_values_are() -> None:
    drawing = plotted(dots([0, 1, 2], [10, 40, 20]))
    found = circles(drawing)
    assert [x for x, _ in found] == pytest.approx([tick(drawing, text, "x") for text in "012"], abs=0.2)
    assert [y for _, y in found] == pytest.approx(
        [tick(drawing, t, "y") for t in ("10", "40", "20")], abs=0.2
    )
    assert found[1][1] < found[2][1] < found[0][1], "larger values are higher up"


def test_a_log_axis_has_equal_distances_for_equal_factors() -> None:
    drawing = plotted(dots([0.01, 1, 100], [1, 1, 1]), x=Axis("λ", log=True))
    (left, _), (middle, _), (right, _) = circles(drawing)
    assert middle - left == pytest.approx(right - middle, abs=0.2)
    assert tick(drawing, "0.01", "x") == pytest.approx(left, abs=0.2)
    assert tick(drawing, "100", "x") == pytest.approx(right, abs=0.2)


def test_a_reversed_axis_has_small_values_on_top() -> None:
    (_, low), (_, high) = circles(plotted(dots([0, 1], [5, 50]), y=Axis("CF", reversed=True)))
    assert low < high


def test_a_missing_value_interrupts_the_line() -> None:
    drawing = plotted(dots([0, 1, 2, 3], [1, None, 2, 3]))
    [path] = [one.attributes["d"] for one in drawing.shapes if one.tag == "path"]
    assert re.sub(r"[\d. ]", "", path) == "MML"
    assert len(circles(drawing)) == 3


def test_intervals_end_at_their_values_and_stand_beside_each_other() -> None:
    spans = [(10.0, 30.0), None]
    drawing = plotted(dots([0, 1], [20, 20], spans=spans), dots([0, 1], [20, 20], spans=spans))
    bars = [one.attributes["d"] for one in drawing.shapes if one.attributes.get("opacity") == "0.45"]
    assert len(bars) == 2
    x, low, high = map(float, re.match(r"M([\d.]+) ([\d.]+)V([\d.]+)", bars[0]).groups())  # type: ignore[union-attr]
    assert (low, high) == pytest.approx((tick(drawing, "10", "y"), tick(drawing, "30", "y")), abs=0.2)
    assert x == circles(drawing)[0][0]
    assert circles(drawing)[2][0] - x == pytest.approx(6)


def test_the_legend_names_each_series_once() -> None:
    drawing = plotted(dots([0], [1]), dots([1], [2]), Series("b", [0], [1], "red", named=False))
    assert [entry.name for entry in drawing.legend] == ["a"]


@pytest.mark.parametrize("values", [[0.0], [5.0, 5.0], [-3.0, 4.0], [1e-9, 2e-9], [1e6, 1e12]])
@pytest.mark.parametrize("log", [False, True])
def test_any_values_can_be_drawn(values: list[float], log: bool) -> None:
    values = [abs(value) or 1.0 for value in values] if log else values
    drawing = plotted(dots(values, [*values]), x=Axis("x", log=log), y=Axis("y", log=log))
    assert all(0 <= x <= drawing.width and 0 <= y <= drawing.height for x, y in circles(drawing))
    texts = [one.text for one in drawing.shapes if one.tag == "text"]
    assert len(texts) >= 4, "ticks on both axes"


def test_a_row_of_a_histogram_is_as_high_as_its_share() -> None:
    rows = [("first", [0.0, 50.0, 0.0, 50.0], 0.25), ("second", [100.0, 0.0, 0.0, 0.0], 0.5)]
    drawing = drawn(Figure("t", Ridges(rows, "ρ")))
    hills = [one for one in drawing.shapes if one.attributes.get("class") == "hill"]
    steps = [[float(step) for step in re.findall(r"v(-?[\d.]+)", hill.attributes["d"])] for hill in hills]
    assert steps[1] == [-13.0, 13.0, 0.0, 0.0, 0.0], "the highest share fills the row"
    assert steps[0] == [0.0, -6.5, 6.5, -6.5, 6.5]
    cuts = [float(one.attributes["x1"]) for one in drawing.shapes if one.attributes.get("class") == "cut"]
    assert cuts[1] - cuts[0] == pytest.approx(310 * 0.25, abs=0.2)


def test_a_matrix_shows_counts_where_there_are_some() -> None:
    grid = Grid(["on", "off"], [[3, 1], [0, 4]], [[0.75, 0.25], [0.0, 1.0]])
    drawing = drawn(Figure("t", grid))
    cells: list[Shape] = [one for one in drawing.shapes if one.attributes.get("class") == "cell"]
    assert [one.told for one in cells] == ["on as on: 3", "on as off: 1", "off as off: 4"]
    assert [one.attributes["opacity"] for one in cells] == ["0.75", "0.25", "1.00"]
    across = [float(one.attributes["x"]) for one in cells]
    assert across[0] < across[1] == across[2]


def test_long_names_are_cut_and_told_whole() -> None:
    long = "a very long name of a label that nobody can read at a glance"
    drawing = drawn(Figure("t", Grid([long], [[1]], [[1.0]])))
    short = next(one for one in drawing.shapes if one.text.endswith("…"))
    assert long.startswith(short.text[:-1])
    assert short.told == long

"""Figures as shapes of an SVG image. A template writes the tags, so every name is escaped there.

Pages need no script and no library to show figures: they work offline, in print and in dark mode, where CSS
changes the colours of axes and text.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from holdfast.report.plots import Axis, Dash, Figure, Grid, Plot, Ridges, Series

WIDTH = 480.0
LETTER = 6.3  # the width of an average letter of the axis text
LONGEST = 40  # maximum number of characters of a name beside a row
DASHES: dict[Dash, str] = {"dash": "7 4", "dot": "2 3"}
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


class Shape(NamedTuple):
    """An SVG element; `told` is what a reader sees who points at it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""
    told: str = ""


class Swatch(NamedTuple):
    """A line of the legend: a name, and the shapes that stand for it in a box of 26 x 12."""

    name: str
    shapes: list[Shape]


@dataclass
class Drawing:
    """An SVG image and its legend."""

    width: float
    height: float
    shapes: list[Shape] = field(default_factory=list)
    legend: list[Swatch] = field(default_factory=list)
    fixed: bool = False
    """Whether it keeps its size and scrolls on a narrow screen, because it has a row for each name."""

    def add(self, tag: str, text: str = "", told: str = "", /, **attributes: str | float | None) -> None:
        """Add a shape; numbers are rounded to a tenth, absent attributes left out."""
        self.shapes.append(Shape(tag, _written(attributes), text, told))


def drawn(figure: Figure) -> Drawing:
    """Return a figure as shapes."""
    match figure.content:
        case Plot():
            return _plot(figure.content)
        case Ridges():
            return _ridges(figure.content)
        case Grid():
            return _grid(figure.content)


# ---- lines and points ------------------------------------------------------------------------------------


def _plot(plot: Plot) -> Drawing:
    xs = [x for one in plot.series for x in one.x]
    ys = [y for one in plot.series for y in one.y if y is not None]
    ys += [end for one in plot.series for span in one.spans if span for end in span]
    wide, high = _span(plot.x, xs), _span(plot.y, ys)
    marked = _ticks(plot.y, *high)
    left = 26 + LETTER * max(len(text) for _, text in marked)
    drawing = Drawing(WIDTH, plot.height)
    right, top, bottom = WIDTH - 12, 8.0, plot.height - 40.0
    at_x, at_y = _scale(plot.x, wide, (left, right)), _scale(plot.y, high, (bottom, top))
    for value, text in marked:
        y = at_y(value)
        drawing.add("line", **{"class": "grid"}, x1=left, x2=right, y1=y, y2=y)
        drawing.add("text", text, x=left - 5, y=y + 4, **{"text-anchor": "end"})
    for value, text in _ticks(plot.x, *wide, most=int((right - left) / 45)):
        x = at_x(value)
        drawing.add("line", **{"class": "grid"}, x1=x, x2=x, y1=top, y2=bottom)
        drawing.add("text", text, x=x, y=bottom + 15, **{"text-anchor": "middle"})
    middle = (top + bottom) / 2
    drawing.add("text", plot.x.title, x=(left + right) / 2, y=plot.height - 6, **{"text-anchor": "middle"})
    turned = f"rotate(-90 11 {middle:.1f})"
    drawing.add("text", plot.y.title, x=11, y=middle, transform=turned, **{"text-anchor": "middle"})
    shifts = iter(_shifts(sum(any(one.spans) for one in plot.series)))
    for one in plot.series:
        # Intervals of several series at one place stand beside each other.
        shift = next(shifts) if any(one.spans) else 0.0
        places = [
            (at_x(x) + shift, None if y is None else at_y(y)) for x, y in zip(one.x, one.y, strict=True)
        ]
        _series(drawing, one, places, at_y)
        if one.named and one.name not in {entry.name for entry in drawing.legend}:
            drawing.legend.append(Swatch(one.name, _sample(one)))
    return drawing


Spot = tuple[float, float | None]


def _series(drawing: Drawing, one: Series, places: Sequence[Spot], at_y: Callable[[float], float]) -> None:
    for (x, _), span in zip(places, one.spans, strict=False):
        if span is not None:
            low, high = at_y(span[0]), at_y(span[1])
            path = f"M{x:.1f} {low:.1f}V{high:.1f}M{x - 2.5:.1f} {low:.1f}h5M{x - 2.5:.1f} {high:.1f}h5"
            drawing.add("path", d=path, stroke=one.colour, fill="none", opacity="0.45")
    if one.line:
        path, begun = "", False
        for x, y in places:
            if y is not None:
                path += f"{'L' if begun else 'M'}{x:.1f} {y:.1f}"
            begun = y is not None
        drawing.add("path", d=path, **_stroke(one))
    for number, (x, y) in enumerate(places):
        if one.mark and y is not None:
            told = one.words[number] if number < len(one.words) else ""
            drawing.shapes.append(_mark(one, x, y, told or one.name))


def _stroke(one: Series) -> dict[str, str | float | None]:
    dash = DASHES.get(one.line)
    return {"stroke": one.colour, "stroke-width": one.width, "stroke-dasharray": dash, "fill": "none"}


def _mark(one: Series, x: float, y: float, told: str = "") -> Shape:
    size = one.size
    faint = "0.45" if one.faint else None
    if one.mark in ("dot", "ring"):
        ring: dict[str, str | float | None] = {"fill": "none", "stroke": one.colour, "stroke-width": 2.5}
        look = ring if one.mark == "ring" else {"fill": one.colour}
        return Shape("circle", _written({"cx": x, "cy": y, "r": size, "opacity": faint, **look}), "", told)
    if one.mark == "diamond":
        path = (
            f"M{x:.1f} {y - size:.1f}l{size:.1f} {size:.1f}l{-size:.1f} {size:.1f}l{-size:.1f} {-size:.1f}z"
        )
        return Shape("path", _written({"d": path, "fill": one.colour, "opacity": faint}), "", told)
    corner = f"M{x - size:.1f} {y - size:.1f}"
    path = f"{corner}l{2 * size:.1f} {2 * size:.1f}m0 {-2 * size:.1f}l{-2 * size:.1f} {2 * size:.1f}"
    look = {"d": path, "stroke": one.colour, "stroke-width": 1.4, "fill": "none", "opacity": faint}
    return Shape("path", _written(look), "", told)


def _sample(one: Series) -> list[Shape]:
    line = [Shape("path", _written({"d": "M1 6h24", **_stroke(one)}))] if one.line else []
    return line + ([_mark(one, 13.0, 6.0)] if one.mark else [])


def _shifts(count: int) -> list[float]:
    """Return the distances by which series with intervals are moved sideways."""
    step = min(6.0, 48.0 / max(count, 1))
    return [(number - (count - 1) / 2) * step for number in range(count)]


# ---- axes ------------------------------------------------------------------------------------------------


def _span(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of an axis: its own, or those of the values with some room."""
    found = [value for value in values if not axis.log or value > 0] or [1.0]
    low, high = min(found), max(found)
    if axis.log:
        room = (high / low) ** 0.04 if high > low else 2.0
        low, high = low / room, high * room
    else:
        room = 0.05 * (high - low) or max(abs(high) * 0.05, 0.5)
        low, high = low - room, high + room
    return (low if axis.low is None else axis.low, high if axis.high is None else axis.high)


def _scale(axis: Axis, ends: tuple[float, float], room: tuple[float, float]) -> Callable[[float], float]:
    """Return a function from a value to its place."""
    turn: Callable[[float], float] = math.log if axis.log else float
    low, high = map(turn, ends)
    first, last = room[::-1] if axis.reversed else room

    def place(value: float) -> float:
        inside = min(max(value, ends[0]), ends[1])
        return first + (turn(inside) - low) / ((high - low) or 1.0) * (last - first)

    return place


def _ticks(axis: Axis, low: float, high: float, *, most: int = 7) -> list[tuple[float, str]]:
    """Return round values between two ends, and how they are written.

    >>> [text for _, text in _ticks(Axis("x"), 0, 100)]
    ['0', '20', '40', '60', '80', '100']
    >>> [text for _, text in _ticks(Axis("x", log=True), 1e-5, 10)]
    ['10⁻⁵', '10⁻⁴', '0.001', '0.01', '0.1', '1', '10']
    """
    if axis.log:
        powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
        values = [10.0**power for power in powers[:: math.ceil(len(powers) / most) or 1]]
        return [(value, _power(value)) for value in values] or [(low, f"{low:.3g}"), (high, f"{high:.3g}")]
    size = 10 ** math.floor(math.log10((high - low) / most))
    step = next(size * by for by in (1, 2, 5, 10, 20) if (high - low) / (size * by) <= most)
    step = max(1.0, step) if axis.whole else step
    first = math.ceil(low / step - 1e-9)
    count = math.floor(high / step + 1e-9) - first + 1
    return [(step * (first + number), f"{step * (first + number):.6g}") for number in range(count)]


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    return f"{value:g}" if -3 <= exponent <= 3 else f"10{str(exponent).translate(SUPERSCRIPT)}"


# ---- a row for each name ---------------------------------------------------------------------------------


def _ridges(ridges: Ridges) -> Drawing:
    step, top = 14.0, 6.0
    left = 10 + max((_breadth(_short(name)) for name, *_ in ridges.rows), default=0)
    width, bottom = left + 320, top + step * len(ridges.rows) + 4
    drawing = Drawing(width, bottom + 34, fixed=True)
    highest = max((share for _, shares, _ in ridges.rows for share in shares), default=0) or 1.0
    for tick in range(6):
        x = left + 310 * tick / 5
        drawing.add("line", **{"class": "grid"}, x1=x, x2=x, y1=top, y2=bottom)
        drawing.add("text", f"{tick / 5:g}", x=x, y=bottom + 13, **{"text-anchor": "middle"})
    drawing.add("text", ridges.title, x=left + 155, y=bottom + 28, **{"text-anchor": "middle"})
    for number, (name, shares, mark) in enumerate(ridges.rows):
        base = top + step * (number + 1)
        bar = 310 / len(shares)
        path = f"M{left:.1f} {base:.1f}"
        for before, share in pairwise([0.0, *shares, 0.0]):
            path += f"v{(before - share) / highest * (step - 1):.1f}h{bar:.1f}"
        path = path[: path.rindex("h")]
        drawing.add("path", "", name, **{"class": "hill"}, d=f"{path}z")
        _name(drawing, name, x=left - 6, y=base - 3)
        at = left + 310 * mark
        drawing.add("line", **{"class": "cut"}, x1=at, x2=at, y1=base - step + 2, y2=base)
    return drawing


def _grid(grid: Grid) -> Drawing:
    cell = 24.0
    breadth = max((_breadth(_short(name)) for name in grid.names), default=0)
    left, side = 30 + breadth, cell * len(grid.names)
    low = side + 22 + 0.77 * breadth  # names below are turned by 50 degrees
    drawing = Drawing(left + side + 16, low + 18, fixed=True)
    drawing.add("rect", **{"class": "frame"}, x=left, y=4, width=side, height=side)
    for down, (name, counts, shares) in enumerate(zip(grid.names, grid.counts, grid.shares, strict=True)):
        _name(drawing, name, x=left - 6, y=4 + cell * (down + 0.65))
        x, y = left + cell * (down + 0.6), side + 16
        _name(drawing, name, x=x, y=y, transform=f"rotate(-50 {x:.1f} {y:.1f})")
        for across, (count, share) in enumerate(zip(counts, shares, strict=True)):
            if not count:
                continue
            x, y = left + cell * across, 4 + cell * down
            told = f"{name} as {grid.names[across]}: {count}"
            shade = f"{max(share, 0.06):.2f}"
            drawing.add(
                "rect", "", told, **{"class": "cell"}, x=x, y=y, width=cell, height=cell, opacity=shade
            )
            if grid.numbered:
                kind = "strong" if share > 0.55 else "count"
                where: dict[str, str | float] = {
                    "x": x + cell / 2,
                    "y": y + cell * 0.66,
                    "text-anchor": "middle",
                }
                drawing.add("text", str(count), **{"class": kind}, **where)
    drawing.add("text", "predicted", x=left + side / 2, y=low + 12, **{"text-anchor": "middle"})
    turned = f"rotate(-90 11 {side / 2:.1f})"
    drawing.add("text", "true", x=11, y=side / 2, transform=turned, **{"text-anchor": "middle"})
    return drawing


def _name(drawing: Drawing, name: str, **where: str | float) -> None:
    short = _short(name)
    drawing.add("text", short, name if short != name else "", **where, **{"text-anchor": "end"})


def _short(name: str) -> str:
    name = " ".join(name.split())
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def _breadth(text: str) -> float:
    """Return the approximate width of a text; some scripts have wide letters."""
    return sum(2 * LETTER if unicodedata.east_asian_width(letter) in "WF" else LETTER for letter in text)


def _written(attributes: dict[str, str | float | None]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")
        for name, value in attributes.items()
        if value is not None
    }

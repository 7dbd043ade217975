"""Figures as values: what is drawn, not where each line goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Dash = Literal["", "solid", "dash", "dot"]
"""How points are joined; not at all with ""."""
Mark = Literal["", "dot", "diamond", "cross", "ring"]


@dataclass(frozen=True)
class Axis:
    """An axis; it spans the values it has to show unless its ends are fixed."""

    title: str
    log: bool = False
    reversed: bool = False
    whole: bool = False
    """Whether only integers are marked."""
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one name and colour; a missing y interrupts the line."""

    name: str
    x: Sequence[float]
    y: Sequence[float | None]
    colour: str
    line: Dash = "solid"
    mark: Mark = ""
    width: float = 1.8
    size: float = 3.2
    faint: bool = False
    named: bool = True
    """Whether the legend has it."""
    spans: Sequence[tuple[float, float] | None] = ()
    """The ends of an interval around each point."""
    words: Sequence[str] = ()
    """What a reader sees who points at each mark."""


@dataclass(frozen=True)
class Plot:
    """Series over two axes."""

    series: list[Series]
    x: Axis
    y: Axis
    height: int = 300


@dataclass(frozen=True)
class Ridges:
    """One histogram per row over equal bins from 0 to 1, with a mark; the bins of a row add up to 100."""

    rows: list[tuple[str, list[float], float]]
    """Name, percent in each bin, position of the mark."""
    title: str


@dataclass(frozen=True)
class Grid:
    """Counts of true labels (down) and predicted labels (across), shaded by the share of their row."""

    names: list[str]
    counts: list[list[int]]
    shares: list[list[float]]
    numbered: bool = True
    """Whether cells show their count."""


@dataclass(frozen=True)
class Figure:
    """A drawing with a title."""

    title: str
    content: Plot | Ridges | Grid
    note: str = ""
    record: str = ""
    """Digest of the record it shows, if it shows only one."""

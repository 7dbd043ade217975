"""Self-contained HTML pages of tables and figures, made from the templates in `templates/`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.errors import require
from holdfast.report import figures as draw
from holdfast.report.figures import Figure
from holdfast.report.runs import Run, Section
from holdfast.report.tables import Table
from holdfast.storage.files import write_text

MOST_SPREADS = 12  # maximum number of runs of a section whose relative importance is drawn
ROOM = 6_000_000  # approximate bytes of a page for search traces and relative importance
NAMED = 12  # maximum number of missing runs listed by name
ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Gallery:
    """Figures that a page shows, and the number of those left out."""

    drawn: list[Figure]
    left_out: int


@dataclass(frozen=True)
class ScoreMatrix:
    """The test scores of a run: a row per task learnt, a column per task tested."""

    run: Run
    tasks: list[str]
    rows: list[tuple[str, Sequence[float | None]]]


@dataclass(frozen=True)
class PageSection:
    """One section of a report as the template shows it."""

    title: str
    anchor: str
    about: str
    missing: str
    tables: list[Table]
    folded: list[Table]
    figures: list[Figure]
    matrices: list[ScoreMatrix]
    traces: Gallery
    spreads: Gallery


def write_page(
    path: Path, sections: Sequence[tuple[Section, list[Table], list[Figure]]], complaints: Sequence[str]
) -> Path:
    """Write the page of a report."""
    room = Room(ROOM)
    shown = [_section(*section, room) for section in sections]
    drawn = any(one.figures or one.traces.drawn or one.spreads.drawn for one in shown)
    about = (
        "Tasks come one after another; no old data is kept and no task id is given. Scores are macro-F1 "
        "× 100 on test sentences. Numbers link to the records they come from."
    )
    return render(path, "report.html", about=about, sections=shown, complaints=complaints, drawn=drawn)


def write_simple_page(
    path: Path, *, about: str, note: str = "", missing: str = "", figures: list[Figure], tables: list[Table]
) -> Path:
    """Write a page of one section: notes, figures, tables."""
    return render(
        path,
        "simple.html",
        about=about,
        note=note,
        missing=missing,
        figures=figures,
        tables=tables,
        drawn=bool(figures),
    )


def render(path: Path, template: str, **context: Any) -> Path:
    """Fill a template and write the page, which needs no other file to be displayed."""
    jinja2 = require("jinja2", "bench")
    safe: Callable[[str], str] = require("markupsafe", "bench").Markup
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.globals["asset"] = lambda name: safe((ASSETS / name).read_text(encoding="utf-8"))
    environment.globals["plotly"] = lambda: safe(require("plotly.offline", "bench").get_plotlyjs())
    write_text(path, environment.get_template(template).render(**context))
    return path


class Room:
    """The approximate number of bytes of a page left for optional figures."""

    def __init__(self, size: int) -> None:
        self.left = size

    def fill(self, figures: Iterable[Figure]) -> Gallery:
        """Keep figures until the room is used up; the last one may exceed it."""
        drawn, left_out = [], 0
        for figure in figures:
            if self.left > 0:
                self.left -= len(json.dumps([figure.data, figure.layout]))
                drawn.append(figure)
            else:
                left_out += 1
        return Gallery(drawn, left_out)


def _section(section: Section, tables: list[Table], figures: list[Figure], room: Room) -> PageSection:
    runs = [run for runs in section.by_label().values() for run in runs if run.record]
    traces = room.fill(figure for run in runs if (figure := draw.search_trace(run)) is not None)
    measured = [run for run in runs if any(one.get("spread") for one in (run.record or {})["chosen"])]
    measured.sort(key=lambda run: (run.where[1], run.label, run.where))
    spreads = room.fill(figure for run in measured[:MOST_SPREADS] for figure in draw.spread(run))
    left_out = spreads.left_out + sum(len(draw.spread(run)) for run in measured[MOST_SPREADS:])
    return PageSection(
        section.title,
        "".join(letter if letter.isalnum() else "-" for letter in section.title.lower()),
        section.about,
        _missing(section.missing),
        [table for table in tables if not table.folded],
        [table for table in tables if table.folded],
        figures,
        [_matrix(run) for run in runs],
        traces,
        Gallery(spreads.drawn, left_out),
    )


def _missing(runs: Sequence[Run]) -> str:
    names = ", ".join(f"{run.label} order {run.where[0]} seed {run.where[1]}" for run in runs[:NAMED])
    return names + (f" and {len(runs) - NAMED} more" if len(runs) > NAMED else "")


def _matrix(run: Run) -> ScoreMatrix:
    assert run.record is not None
    tasks = run.record["tasks"]
    rows = zip(tasks, run.matrix, strict=True)
    return ScoreMatrix(
        run, tasks, [(name, row) for name, row in rows if any(cell is not None for cell in row)]
    )

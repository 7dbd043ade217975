"""Self-contained HTML pages of tables and figures, made from the templates in `templates/`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.errors import require
from holdfast.report import figures as draw
from holdfast.report.drawing import drawn
from holdfast.report.plots import Figure
from holdfast.report.runs import Run, Section
from holdfast.report.summary import sentence_counts, summary
from holdfast.report.tables import Table
from holdfast.storage.files import write_text

MOST_SPREADS = 12  # maximum number of runs of a section whose relative importance is drawn
ROOM = 1_200_000  # maximum bytes of the tables and figures of a page
SHARE = 0.6  # maximum share of the room for the main tables and figures of all sections
NAMED = 12  # maximum number of missing runs, records and complaints listed by name
MOST_OPEN = 6  # maximum number of score matrices that are shown unfolded
LISTED = 100  # maximum number of sections
ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class ScoreMatrix:
    """The test scores of a run: a row per task learnt, a column per task tested."""

    run: Run
    tasks: list[str]
    rows: list[tuple[str, Sequence[float | None]]]


@dataclass
class Shown:
    """HTML of the tables or figures of one kind, and the number of those left out."""

    parts: list[str] = field(default_factory=list)
    left_out: int = 0


class Fold(NamedTuple):
    """A part that a reader opens, or finds open."""

    title: str
    shown: Shown
    unfolded: bool


@dataclass
class PageSection:
    """One section of a report as the template shows it."""

    title: str
    anchor: str
    about: str
    summary: str
    counts: str
    warning: str
    missing: str
    main: Shown
    more: Shown
    folded: list[Fold] = field(default_factory=list)

    def fold(self, title: str, shown: Shown, around: str = "", unfolded: bool = False) -> None:
        """Add a fold, if there is something in it; the macro `around` joins its parts."""
        if around and shown.parts:
            shown.parts = [_part(around, shown.parts)]
        if shown.parts or shown.left_out:
            self.folded.append(Fold(title, shown, unfolded))


def write_page(
    path: Path,
    sections: Sequence[tuple[Section, list[Table], list[Figure]]],
    complaints: Sequence[str],
    extras: Sequence[Figure] = (),
) -> Path:
    """Write the page of a report; it has at most about 1.4 MB for any number of runs."""
    room = Room(int(ROOM * SHARE))
    begun = [_begun(*section, room) for section in sections[:LISTED]]
    beyond = room.figures(extras)
    room.left += ROOM - int(ROOM * SHARE)
    # What is looked at most comes first in all sections, so that the last ones lack figures, not tables.
    for add in (_add_tables, _add_matrices, _add_traces, _add_spreads):
        for shown, (section, tables, _) in zip(begun, sections, strict=False):
            add(shown, section, tables, room)
    about = (
        "Tasks come one after another; no old data is kept and no task id is given. Scores are macro-F1 "
        "× 100 on test sentences. Numbers link to the records they come from."
    )
    said = [*complaints[:NAMED], *([f"{len(complaints) - NAMED} more"] if len(complaints) > NAMED else [])]
    return render(
        path,
        "report.html",
        about=about,
        sections=begun,
        unlisted=len(sections) - len(begun),
        extras=beyond,
        complaints=said,
    )


def write_simple_page(
    path: Path, *, about: str, note: str = "", missing: str = "", figures: list[Figure], tables: list[Table]
) -> Path:
    """Write a page of one section: notes, figures, tables."""
    return render(
        path, "simple.html", about=about, note=note, missing=missing, figures=figures, tables=tables
    )


def render(path: Path, template: str, **context: Any) -> Path:
    """Fill a template and write the page, which needs no other file to be displayed."""
    write_text(path, _templates().get_template(template).render(**context))
    return path


@cache
def _templates() -> Any:
    jinja2 = require("jinja2", "bench")
    safe: Callable[[str], str] = require("markupsafe", "bench").Markup
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("holdfast.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["asset"] = lambda name: safe((ASSETS / name).read_text(encoding="utf-8"))
    environment.globals["drawn"] = drawn
    environment.globals["named"] = lambda names: _listed(list(names))
    return environment


def _part(name: str, *values: Any) -> str:
    """Return the HTML of a macro of the templates."""
    made: str = getattr(_templates().get_template("parts.html").module, name)(*values)
    return made


class Room:
    """The number of bytes left for tables and figures."""

    def __init__(self, size: int) -> None:
        self.left = size

    def fill(self, made: Iterable[Callable[[], str]]) -> Shown:
        """Make parts until one does not fit."""
        shown = Shown()
        for make in made:
            part = "" if shown.left_out else make()
            if part and (size := _bytes(part)) <= self.left:
                self.left -= size
                shown.parts.append(part)
            else:
                shown.left_out += 1
        return shown

    def figures(self, figures: Iterable[Figure]) -> Shown:
        """Draw figures while they fit."""
        return self.fill(lambda figure=figure: _part("figure", figure) for figure in figures)  # type: ignore[misc]

    def tables(self, tables: Iterable[Table], *, headed: bool = True) -> Shown:
        """Show tables while they fit, and of the first one that does not fit the first rows."""
        shown = Shown()
        for table in tables:
            whole = _part("table", table, headed)
            size = _bytes(whole)
            rows = len(table.rows) if size <= self.left else int(len(table.rows) * 0.8 * self.left / size)
            if rows < len(table.rows):
                rest = len(table.rows) - rows
                note = f"{rest} more rows are in tables/{table.name}.csv. {table.note}".strip()
                whole = _part("table", replace(table, rows=table.rows[:rows], note=note), headed)
                size = _bytes(whole)
            if rows < 1 or size > self.left:
                shown.left_out += 1
                continue
            self.left -= size
            shown.parts.append(whole)
        return shown


def _bytes(text: str) -> int:
    """Return the size of a text as it is written."""
    return len(text.encode(errors="backslashreplace"))


def _begun(section: Section, tables: list[Table], figures: list[Figure], room: Room) -> PageSection:
    """Return a section with its words, its main table and its figures."""
    counts, warning = sentence_counts(section)
    main = room.tables([table for table in tables if not table.folded][:1])
    drawings = room.figures(figures)
    main.parts.append(_part("gallery", drawings.parts)) if drawings.parts else None
    main.left_out += drawings.left_out
    return PageSection(
        section.title,
        "".join(letter if letter.isalnum() else "-" for letter in section.title.lower()),
        section.about,
        summary(section) if section.view != "cost" else "",
        counts,
        warning,
        _listed([f"{run.label} order {run.where[0]} seed {run.where[1]}" for run in section.missing]),
        main,
        Shown(),
    )


def _add_tables(shown: PageSection, section: Section, tables: list[Table], room: Room) -> None:
    shown.more = room.tables([table for table in tables if not table.folded][1:])
    for table in tables:
        if table.folded:
            shown.fold(table.title.rpartition(": ")[2], room.tables([table], headed=False))


def _add_matrices(shown: PageSection, section: Section, tables: list[Table], room: Room) -> None:
    matrices = room.fill(lambda run=run: _part("matrix", _matrix(run)) for run in _finished(section))  # type: ignore[misc]
    shown.fold("test macro-F1 after each task", matrices, "maps", len(matrices.parts) <= MOST_OPEN)


def _add_traces(shown: PageSection, section: Section, tables: list[Table], room: Room) -> None:
    drawings = (draw.search_trace(run) for run in _finished(section))
    traces = room.figures(figure for figure in drawings if figure is not None)
    shown.fold("search traces: validation score against λ", traces, "gallery")


def _add_spreads(shown: PageSection, section: Section, tables: list[Table], room: Room) -> None:
    runs = [
        run for run in _finished(section) if any(one.get("spread") for one in (run.record or {})["chosen"])
    ]
    runs.sort(key=lambda run: (run.where[1], run.label, run.where))
    spreads = room.figures(figure for run in runs[:MOST_SPREADS] for figure in draw.spread(run))
    spreads.left_out += sum(len(draw.spread(run)) for run in runs[MOST_SPREADS:])
    shown.fold("relative importance by tensor", spreads, "gallery")


def _finished(section: Section) -> list[Run]:
    return [run for runs in section.by_label().values() for run in runs if run.record]


def _listed(names: Sequence[str]) -> str:
    """Return names as text, of many only the first."""
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _matrix(run: Run) -> ScoreMatrix:
    assert run.record is not None
    tasks = run.record["tasks"]
    rows = zip(tasks, run.matrix, strict=True)
    return ScoreMatrix(
        run, tasks, [(name, row) for name, row in rows if any(cell is not None for cell in row)]
    )

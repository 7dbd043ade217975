"""One self-contained page: tables, figures, every score matrix. Opens offline, on a laptop or a phone."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from itertools import count
from pathlib import Path
from urllib.parse import quote

from plotly.offline import get_plotlyjs

from holdfast.report import figures as draw
from holdfast.report.figures import Figure
from holdfast.report.runs import Run, Section
from holdfast.report.tables import Table, html
from holdfast.storage.files import write_text

SPREADS = 12  # runs whose relative importance is drawn in a section, while the page has room
ROOM = 6_000_000  # bytes of a page for such figures and for search traces; the records have all of them
ASSETS = Path(__file__).parent / "assets"


def write_page(
    path: Path, sections: Sequence[tuple[Section, list[Table], list[Figure]]], complaints: Sequence[str]
) -> Path:
    """Write the page of these sections with their tables and figures."""
    numbers, room = count(1), Room(ROOM)
    body = "".join(_section(*section, numbers, room) for section in sections)
    about = (
        "One task after another, no old data kept, no task id given. Scores are macro-F1 &times; 100 on test "
        "sentences; a number leads to the record it came from."
    )
    links = "".join(f"<li><a href='#{_anchor(s)}'>{escape(s.title)}</a></li>" for s, _, _ in sections)
    odd = "".join(f"<p class=missing>{escape(line)}</p>" for line in complaints)
    return assemble(path, about, f"<nav><ul>{links}</ul></nav>{odd}", body)


def assemble(path: Path, about: str, top: str, body: str) -> Path:
    """Write a page that needs nothing else."""
    page = (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'><title>Holdfast report</title>"
        f"<link rel=icon href='data:,'><style>{_asset('page.css')}</style></head><body><header>"
        f"<h1>Holdfast</h1><p>{about}</p>{top}</header><main>{body}</main>"
        f"<script>{get_plotlyjs()}</script><script>{_asset('page.js')}</script></body></html>\n"
    )
    write_text(path, page)
    return path


class Room:
    """How much of a page is left for figures that are looked up, not read."""

    def __init__(self, size: int) -> None:
        self.left = size

    def fill(self, figures: Iterable[Figure], numbers: count[int]) -> tuple[str, int]:
        """Figures as long as there is room for them, and how many had to be left out."""
        drawn, left_out = [], 0
        for figure in figures:
            text = figure_html(figure, numbers) if self.left > 0 else ""
            self.left -= len(text)
            drawn.append(text)
            left_out += not text
        return "".join(drawn), left_out


def _left_out(number: int) -> str:
    return f"<p class=note>{number} more are not drawn, for want of room; the records have them.</p>"


def _section(
    section: Section, tables: list[Table], pictures: list[Figure], numbers: count[int], room: Room
) -> str:
    folded = [table for table in tables if table.folded]
    first, *rest = [html(table) for table in tables if table not in folded] or [""]
    parts = [f"<section id='{_anchor(section)}'><h2>{escape(section.title)}</h2>"]
    parts.append(f"<p>{escape(section.about)}</p>" if section.about else "")
    parts.append(_missing(section.missing))
    parts.append(first)
    parts.append(
        f"<div class=figures>{''.join(figure_html(f, numbers) for f in pictures)}</div>" if pictures else ""
    )
    parts += rest
    parts += [_folded(table.title.rpartition(": ")[2], html(table, headed=False)) for table in folded]
    parts.append(_matrices(section))
    parts.append(_traces(section, numbers, room))
    parts.append(_spreads(section, numbers, room))
    return "".join([*parts, "</section>"])


def _missing(runs: Sequence[Run]) -> str:
    if not runs:
        return ""
    names = ", ".join(f"{run.label} order {run.where[0]} seed {run.where[1]}" for run in runs[:12])
    more = f" and {len(runs) - 12} more" if len(runs) > 12 else ""
    return f"<p class=missing>missing: {escape(names)}{more}</p>"


def _matrices(section: Section) -> str:
    maps = "".join(
        map(_heat_map, [run for runs in section.by_label().values() for run in runs if run.record])
    )
    if not maps:
        return ""
    words = "<p>Row: after learning that task. Column: the task it is tested on.</p>"
    return _folded(
        "test macro-F1 after each task", f"{words}<div class=maps>{maps}</div>", opened=len(section.made) <= 6
    )


def _traces(section: Section, numbers: count[int], room: Room) -> str:
    found = [draw.search_trace(run) for runs in section.by_label().values() for run in runs if run.record]
    drawn, more = room.fill((figure for figure in found if figure is not None), numbers)
    if not drawn and not more:
        return ""
    words = _left_out(more) if more else ""
    return _folded(
        "search traces: λ against the validation score", f"{words}<div class=figures>{drawn}</div>"
    )


def _spreads(section: Section, numbers: count[int], room: Room) -> str:
    runs = [run for run in section.made if any(one.get("spread") for one in (run.record or {})["chosen"])]
    shown = sorted(runs, key=lambda run: (run.where[1], run.label, run.where))[:SPREADS]
    drawn, more = room.fill((figure for run in shown for figure in draw.spread(run)), numbers)
    if not drawn and not more:
        return ""
    words = "<p>How much of a weight's importance is the past's when a task is about to be learnt.</p>"
    if len(runs) > SPREADS:
        words += (
            f"<p class=note>{SPREADS} of {len(runs)} runs are drawn; the others are in their records.</p>"
        )
    words += _left_out(more) if more else ""
    return _folded("relative importance by layer and component", f"{words}<div class=figures>{drawn}</div>")


def figure_html(figure: Figure, numbers: count[int]) -> str:
    """A place for a figure, and what is to be drawn there."""
    number = next(numbers)
    content = json.dumps({"data": figure.data, "layout": figure.layout}, separators=(",", ":"))
    content = content.replace("<", "\\u003c")  # or a name could end the script
    note = f"<p class=note>{escape(figure.note)}</p>" if figure.note else ""
    kind = "plot rows" if figure.scrolls else "plot"
    title = escape(figure.title)
    title = f"<a href='{quote(figure.record)}.json'>{title}</a>" if figure.record else title
    return (
        f"<figure><figcaption>{title}</figcaption>"
        f"<div class='{kind}' data-figure=f{number} style='height:{figure.height}px'></div>{note}"
        f"<script type=application/json id=f{number}>{content}</script></figure>"
    )


def _folded(title: str, inside: str, *, opened: bool = False) -> str:
    return f"<details{' open' if opened else ''}><summary>{escape(title)}</summary>{inside}</details>"


def _heat_map(run: Run) -> str:
    assert run.record is not None
    names = run.record["tasks"]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(map(_cell, row))}</tr>"
        for name, row in zip(names, run.matrix, strict=True)
        if any(cell is not None for cell in row)
    )
    order, seed = run.where
    title = f"<a href='{quote(run.digest)}.json'>{escape(run.label)}</a>, order {escape(order)}, seed {seed}"
    return (
        f"<figure><figcaption>{title}</figcaption><table><tr><th>after</th>{head}</tr>{rows}</table></figure>"
    )


def _cell(value: float | None) -> str:
    if value is None:
        return "<td></td>"
    # Dark ink on light tints and the other way round; where it turns depends on the theme.
    ink = "ink" if value <= 0.55 else "late" if value < 0.9 else "paper"
    tint = f"color-mix(in srgb, var(--mark) {8 + 92 * value:.0f}%, var(--paper))"
    return f"<td style='background:{tint};color:var(--{ink})'>{100 * value:.1f}</td>"


def _anchor(section: Section) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in section.title.lower())


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")

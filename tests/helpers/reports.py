"""Folders of made-up records, and what a report on them shows."""

from __future__ import annotations

import json
import re
from html import escape
from pathlib import Path
from typing import Any

from helpers.records_by_hand import record_of

from holdfast.bench import Spec
from holdfast.report.figures import search_trace, spread
from holdfast.report.plots import Figure, Plot
from holdfast.report.runs import load_sections
from holdfast.report.tables import Table
from holdfast.studies import frontier
from holdfast.studies.suites import load_suite
from holdfast.studies.views import figures_of, write_report


def put(folder: Path, spec: Spec, F: list[list[float | None]], **rest: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / f"{spec.digest()}.json").write_text(json.dumps(record_of(spec, F, **rest)))
    return spec.digest()


def spec(method: str, order: int = 1, seed: int = 0, *settings: str, **rest: Any) -> Spec:
    return Spec.create(method=method, stream="hwu64", order=str(order), seed=seed, settings=settings, **rest)


def suite_folder(path: Path, name: str, score: Any) -> Path:
    """Records for a shipped suite, their matrices from a function of the spec."""
    suite = load_suite(name)
    path.mkdir()
    (path / f"{name}.suite.json").write_text(json.dumps(suite.manifest()))
    for one in suite.specs:
        F = score(one)
        put(
            path,
            one,
            [row[: one.tasks] for row in F[: one.tasks]],
            chosen={"lam": 4.5, "down": 0.5, "up": 1.0},
        )
    return path


def rows_of(table: Table) -> dict[str, list[str]]:
    return {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}


def tables_of(folder: Path) -> dict[str, Table]:
    [(_, tables)] = write_report(folder).sections
    return {table.name.partition("-")[2]: table for table in tables}


def figure_of(folder: Path, title: str) -> Figure:
    """Return the figure with this title that the report of a folder shows, and check that the page has it."""
    page = write_report(folder).page.read_text()
    found = frontier.figures(folder)
    for section in load_sections(folder, alone=not found)[0]:
        found += figures_of(section)
        for run in section.made:
            found += [*spread(run), *([trace] if (trace := search_trace(run)) else [])]
    [figure] = [one for one in found if one.title == title]
    assert re.search(rf"<figcaption>(<a [^>]*>)?{re.escape(escape(title))}(</a>)?</figcaption>", page)
    return figure


def plot_of(folder: Path, title: str) -> Plot:
    """Return what the figure of lines and points with this title shows."""
    content = figure_of(folder, title).content
    assert isinstance(content, Plot)
    return content

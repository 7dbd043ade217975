"""Table and figures of the paper's study of weighting strategies."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.report.figures import PALETTE, mean_percent
from holdfast.report.means import mean_cell
from holdfast.report.plots import Axis, Dash, Figure, Plot, Series
from holdfast.report.runs import Run, Section
from holdfast.report.tables import Cell, Table, short
from holdfast.studies import published

LEVELS = {"ancl-mas": "#868f99", "ancl-lwf": "#8a7560"}
DASHES: dict[str, Dash] = {"CF": "solid", "FWT": "dash"}


def table(section: Section, name: str) -> Table:
    """Return a table of all strategies and settings."""
    rows = []
    for runs in section.by_label().values():
        own, method = runs[0].own, runs[0].method
        kind = own.get("strategy", "balance") if method == "la" else method
        knobs = [Cell(short(own.get(key))) for key in ("tau", "down", "up")]
        rows.append(
            [Cell(kind), *knobs, *(mean_cell(section, runs, metric) for metric in ("Ov", "CF", "FWT"))]
        )
    columns = ["strategy", "τ", "λ_down", "m", "Ov ↑", "CF ↓", "FWT ↑"]
    title = f"{section.title}: weighting strategies"
    return Table(f"{name}-strategies", title, columns, rows, folded=True)


def figures(section: Section) -> list[Figure]:
    """Return figures of CF and FWT over λ_down or λ_up, with one line for each metric and fixed τ."""
    panels: dict[str, tuple[str, list[Run]]] = {}
    for run in section.made:
        own = run.own
        kind = own.get("strategy", "balance")
        axis = "down" if kind == "kt" else "up"
        if run.method != "la" or not all(isinstance(own.get(name), int | float) for name in ("tau", axis)):
            continue  # only la has a strategy; `none` and ∞ cannot be drawn on an axis
        title = {"kt": "KT focus", "cf": "CF focus", "balance": f"CF-KT balance, λ_down {own.get('down')}"}[
            kind
        ]
        panels.setdefault(title, (axis, []))[1].append(run)
    figures = []
    cuts = sorted({run.own["tau"] for _, runs in panels.values() for run in runs})
    for title, (axis, runs) in panels.items():
        drawn = []
        for number, tau in enumerate(cuts):
            along: dict[float, list[Run]] = {}  # orders and seeds are averaged
            for run in sorted(runs, key=lambda run: run.own[axis]):
                if run.own["tau"] == tau:
                    along.setdefault(run.own[axis], []).append(run)
            x = list(along)
            for metric, dash in DASHES.items():
                y = [mean_percent(section, at, metric) for at in along.values()]
                drawn.append(Series(f"{metric}, τ {tau}", x, y, PALETTE[number % len(PALETTE)], dash, "dot"))
        drawn += _references(section, [run.own[axis] for run in runs])
        words = "λ_down" if axis == "down" else "λ_up between 1/τ (0) and λ_max/λ (1)"
        content = Plot(drawn, Axis(words, log=axis == "down"), Axis("CF and FWT"))
        note = "Solid: CF; dashed: FWT; horizontal lines: our ancl-mas and ancl-lwf."
        if published.has_ablations_of(run.spec for run in runs):
            theirs = "; ".join(
                f"{name} CF {point['CF']:.0f}, FWT {point['FWT']:.0f}"
                for name, point in published.REFERENCES.items()
            )
            note += f" The paper reports, after the second task: {theirs}."
        figures.append(Figure(title, content, note))
    return figures


def _references(section: Section, across: Sequence[float]) -> list[Series]:
    """Return the results of ANCL as horizontal lines."""
    drawn = []
    for method, tint in LEVELS.items():
        made = [run for run in section.made if run.method == method]
        for metric, dash in DASHES.items() if made else ():
            level = mean_percent(section, made, metric)
            ends = [min(across), max(across)]
            drawn.append(Series(f"{method} {metric}", ends, [level, level], tint, dash, width=1.2))
    return drawn

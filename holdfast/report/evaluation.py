"""The page of an evaluation: scores of every label, and the confusion matrix."""

from __future__ import annotations

from collections import Counter
from html import escape
from pathlib import Path

from holdfast.everyday.jobs import Evaluation
from holdfast.report.figures import Figure
from holdfast.report.page import write_simple_page
from holdfast.report.tables import Cell, Table

MOST_NUMBERS = 40  # maximum number of labels for which a confusion matrix shows counts
MOST_DRAWN = 100  # maximum number of labels in a confusion matrix; its size grows with their square


def write_evaluation(path: Path, found: Evaluation, *, about: str) -> Path:
    """Write the page of an evaluation."""
    rows = [
        [Cell(label), *(Cell(f"{100 * value:.1f}") for value in values), Cell(str(n))]
        for label, *values, n in found.rows
    ]
    labels = Table(
        "labels", "scores of every label", ["label", "precision", "recall", "F1", "sentences"], rows
    )
    return write_simple_page(
        path,
        about=about,
        note=f"macro-F1 {100 * found.score:.2f}",
        figures=[confusion(found)],
        tables=[labels],
    )


def confusion(found: Evaluation) -> Figure:
    """Return the confusion matrix: true labels down, predicted labels across, shaded by share."""
    known = sorted({label for pair in found.pairs for label in pair})
    errors: Counter[str] = Counter()
    for (gold, guess), n in found.pairs.items():
        errors.update({gold: n, guess: n} if gold != guess else {})
    drawn = sorted(sorted(known, key=lambda label: -errors[label])[:MOST_DRAWN])
    totals = {label: n for label, *_, n in found.rows}
    counts = [[found.pairs[gold, guess] for guess in drawn] for gold in drawn]
    shares = [[value / totals.get(gold, 1) for value in row] for gold, row in zip(drawn, counts, strict=True)]
    names = [escape(label, quote=False) for label in drawn]  # plotly reads names as markup
    heat = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": shares,
        "zmin": 0,
        "zmax": 1,
        "text": [[value or "" for value in row] for row in counts],
        "texttemplate": "%{text}" if len(names) <= MOST_NUMBERS else "",
        "customdata": counts,
        "hovertemplate": "%{y} as %{x}: %{customdata}<extra></extra>",
        "colorscale": [[0, "rgba(15,138,114,0)"], [1, "rgba(15,138,114,1)"]],
        "showscale": False,
    }
    axis = {"type": "category", "showgrid": False}
    layout = {
        "xaxis": {**axis, "title": "predicted", "tickangle": -50},
        "yaxis": {**axis, "title": "true", "autorange": "reversed"},
    }
    note = "A cell counts sentences; its shade is their share of the true label's sentences."
    if len(known) > len(drawn):
        note += f" Only {len(drawn)} of {len(known)} labels are shown, those with the most errors."
    return Figure("Confusion matrix", [heat], layout, note, height=220 + 24 * len(names), scrolls=True)

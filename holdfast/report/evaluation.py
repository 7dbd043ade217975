"""The page of an evaluation: scores of every label, and the confusion matrix."""

from __future__ import annotations

from html import escape
from pathlib import Path

from holdfast.everyday.jobs import Evaluation
from holdfast.report.figures import Figure
from holdfast.report.page import write_simple_page
from holdfast.report.tables import Cell, Table

MOST_NUMBERS = 40  # labels of a confusion matrix whose cells show their counts


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
    """Return the confusion matrix: true labels down, predicted labels across, shaded by share of the row."""
    shares = [[value / (sum(row) or 1) for value in row] for row in found.confusion]
    names = [escape(label, quote=False) for label in found.labels]  # plotly reads names as markup
    heat = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": shares,
        "zmin": 0,
        "zmax": 1,
        "text": [[value or "" for value in row] for row in found.confusion],
        "texttemplate": "%{text}" if len(names) <= MOST_NUMBERS else "",
        "customdata": found.confusion,
        "hovertemplate": "%{y} as %{x}: %{customdata}<extra></extra>",
        "colorscale": [[0, "rgba(15,138,114,0)"], [1, "rgba(15,138,114,1)"]],
        "showscale": False,
    }
    axis = {"type": "category", "showgrid": False}
    layout = {
        "xaxis": {**axis, "title": "predicted", "tickangle": -50},
        "yaxis": {**axis, "title": "true", "autorange": "reversed"},
    }
    note = "A cell is the number of sentences, shaded by its share of the true label."
    height = 220 + 24 * len(names)
    return Figure("Confusion matrix", [heat], layout, note, height, scrolls=True)

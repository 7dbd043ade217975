"""The page of an evaluation: scores of every label, and the confusion matrix."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from holdfast.everyday.evaluate import Evaluation
from holdfast.report.page import write_simple_page
from holdfast.report.plots import Figure, Grid
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
        figures=[confusion_figure(found)],
        tables=[labels],
    )


def confusion_figure(found: Evaluation) -> Figure:
    """Return the confusion matrix: true labels down, predicted labels across, shaded by share."""
    known = sorted({label for pair in found.pairs for label in pair})
    errors: Counter[str] = Counter()
    for (gold, guess), n in found.pairs.items():
        errors.update({gold: n, guess: n} if gold != guess else {})
    drawn = sorted(sorted(known, key=lambda label: -errors[label])[:MOST_DRAWN])
    totals = {label: n for label, *_, n in found.rows}
    counts = [[found.pairs[gold, guess] for guess in drawn] for gold in drawn]
    shares = [[value / totals.get(gold, 1) for value in row] for gold, row in zip(drawn, counts, strict=True)]
    note = "A cell counts sentences; its shade is their share of the true label's sentences."
    if len(known) > len(drawn):
        note += f" Only {len(drawn)} of {len(known)} labels are shown, those with the most errors."
    content = Grid(drawn, counts, shares, numbered=len(drawn) <= MOST_NUMBERS)
    return Figure("Confusion matrix", content, note)

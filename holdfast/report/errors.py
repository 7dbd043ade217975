"""The labels that finished learners get wrong."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

from holdfast.report.runs import Run, Section
from holdfast.report.tables import Cell, Table

MOST = 60  # maximum number of labels, those with the most errors


def label_errors(section: Section, name: str) -> Table:
    """Return the share of each label's test sentences that each method gets wrong after the last task.

    Empty if no record tells.
    """
    methods = {label: [run for run in runs if confusions(run)] for label, runs in section.by_label().items()}
    methods = {label: runs for label, runs in methods.items() if runs}
    sentences: dict[str, int] = {}
    taken: dict[str, Counter[str]] = {}
    wrong: dict[str, dict[str, list[float]]] = {}
    for method, runs in methods.items():
        for run in runs:
            for label, guesses in confusions(run).items():
                total = sum(guesses.values())
                sentences[label] = max(total, sentences.get(label, 0))
                errors = Counter({guess: n for guess, n in guesses.items() if guess != label})
                taken.setdefault(label, Counter()).update(errors)
                wrong.setdefault(label, {}).setdefault(method, []).append(errors.total() / total)
    worst = sorted(wrong, key=lambda label: (-fmean(map(fmean, wrong[label].values())), label))
    rows = []
    for label in worst[:MOST]:
        cells = [
            Cell(f"{100 * fmean(wrong[label][method]):.1f}", records=tuple(run.digest for run in runs))
            if method in wrong[label]
            else Cell("-")
            for method, runs in methods.items()
        ]
        most = ", ".join(guess for guess, _ in taken[label].most_common(2)) or "-"
        rows.append([Cell(label), Cell(str(sentences[label])), *cells, Cell(most)])
    note = "In percent of the label's test sentences, after the last task; means over orders and seeds."
    if len(worst) > MOST:
        note += f" Of {len(worst)} labels the {MOST} with the most errors."
    columns = ["label", "test sentences", *methods, "most often taken for"]
    title = f"{section.title}: errors by label"
    return Table(f"{name}-errors", title, columns, rows, note=note, folded=True)


def confusions(run: Run) -> dict[str, dict[str, int]]:
    """Return, for each label, how many sentences of all tasks were taken for which label."""
    found: dict[str, Counter[str]] = {}
    for task in (run.record or {}).get("confusion") or ():
        for label, guesses in task.items():
            found.setdefault(label, Counter()).update(guesses)
    return {label: dict(guesses) for label, guesses in found.items() if guesses}

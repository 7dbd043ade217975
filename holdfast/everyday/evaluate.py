"""Evaluate a learner on labelled sentences, and compare two generations of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from typing_extensions import override

from holdfast.data.readers import read_pairs
from holdfast.data.tasks import Split, printable
from holdfast.errors import HoldfastError
from holdfast.everyday.predict import answers
from holdfast.learning.corrections import RENAMED
from holdfast.learning.learner import Learner
from holdfast.maths.metrics import Difference, label_scores, macro_f1, paired_difference
from holdfast.runtime.answers import Answerer, chunks


@dataclass
class Evaluation:
    """Scores of a learner on a file."""

    score: float
    rows: list[tuple[str, float, float, float, int]]
    """Label, precision, recall, F1 and number of sentences."""
    pairs: Counter[tuple[str, str]]
    """Number of sentences for each pair of gold and predicted label."""
    predicted: list[str] = field(default_factory=list, repr=False)

    def confusions(self, most: int | None = None) -> list[tuple[str, str, int]]:
        """Return gold label, wrong prediction and number of sentences, the most frequent first."""
        wrong = [(gold, guess, n) for (gold, guess), n in self.pairs.items() if gold != guess and n]
        return sorted(wrong, key=lambda one: (-one[2], one[:2]))[:most]


@dataclass
class LackingLabel:
    """A label of the file that one of two generations does not know, so that its sentences count as wrong."""

    generation: int
    label: str
    sentences: int
    renamed: str = ""
    """The name to which the label was renamed between the two; empty if it was not."""
    before: str = ""
    """The name that it had in the generation without it; empty if it was not renamed."""

    @override
    def __str__(self) -> str:
        renamed = f" (renamed to {self.renamed!r} since)" if self.renamed else ""
        called = f" (called {self.before!r} there)" if self.before else ""
        many = "its sentence counts" if self.sentences == 1 else f"its {self.sentences} sentences count"
        return f"generation {self.generation} does not know {self.label!r}{renamed}{called}; {many} as wrong"


@dataclass
class Compared:
    """Two generations on the same file."""

    first: Evaluation
    second: Evaluation
    difference: Difference
    """Macro-F1 of the second minus that of the first, with a paired bootstrap interval."""
    better: int
    """Sentences that only the second answers right."""
    worse: int
    """Sentences that only the first answers right."""
    missing: list[LackingLabel] = field(default_factory=list)
    """Labels of the file that only one of the two knows."""

    def changes(self) -> list[tuple[str, float, float, int]]:
        """Return label, F1 before, F1 after and number of sentences, the largest change first."""
        before = {row[0]: row[3] for row in self.first.rows}
        found = [(label, before[label], f1, n) for label, _, _, f1, n in self.second.rows]
        return sorted(found, key=lambda one: (-abs(one[2] - one[1]), one[0]))

    def confusions(self, most: int | None = None) -> list[tuple[str, str, int, int]]:
        """Return gold label, wrong prediction and its number before and after, the most frequent first."""
        pairs = [pair for pair in {*self.first.pairs, *self.second.pairs} if pair[0] != pair[1]]
        found = [(*pair, self.first.pairs[pair], self.second.pairs[pair]) for pair in pairs]
        return sorted(found, key=lambda one: (-max(one[2:]), one[:2]))[:most]

    def answer(self, most: int | None = None) -> dict[str, Any]:
        """Return all of it for programs, with at most so many confusions; the texts are not in it."""
        return {
            "sentences": len(self.first.predicted),
            "macro_f1": [self.first.score, self.second.score],
            "difference": asdict(self.difference),
            "better": self.better,
            "worse": self.worse,
            "missing": [{**asdict(one), "note": str(one)} for one in self.missing],
            "confusions": [
                {"label": gold, "predicted": guess, "before": old, "after": new}
                for gold, guess, old, new in self.confusions(most)
            ],
            "labels": [
                {"label": label, "before": was, "after": now, "sentences": n}
                for label, was, now, n in self.changes()
            ],
        }


def rows_to_test(source: str, *, text_column: str = "text", label_column: str = "label") -> Split:
    """Return the rows of a file, or its test rows if it has splits."""
    rows = read_pairs(source, text_column=text_column, label_column=label_column)
    if rows[0].split is not None:
        rows = [row for row in rows if row.split == "test"]
        if not rows:
            raise HoldfastError(
                f"{source}: no 'test' rows in the split column; mark some, or drop the column"
            )
    return Split.of([row[:2] for row in rows])


def evaluated(learner: Learner | Answerer, split: Split) -> Evaluation:
    """Return the macro-F1 over the gold labels, the scores of each, and the confusions."""
    predicted = [answer.label or "" for piece in chunks(split.texts) for answer in answers(learner, piece)]
    rows = [(label, *values) for label, values in label_scores(split.labels, predicted).items()]
    pairs = Counter(zip(split.labels, predicted, strict=True))
    return Evaluation(macro_f1(split.labels, predicted), rows, pairs, predicted)


def compared(first: Learner, second: Learner, split: Split) -> Compared:
    """Compare two generations of a learner on the same sentences."""
    before, after = evaluated(first, split), evaluated(second, split)
    difference = paired_difference([split.labels], [[after.predicted]], [[before.predicted]])
    right = _right(split.labels, before.predicted), _right(split.labels, after.predicted)
    better = sum(new and not old for old, new in zip(*right, strict=True))
    worse = sum(old and not new for old, new in zip(*right, strict=True))
    return Compared(before, after, difference, better, worse, missing(first, second, split))


def missing(first: Learner, second: Learner, split: Split) -> list[LackingLabel]:
    """Return the labels of a file that only one of two generations knows."""
    renamed = {
        entry["task"]
        for learner in (first, second)
        for entry in learner.history
        if entry.get("correction") == "rename-label"
    }

    def between(old: str, new: str) -> bool:
        return printable(RENAMED.format(old, new)) in renamed

    found = []
    for learner, other in ((first, second), (second, first)):
        lacking = {*split.labels} & {*other.classes_} - {*learner.classes_}
        only = sorted({*learner.classes_} - {*other.classes_})
        for label, n in sorted(Counter(split.labels).items()):
            if label in lacking:
                now = next((one for one in only if between(label, one)), "")
                then = next((one for one in only if between(one, label)), "")
                found.append(LackingLabel(learner.generation, label, n, now, then))
    return found


def _right(gold: Sequence[str], predicted: Sequence[str]) -> list[bool]:
    return [label == guess for label, guess in zip(gold, predicted, strict=True)]

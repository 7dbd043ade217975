"""The paper's continual-learning metrics: pure functions of the score matrix F.

Row k of F holds the scores after learning task k, column i those on task i. Cells above the diagonal
(tasks not learnt yet) are never read.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

Matrix = Sequence[Sequence[float | None]]


def macro_f1(gold: Sequence[str], predicted: Sequence[str]) -> float:
    """Return the macro-F1 over the labels that occur in `gold`; other predictions only cost recall.

    >>> macro_f1(["on", "on", "off"], ["on", "off", "off"])
    0.6666666666666666
    """
    return float(np.mean([score.f1 for score in label_scores(gold, predicted).values()]))


def standard_error(score: float, sentences: int) -> float:
    """Return the standard error of an accuracy or macro-F1 measured on so many sentences.

    Two correct and two wrong sentences are added (Agresti and Coull 1998), so that a perfect score on a few
    sentences is not taken for certain.

    >>> round(standard_error(1.0, 12), 4)
    0.0827
    """
    share = (score * sentences + 2) / (sentences + 4)
    return math.sqrt(share * (1 - share) / (sentences + 4))


class LabelScore(NamedTuple):
    """Precision, recall and F1 of one label, and the number of sentences that have it."""

    precision: float
    recall: float
    f1: float
    sentences: int


def label_scores(gold: Sequence[str], predicted: Sequence[str]) -> dict[str, LabelScore]:
    """Return the scores of every label in `gold`, sorted by label; one never predicted has precision 0."""
    there, said = Counter(gold), Counter(predicted)
    hit = Counter(label for label, guess in zip(gold, predicted, strict=True) if label == guess)
    return {
        label: LabelScore(
            hit[label] / said[label] if said[label] else 0.0,
            hit[label] / there[label],
            2 * hit[label] / (there[label] + said[label]),
            there[label],
        )
        for label in sorted(there)
    }


def overall(F: Matrix) -> float:
    """Return Ov = (1/N) Σ_i F[N,i]: the mean over all tasks at the end.

    >>> overall([[0.9, None], [0.5, 0.8]])
    0.65
    """
    last = len(F) - 1
    return _mean([_cell(F, last, i) for i in range(len(F))])


def forgetting(F: Matrix) -> float:
    """Return CF = 1/(N-1) Σ_{i<N} (max_{i<=k<=N-1} F[k,i] - F[N,i]): how far each task fell from its best.

    >>> forgetting([[0.9, None], [0.5, 0.8]])
    0.4
    """
    n = _size(F)
    return _mean([max(_cell(F, k, i) for k in range(i, n - 1)) - _cell(F, n - 1, i) for i in range(n - 1)])


def positive_backward_transfer(F: Matrix) -> float:
    """Return BWT+ = 2/(N(N-1)) Σ_{k>=2} Σ_{i<k} max(0, F[k,i] - F[k-1,i]): gains on tasks already learnt.

    >>> positive_backward_transfer([[0.5, None], [0.75, 0.8]])
    0.25
    """
    n = _size(F)
    return _mean([max(0.0, _cell(F, k, i) - _cell(F, k - 1, i)) for k in range(1, n) for i in range(k)])


def forward_transfer(F: Matrix, F_seq: Matrix) -> float:
    """Return FWT = 1/(N-1) Σ_{i>=2} (F[i,i] - F_seq[i,i]): gains on a task when it is new, over SEQ.

    >>> forward_transfer([[0.9, None], [0.5, 0.75]], [[0.9, None], [0.1, 0.5]])
    0.25
    """
    n = _size(F)
    if len(F_seq) != n:
        raise ValueError(f"F has {n} tasks but F_seq has {len(F_seq)}")
    _size(F_seq)
    return _mean([_cell(F, i, i) - _cell(F_seq, i, i) for i in range(1, n)])


@dataclass(frozen=True)
class Difference:
    """The difference in Ov between two sets of paired runs, with its uncertainty."""

    mean: float
    error: float
    """Standard error, by a paired bootstrap over test sentences."""
    low: float
    high: float
    """`low` and `high` bound the middle 95 % of the bootstrap."""


def paired_difference(
    gold: Sequence[Sequence[str]],
    first: Sequence[Sequence[Sequence[str]]],
    second: Sequence[Sequence[Sequence[str]]],
    *,
    draws: int = 2000,
    seed: int = 0,
) -> Difference:
    """Return Ov of `first` minus Ov of `second`, on the same test sentences of each task.

    Both are lists of runs, paired by position (same task order and seed); a run is a list of predictions per
    task. A draw resamples the sentences within each task, the same ones for all runs of both, and takes the
    mean over runs and tasks.
    """
    generator = np.random.default_rng(seed)
    sizes = [len(labels) for labels in gold]
    whole = [np.arange(n) for n in sizes]

    def difference(samples: Sequence[np.ndarray]) -> float:
        gaps = [
            _fast_f1(labels[rows], ours[rows]) - _fast_f1(labels[rows], theirs[rows])
            for mine, its in zip(coded_first, coded_second, strict=True)
            for labels, ours, theirs, rows in zip(coded, mine, its, samples, strict=True)
        ]
        return float(np.mean(gaps))

    number = {label: i for i, label in enumerate(sorted({x for task in gold for x in task}))}

    def code(labels: Sequence[str]) -> np.ndarray:
        return np.array([number.get(label, -1) for label in labels])

    coded = [code(labels) for labels in gold]
    coded_first, coded_second = ([[code(task) for task in run] for run in runs] for runs in (first, second))
    found = np.array([difference([generator.integers(0, n, n) for n in sizes]) for _ in range(draws)])
    low, high = np.quantile(found, [0.025, 0.975])
    return Difference(difference(whole), float(found.std(ddof=1)), float(low), float(high))


def _fast_f1(gold: np.ndarray, predicted: np.ndarray) -> float:
    """Return the same as `macro_f1`, for labels that are numbers; other predictions are negative."""
    there = np.bincount(gold)
    said = np.bincount(predicted[predicted >= 0], minlength=len(there))[: len(there)]
    hits = np.bincount(gold[gold == predicted], minlength=len(there))
    own = there > 0
    return float(np.mean(2 * hits[own] / (there[own] + said[own])))


def _size(F: Matrix) -> int:
    """Return N after checking that the matrix is finished on and below its diagonal."""
    for k in range(len(F)):
        for i in range(k + 1):
            _cell(F, k, i)
    return len(F)


def _cell(F: Matrix, k: int, i: int) -> float:
    value = F[k][i]
    if value is None or math.isnan(value):
        raise ValueError(f"the score matrix is unfinished: no score for task {i + 1} after task {k + 1}")
    return value


def _mean(values: Sequence[float]) -> float:
    """Return the mean; 0 for a one-task stream, where nothing can be forgotten or transferred."""
    return sum(values) / len(values) if values else 0.0


def percent(value: float | None) -> str:
    """Return a score in percent, as the paper prints it; "-" for None."""
    return "-" if value is None else f"{100 * value:.2f}"

"""Suggest what to label next: lines that look like new intents, grouped, and lines between two known labels.

A line that lies farther out than most known sentences is a candidate for a new intent. Candidates are grouped
by average linkage on the cosine of their vectors, whitened by the covariance within the known labels: there
the sentences of one intent point in one direction, whatever the encoder. Large groups come first. Within a
group the first line is the most central one, each further line is the one least like those before (Gonzalez
1985): lines on the edge say more about a label's extent than ten of its centre.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from holdfast.data.tasks import check_texts
from holdfast.errors import HoldfastError
from holdfast.heads import Head, SLDAHead
from holdfast.heads.discriminant import shrunk
from holdfast.heads.sums import factored
from holdfast.learning.learner import Learner
from holdfast.maths.products import gram
from holdfast.runtime.answers import chunks

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99)
FAR = 0.7  # candidates lie farther out than this share of known sentences
APART = 0.75  # mean cosine distance up to which two groups of candidates are one
SHRINKAGE = 0.1  # of the covariance that whitens
UNSURE = 0.1  # share of the suggestions that lie between two known labels
LEAST = 3  # lines of a group that comes before the unsure lines
MOST = 4000  # candidates that are grouped; of more, they are thinned out evenly


@dataclass(frozen=True)
class Suggestion:
    """A line to label."""

    text: str
    place: int
    """Its position in the texts; of equal texts, the first one."""
    group: int | None
    """Number of the proposed new intent; None for a line between two known labels."""
    size: int
    """Number of different lines in the group; 0 without one."""
    label: str
    """The most probable known label."""
    margin: float
    """Probability of the most probable label minus that of the second."""
    unknown: float
    """Share of known sentences that lie nearer to their labels than this line."""
    score: float
    """What the line is ranked by: the size of its group plus `unknown`, or 1 - margin."""


@dataclass
class Looked:
    """Lines as the learner sees them, without repetitions."""

    texts: list[str]
    places: list[int]
    labels: list[str]
    margins: np.ndarray
    unknown: np.ndarray
    features: Tensor


def suggest(learner: Learner, texts: Sequence[str], n: int = 50) -> list[Suggestion]:
    """Return at most `n` of the texts to label next, the most useful first; nothing is stored.

    A tenth of them lies between two known labels; the others are proposed new intents, one line of each
    group at a time. With a head that has no distances, the candidates are the three tenths of the
    texts with the least probable labels.

    >>> from holdfast import Learner, suggest
    >>> learner = Learner.create("encoder")
    >>> _ = learner.learn(["wake me at six", "wake me at nine"], ["alarm", "alarm"])
    >>> _ = learner.learn(["play some jazz", "play a song"], ["music", "music"])
    >>> [one.text for one in suggest(learner, ["at six", "play jazz", "play jazz"], n=5)]
    [...'play jazz'...]
    """
    if not isinstance(n, int) or n < 1:
        raise HoldfastError(f"n is {n!r}; ask for at least one suggestion, as an integer")
    looked = _seen(learner, texts)
    candidates = np.flatnonzero(looked.unknown > FAR)
    candidates = candidates[:: -(-len(candidates) // MOST)] if len(candidates) else candidates
    groups = []
    if len(candidates):
        vectors = whitened(learner.model.head, looked.features, torch.from_numpy(candidates))
        cosines = (vectors @ vectors.T).numpy()
        for members in grouped(cosines):
            own = cosines[np.ix_(members, members)]
            groups.append([int(candidates[members[i]]) for i in spread_out(own)])
    groups.sort(key=lambda own: (-len(own), -float(looked.unknown[own].mean()), own[0]))
    new = [_suggestion(looked, i, number, len(groups[number - 1])) for number, i in in_turns(groups)]
    between = [i for i in np.argsort(looked.margins, kind="stable").tolist() if looked.unknown[i] <= FAR]
    unsure = [_suggestion(looked, i, None, 0) for i in between]
    proposals = [one for one in new if one.size >= LEAST]
    lone = [one for one in new if one.size < LEAST]
    first = min(len(proposals) + len(lone), n - min(len(unsure), round(UNSURE * n)))
    found = [*proposals, *lone][:first]
    return [*found, *unsure[: n - len(found)]]


def grouped(cosines: np.ndarray) -> list[list[int]]:
    """Return groups of vectors with these cosines, by average linkage up to a mean distance of `APART`."""
    if len(cosines) < 2:
        return [[i] for i in range(len(cosines))]
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    distances = np.clip(1 - cosines, 0, 2)
    np.fill_diagonal(distances, 0)
    tree = linkage(squareform(distances, checks=False), "average")
    groups: dict[int, list[int]] = {}
    for place, group in enumerate(fcluster(tree, APART, "distance").tolist()):
        groups.setdefault(group, []).append(place)
    return list(groups.values())


def spread_out(cosines: np.ndarray) -> list[int]:
    """Return all of some vectors: the most central first, then always the one least like those before."""
    order = [int(cosines.mean(1).argmax())]
    nearest = cosines[order[0]].copy()
    while len(order) < len(cosines):
        nearest[order] = np.inf
        order.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, cosines[order[-1]])
    return order


def in_turns(groups: Sequence[Sequence[int]]) -> list[tuple[int, int]]:
    """Return (number of the group from 1, member), one member of every group at a time."""
    longest = max(map(len, groups), default=0)
    numbered = list(enumerate(groups, start=1))
    return [
        (number, group[turn]) for turn in range(longest) for number, group in numbered if turn < len(group)
    ]


def whitened(head: Head, features: Tensor, rows: Tensor) -> Tensor:
    """Return some of the vectors, around the mean of all, in a space where a label varies equally everywhere.

    They have length 1. Heads without class sums are whitened by the covariance of the features themselves.
    """
    middle = features.mean(0)
    z = (features[rows] - middle).double()
    spread = head.spread_within() if isinstance(head, SLDAHead) else None
    if spread is None:
        spread = gram(features - middle) / max(len(features) - 1, 1)
    if not float(spread.trace()) > 0:
        return normalize(z, dim=1)
    factor = factored(shrunk(spread, SHRINKAGE))
    white: Tensor = torch.linalg.solve_triangular(factor, z.T, upper=False).T
    return normalize(white, dim=1)


def _seen(learner: Learner, texts: Sequence[str]) -> Looked:
    """Return the labels, margins, unknownness and vectors of different texts."""
    check_texts(texts)
    places: dict[str, int] = {}
    for place, text in enumerate(texts):
        if text.strip():
            places.setdefault(text, place)
    if not places:
        raise HoldfastError("there are no texts to choose from; give some lines")
    different, classes = list(places), learner.classes_
    parts: list[tuple[Any, ...]] = []
    for piece in chunks(different):
        features = learner.model.embed(piece)
        likely = learner.probabilities(features)
        best, rows = likely.topk(min(2, len(classes)), dim=1)
        margin = best[:, 0] - best[:, 1] if len(classes) > 1 else torch.ones(len(piece)).double()
        parts.append((features, margin, rows[:, 0], best[:, 0], far_shares(learner.model.head, features)))
    features, margins, rows, best = (torch.cat([part[i] for part in parts]) for i in range(4))
    far = [part[4] for part in parts]
    unknown = np.concatenate(far) if far[0] is not None else _ranks(best.numpy())
    labels = [classes[row] for row in rows.tolist()]
    return Looked(different, list(places.values()), labels, margins.numpy(), unknown, features)


def far_shares(head: Head, features: Tensor) -> np.ndarray | None:
    """Return for each sentence the share of known ones that lie nearer; None if the head cannot say.

    Below the lowest level and beyond the highest, the distance decides within what is left of 0 to 1.
    """
    try:
        marks = [head.threshold(level) for level in LEVELS]
        distances = head.distances(features).double().numpy()
    except HoldfastError:
        return None
    inside: np.ndarray = np.interp(distances, marks, LEVELS)
    spread = max(marks[-1] - marks[0], 1e-12)
    below, beyond = np.clip(marks[0] - distances, 0, None), np.clip(distances - marks[-1], 0, None)
    left = 1 - LEVELS[-1]
    found: np.ndarray = inside - LEVELS[0] * below / (below + spread) + left * beyond / (beyond + spread)
    return found


def _ranks(best: np.ndarray) -> np.ndarray:
    """Return the share of lines whose best label is more probable."""
    order = np.argsort(np.argsort(-best, kind="stable"), kind="stable")
    found: np.ndarray = order / max(len(best), 1)
    return found


def _suggestion(looked: Looked, i: int, group: int | None, size: int) -> Suggestion:
    margin, unknown = float(looked.margins[i]), float(looked.unknown[i])
    score = 1 - margin if group is None else size + unknown
    return Suggestion(
        looked.texts[i], looked.places[i], group, size, looked.labels[i], margin, unknown, score
    )

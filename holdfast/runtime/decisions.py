"""From probabilities and distances to answers: labels, rejection, prediction sets."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import HoldfastError
from holdfast.runtime.answers import Answer, Asked
from holdfast.runtime.artefact import Thresholds

Numbers = NDArray[Any]


def decided(
    texts: Sequence[str],
    asked: Asked,
    labels: Sequence[str],
    probabilities: Numbers,
    distances: Numbers | None,
    limits: AskedLimits,
) -> list[Answer]:
    """Return the answers for texts: the same as those of a learner with these probabilities."""
    far = [False] * len(texts)
    if limits.far is not None:
        if distances is None:
            raise HoldfastError("this artefact has no distances, which rejection needs; export it again")
        far = (distances > limits.far).tolist()
    order = np.argsort(-probabilities, axis=1, kind="stable")
    ranked = np.take_along_axis(probabilities, order, axis=1)
    sets: Sequence[list[str] | None] = [None] * len(texts)
    if limits.inside is not None:
        sets = sets_of(texts, labels, order, ranked, limits.inside)
    most = min(max(asked.top, 1), len(labels))
    found = []
    for row, text in enumerate(texts):
        best = [(labels[place], float(ranked[row, i])) for i, place in enumerate(order[row, :most].tolist())]
        unsure = asked.least is not None and best[0][1] < asked.least
        label = None if far[row] or unsure else best[0][0]
        found.append(Answer(text, label, best[0][1], best, set=sets[row]))
    return found


class AskedLimits:
    """The thresholds that a question needs; those that cannot be had are an error before any work."""

    def __init__(self, asked: Asked, reject: Thresholds, sets: Thresholds) -> None:
        self.far = None if asked.reject is None else reject.at(asked.reject, "rejection")
        self.inside = None if asked.cover is None else sets.at(asked.cover, "sets")


def sets_of(
    texts: Sequence[str], labels: Sequence[str], order: Numbers, ranked: Numbers, limit: float
) -> list[list[str]]:
    """Return the adaptive prediction set of each text (Romano et al. 2020), the most probable label first.

    A label belongs to it if the probability of all labels above it and a part, in [0, 1), of its own is at
    most `limit`. The part is a hash of the text, so that an answer does not change when it is asked again.
    """
    part = np.array([int(hashlib.sha256(text.encode()).hexdigest()[:12], 16) / 16**12 for text in texts])
    above = np.cumsum(ranked, axis=1) - ranked
    inside = above + part[:, None] * ranked <= limit
    return [
        [labels[place] for place, own in zip(places, row, strict=True) if own]
        for places, row in zip(order.tolist(), inside.tolist(), strict=True)
    ]

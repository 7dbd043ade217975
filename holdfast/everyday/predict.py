"""Classify texts with a learner."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.data.tasks import check_texts
from holdfast.learning.learner import Learner
from holdfast.runtime.answers import PLAIN, Answer, Answerer, Asked


def answers(learner: Learner | Answerer, texts: Sequence[str], asked: Asked = PLAIN) -> list[Answer]:
    """Return the predictions of a learner, or of an artefact."""
    if not isinstance(learner, Learner):
        return learner.answers(texts, asked)
    check_texts(texts)
    if not len(texts):
        return []
    classes, features = learner.classes_, learner.model.embed(texts)
    far = [False] * len(texts) if asked.reject is None else learner.far_out(features, asked.reject)
    likely = learner.probabilities(features)
    sets = [None] * len(texts) if asked.cover is None else learner.sets(texts, likely, asked.cover)
    best, places = likely.topk(min(max(asked.top, 1), len(classes)), dim=1)
    found = []
    for text, away, own, values, order in zip(texts, far, sets, best.tolist(), places.tolist(), strict=True):
        ranked = [(classes[i], value) for i, value in zip(order, values, strict=True)]
        unsure = asked.least is not None and ranked[0][1] < asked.least
        label = None if away or unsure else ranked[0][0]
        found.append(Answer(text, label, ranked[0][1], ranked, set=own))
    return found

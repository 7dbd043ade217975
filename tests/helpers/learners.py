"""Learners for toy tasks, snapshots of them, and a record of their trainings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.toys import class_stream, small
from helpers.weights import assert_same_bits, weights_of

from holdfast.data.tasks import Stream
from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.methods import METHODS
from holdfast.methods.base import Method
from holdfast.models import build_classifier
from holdfast.settings import Settings

STREAM = class_stream()
TEXTS = [text for task in STREAM for text in task.test.texts]
FAST = small(epochs=1)


def _few_features(method: str) -> dict[str, int]:
    return {"features": 48} if method in ("klda", "ranpac") else {}


def make_method(name: str, **values: Any) -> Method:
    """Return a method with few random features."""
    return METHODS[name](**_few_features(name) | values)


def make_learner(
    model: str,
    method: Method,
    stream: Stream,
    settings: Settings | None = None,
    *,
    fixed: set[str] = frozenset(),  # type: ignore[assignment]
    seed: int = 0,
    **rest: Any,
) -> Learner:
    settings = settings or small()
    classifier = build_classifier(model, settings, seed=seed, labels=stream.labels, method=method)
    scenario = method.curriculum(stream).scenario
    return Learner(classifier, method, scenario, settings, seed=seed, fixed=frozenset(fixed), **rest)


def create(tiny: str, method: str = "slda", **options: Any) -> Learner:
    return Learner.create(tiny, method, **{"settings": FAST} | _few_features(method) | options)


def taught(tiny: str, method: str = "slda", tasks: int = 2, **options: Any) -> Learner:
    learner = create(tiny, method, **options)
    for task in STREAM.tasks[:tasks]:
        learner.learn(task.train.texts, task.train.labels)
    return learner


def scoring(hand: AtHand, modulated: float, plain: float) -> AtHand:
    """Make every trial of a task score one of two values, by whether Look-Ahead modifies its weights."""
    trial = hand.trial

    def scored(task: Any, choice: dict[str, Any]) -> Any:
        made = trial(task, choice)
        made.score = plain if choice.get("down") is None else modulated
        return made

    hand.trial = scored  # type: ignore[method-assign]
    return hand


# ---- snapshots and trainings ---------------------------------------------------------------------------


def standing(learner: Learner) -> tuple[dict[str, torch.Tensor], Any, dict[str, Any]]:
    return weights_of(learner), learner.method.state_dict(), learner.method.hparams()


def assert_same_standing(left: Any, right: Any) -> None:
    assert_same_bits(left[0], right[0])
    assert left[2] == right[2]
    assert left[1].keys() == right[1].keys()
    for name, value in left[1].items():
        if isinstance(value, dict):
            assert_same_bits(value, right[1][name])
        else:
            assert value == right[1][name]


def epochs(lesson: Any) -> int:
    return lesson.decision.trial.fit["epochs"]


def watched_trainings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the hyper-parameters, epochs and batches of every training from now on."""
    runs: list[dict[str, Any]] = []
    original = AtHand._fit

    def watched(self: AtHand, task: Any, method: Any, training: Any) -> Any:
        result = original(self, task, method, training)
        runs.append(method.hparams() | {"epochs": result.epochs, "batches": result.batches})
        return result

    monkeypatch.setattr(AtHand, "_fit", watched)
    return runs

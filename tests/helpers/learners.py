"""Learners made by name and taught toy tasks; what a learner is at a moment; the trainings it makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import assert_same_bits, class_stream, small, weights_of

from holdfast.learning.learner import Learner

STREAM = class_stream()
TEXTS = [text for task in STREAM for text in task.test.texts]
FAST = small(epochs=1)


def create(tiny: str, method: str = "slda", **options: Any) -> Learner:
    few = {"features": 48} if method in ("klda", "ranpac") else {}
    return Learner.create(tiny, method, settings=FAST, **few | options)


def taught(tiny: str, method: str = "slda", tasks: int = 2, **options: Any) -> Learner:
    learner = create(tiny, method, **options)
    for task in STREAM.tasks[:tasks]:
        learner.learn(task.train.texts, task.train.labels)
    return learner


# ---- what a learner is, and what it does ---------------------------------------------------------------


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
    """Every training from now on: the hyper-parameters it runs with, its epochs and batches."""
    runs: list[dict[str, Any]] = []
    original = Learner._fit

    def watched(self: Learner, task: Any, method: Any, training: Any) -> Any:
        result = original(self, task, method, training)
        runs.append(method.hparams() | {"epochs": result.epochs, "batches": result.batches})
        return result

    monkeypatch.setattr(Learner, "_fit", watched)
    return runs

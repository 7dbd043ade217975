"""Numbers stay numbers: small, lopsided and odd tasks, half precision, idle weights; every method."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import class_stream, domain_stream, make_learner, small, weights_of
from torch import nn

from holdfast.data.tasks import Split, Stream
from holdfast.importance.estimators import ESTIMATORS
from holdfast.learning.learner import Learner
from holdfast.learning.lesson import Lesson
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.base import Method
from holdfast.models import Classifier
from holdfast.settings import Settings

pytestmark = pytest.mark.slow  # every method under every condition: a minute

# Training by gradient: a closed-form head takes part in it only where its trunk moves (test_closed_form.py).
every_method = pytest.mark.parametrize(
    "name", [name for name in METHODS if METHODS[name]().make_head(8, Settings(), seed=0).trained]
)
SHORT = {
    "epochs": 1,
    "rates": (3e-3,),
    "sgd_rates": (1e-2,),
    "lam_trials": 1,
    "lam_steps": 1,
    "lam_a_steps": 1,
}


def two(stream: Stream, sizes: tuple[int, int], *, valid: int | None = None) -> Stream:
    """Its first two tasks with so many sentences of their first and second label.

    Validation is on the training sentences if not said otherwise, so that a short training is kept.
    """
    tasks = []
    for task in stream.tasks[:2]:
        room = dict(zip(task.labels, sizes, strict=True))
        pairs = []
        for text, label in zip(task.train.texts, task.train.labels, strict=True):
            if room[label]:
                room[label] -= 1
                pairs.append((text, label))
        assert not any(room.values()), "the stream is too short"
        train = Split.of(pairs)
        tasks.append(replace(task, train=train, valid=task.valid.capped(valid) if valid else train))
    return replace(stream, tasks=tuple(tasks))


def strengths(name: str) -> dict[str, float]:
    """1, or what the method starts with itself, such as frozen's infinity."""
    method = METHODS[name]()
    return {one: getattr(method, one) or 1.0 for one in method.strengths}


def taught(
    path: str,
    method: Method,
    stream: Stream,
    *,
    fixed: dict[str, Any] | None = None,
    change: Callable[[Classifier], Any] = lambda model: None,
    **settings: Any,
) -> tuple[Learner, list[Lesson]]:
    """All tasks of a stream; those of a joint method are the one it makes of them."""
    method.set(**fixed or {})
    learner = make_learner(path, method, stream, small(**SHORT | settings), fixed=set(fixed or {}))
    change(learner.model)
    lessons = []
    for task in method.curriculum(stream):
        lessons.append(learner.learn(task))
        for trial in lessons[-1].trials:  # they are gone when the next task but one is learnt
            for group, params in trial.read().items():
                assert_finite(group, params)
    return learner, lessons


def assert_sound(learner: Learner, lessons: list[Lesson]) -> None:
    for lesson in lessons:
        assert any(trial.fit["best_epoch"] for trial in lesson.trials), "something was learnt, and kept"
    for lesson in lessons:
        for trial in lesson.trials:
            assert not trial.fit["diverged"], trial.choice
            assert math.isfinite(trial.score)
    tensors, meta = learner.state()
    for group, params in {"model": weights_of(learner), **tensors}.items():
        assert_finite(group, params)
    assert all(math.isfinite(value) for value in meta["numbers"].values() if isinstance(value, float))


def assert_finite(group: str, params: P.Params) -> None:
    odd = [key for key, value in params.items() if not torch.isfinite(value).all()]
    assert not odd, (group, odd)


@every_method
def test_five_sentences(one_layer, name):
    """With the whole search, so with the strongest strengths too."""
    stream = two(domain_stream(), (3, 2), valid=1)
    assert [(len(task.train), len(task.valid)) for task in stream] == [(5, 2)] * 2
    learner, lessons = taught(one_layer, METHODS[name](), stream, epochs=2)
    assert_sound(learner, lessons)


@every_method
def test_a_hundred_to_one(one_layer, name):
    stream = two(domain_stream({"train": 100, "valid": 1, "test": 1}), (100, 1))
    assert [dict(task.train.counts()) for task in stream] == [{"glad": 100, "sad": 1}] * 2
    learner, lessons = taught(one_layer, METHODS[name](), stream, fixed=strengths(name), batch_size=51)
    assert_sound(learner, lessons)


@every_method
def test_a_batch_of_one_sentence(one_layer, name):
    stream = two(class_stream(), (3, 3))
    method = METHODS[name]()
    size = len(method.curriculum(stream).tasks[0].train) - 1
    learner, lessons = taught(one_layer, method, stream, fixed=strengths(name), batch_size=size, epochs=2)
    assert sorted(map(len, learner.train.order(size, torch.Generator()))) == [1, size]
    assert_sound(learner, lessons)


def half(model: Classifier) -> None:
    model.to(torch.bfloat16)


@every_method
def test_half_precision_weights(one_layer, name):
    stream = two(class_stream(), (4, 4))
    learner, lessons = taught(
        one_layer, METHODS[name](), stream, fixed=strengths(name), change=half, batch_size=3
    )
    assert {value.dtype for value in P.snapshot(learner.model).values()} == {torch.bfloat16}
    assert_sound(learner, lessons)


@pytest.mark.parametrize(
    ("name", "values"),
    [("ewc", {"labels": "sample"}), ("ewc", {"labels": "expected"})]
    + [("la-merge", {"importance": importance}) for importance in ESTIMATORS if importance != "mas"]
    + [(name, {"penalty": "proximal"}) for name in ("si", "rwalk")],
    ids=str,
)
def test_half_precision_weights_and_other_options(one_layer, name, values):
    stream, fixed = two(class_stream(), (4, 4)), strengths(name) | values
    learner, lessons = taught(one_layer, METHODS[name](), stream, fixed=fixed, change=half, batch_size=3)
    assert_sound(learner, lessons)


def idle(model: Classifier) -> None:
    model.unused = nn.Parameter(torch.ones(3))


@every_method
def test_a_weight_without_a_gradient(one_layer, name):
    stream = two(class_stream(), (4, 4))
    learner, lessons = taught(
        one_layer, METHODS[name](), stream, fixed=strengths(name), change=idle, batch_size=3
    )
    assert "unused" in P.trainable(learner.model)
    assert_sound(learner, lessons)
    assert torch.equal(learner.model.unused, torch.ones(3)), "no gradient, no pull: no step"

"""All methods stay finite: small, imbalanced and odd tasks, half precision, unused weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.toys import class_stream, domain_stream, small
from helpers.weights import weights_of
from torch import nn

from holdfast.data.tasks import Split, Stream
from holdfast.importance.estimators import ESTIMATORS
from holdfast.learning.learner import Learner
from holdfast.learning.lesson import Lesson
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.base import Method
from holdfast.models import Network
from holdfast.settings import Settings

pytestmark = pytest.mark.slow  # every method under every condition takes a minute

# Methods trained by gradient. Closed-form heads train only if their trunk moves (test_closed_form.py).
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
    """Return the first two tasks with `sizes` sentences of their first and second label.

    Validation is on the training sentences by default, so that a short training is kept.
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
    """Return strengths of 1, or the method's own start, such as infinity for frozen."""
    method = METHODS[name]()
    return {one: getattr(method, one) or 1.0 for one in method.strengths}


def taught(
    path: str,
    method: Method,
    stream: Stream,
    *,
    fixed: dict[str, Any] | None = None,
    change: Callable[[Network], Any] = lambda model: None,
    **settings: Any,
) -> tuple[Learner, list[Lesson]]:
    """Teach all tasks of a stream; a joint method merges them into one."""
    method.set(**fixed or {})
    learner = make_learner(path, method, stream, small(**SHORT | settings), fixed=set(fixed or {}))
    change(learner.model)
    lessons = []
    for task in method.curriculum(stream):
        lessons.append(learner.learn(task))
        for trial in lessons[-1].trials:  # a trial's files are deleted two tasks later
            for group, params in trial.read().items():
                assert_finite(group, params)
    return learner, lessons


def assert_sound(learner: Learner, lessons: list[Lesson]) -> None:
    for lesson in lessons:
        assert any(trial.fit["best_epoch"] for trial in lesson.trials), "some training must have been kept"
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
    """With the whole search, which includes the strongest strengths."""
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
    assert_sound(learner, lessons)
    hand = learner.begin(method.curriculum(stream).tasks[-1])
    assert sorted(map(len, hand.train.order(size, torch.Generator()))) == [1, size]


def half(model: Network) -> None:
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


def idle(model: Network) -> None:
    model.unused = nn.Parameter(torch.ones(3))


@every_method
def test_a_weight_without_a_gradient(one_layer, name):
    stream = two(class_stream(), (4, 4))
    learner, lessons = taught(
        one_layer, METHODS[name](), stream, fixed=strengths(name), change=idle, batch_size=3
    )
    assert "unused" in P.trainable(learner.model)
    assert_sound(learner, lessons)
    assert torch.equal(learner.model.unused, torch.ones(3)), "no step without a gradient or pull"

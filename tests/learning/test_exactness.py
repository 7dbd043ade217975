"""Exactness of learners: any order of data, merging, interruption, forgetting a label."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.learners import STREAM, TEXTS, create, taught

from holdfast import Learner
from holdfast.errors import HoldfastError
from holdfast.everyday.correct import forget_label
from holdfast.heads import SLDAHead
from holdfast.learning.at_hand import AtHand
from holdfast.methods import over_slda, quadratic


def same_head(left: Learner, right: Learner) -> None:
    mine, other = left.model.head, right.model.head
    assert isinstance(mine, SLDAHead)
    assert isinstance(other, SLDAHead)
    assert sorted(mine.labels) == sorted(other.labels)
    order = [other.labels.index(label) for label in mine.labels]
    for a, b in zip(mine.solve(mine.chosen), other.solve(other.chosen), strict=True):
        # 1e-6: a sentence's vector depends that much on the other sentences of its batch.
        assert torch.allclose(a, b[order], rtol=0, atol=1e-6 * float(a.abs().max()))
    z = mine.past.means()
    assert torch.allclose(mine(z), other(z)[:, order], rtol=0, atol=1e-6 * float(mine(z).abs().max()))


def exact(tiny: str) -> Learner:
    return create(tiny, "slda", shrinkage=0.05, weighting="equal")


def test_files_in_any_order_and_number_make_the_same_head(one_layer):
    pairs = [pair for task in STREAM for pair in zip(task.train.texts, task.train.labels, strict=True)]
    at_once, piecewise = exact(one_layer), exact(one_layer)
    at_once.learn([text for text, _ in pairs], [label for _, label in pairs])
    mixed = pairs[::5] + pairs[1::5] + pairs[4::5] + pairs[2::5] + pairs[3::5]
    for start in range(0, len(mixed), 13):  # every label arrives in several lessons
        piece = mixed[start : start + 13]
        piecewise.learn([text for text, _ in piece], [label for _, label in piece])
    same_head(at_once, piecewise)


def test_two_states_merged_are_one(one_layer, tmp_path):
    both, left, right = exact(one_layer), exact(one_layer), exact(one_layer)
    for number, task in enumerate(STREAM):
        both.learn(task.train.texts, task.train.labels)
        half = len(task.train) // 2 + number
        left.learn(task.train.texts[:half], task.train.labels[:half])
        right.learn(task.train.texts[half:], task.train.labels[half:])
    right.save(tmp_path)
    left.merge(Learner.load(tmp_path))
    same_head(left, both)


def test_an_empty_learner_takes_over_what_it_merges(one_layer):
    """Including choices and calibration."""
    learner, empty = taught(one_layer), create(one_layer)
    empty.merge(learner)
    assert empty.model.head.chosen == learner.model.head.chosen
    assert np.allclose(empty.predict_proba(TEXTS), learner.predict_proba(TEXTS))


def test_a_trunk_may_move_after_a_merge(one_layer):
    """The merged tasks have no importance: it is measured on the current sentences instead."""
    learner, task = create(one_layer, "la+slda"), STREAM.tasks[2]
    learner.merge(taught(one_layer))
    hand = learner.begin(task)
    over_slda.stand_in(learner.method, hand)
    gold = hand.trial(task, {"lr": 1e-2, "lam": 0.0})
    assert min(quadratic.lam_points(learner.method.alpha, gold)) > 0
    assert learner.method.tasks_pooled == 2


def test_merging_needs_the_same_frozen_encoder(tiny_bert, one_layer):
    left = taught(tiny_bert)
    for other in (taught(one_layer), taught(tiny_bert, "ranpac"), taught(tiny_bert, "first+slda")):
        with pytest.raises(HoldfastError, match="same frozen encoder"):
            left.merge(other)


@pytest.mark.parametrize("method", ["slda", "rda", "auto"])
def test_forgetting_a_label_equals_never_having_learnt_it(one_layer, tmp_path, method):
    own = {
        "slda": {"weighting": "equal"},
        "rda": {"blend": 0.3},
        "auto": {"sentences": 0, "scatter": "per-class"},
    }
    options = {"shrinkage": 0.05} | own[method]
    gone = STREAM.tasks[0].labels[1]
    learner, clean = create(one_layer, method, **options), create(one_layer, method, **options)
    for task in STREAM:
        pairs = list(zip(task.train.texts, task.train.labels, strict=True))
        kept = [pair for pair in pairs if pair[1] != gone]
        learner.learn([text for text, _ in pairs], [label for _, label in pairs])
        clean.learn([text for text, _ in kept], [label for _, label in kept])
    learner.save(tmp_path)
    traces = "settings chosen on held-out sentences (temperature, distances of --reject)"
    done = forget_label(tmp_path, gone)
    assert (done.generation, done.traces) == (2, traces)
    other = Learner.load(tmp_path)
    same_head(other, clean)
    assert gone not in other.predict(TEXTS)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "traces"),
    [
        ("adabop", "the moments and tokens that the method keeps"),
        ("la", "every weight"),
        ("klda", "pooled"),
        ("ranpac", "pooled"),
        ("first+slda", "encoder"),
        ("la+slda", "importances"),
    ],
)
def test_elsewhere_forgetting_says_what_keeps_traces(one_layer, tmp_path, method, traces):
    learner = taught(one_layer, method)
    gone = learner.classes_[0]
    learner.save(tmp_path)
    assert traces in forget_label(tmp_path, gone).traces
    other = Learner.load(tmp_path)
    assert gone not in other.classes_
    assert set(other.predict(TEXTS)) <= set(other.classes_)
    task = STREAM.tasks[2]
    other.learn(task.train.texts, task.train.labels)  # it can still learn
    assert len(other.classes_) == 5


def test_an_interrupted_lesson_leaves_nothing_to_the_next(one_layer, monkeypatch):
    """In a notebook: Ctrl-C in a task, followed by another task or by forgetting a label."""
    first, second = STREAM.tasks[:2]
    learner, plain = create(one_layer), create(one_layer)
    with monkeypatch.context() as patch:
        patch.setattr(AtHand, "adopt", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            learner.learn(first.train.texts, first.train.labels)
    for one in (learner, plain):
        one.learn(second.train.texts, second.train.labels)
        one.learn(first.train.texts, first.train.labels)
    assert sorted(learner.classes_) == sorted(plain.classes_)
    same_head(plain, learner)
    with monkeypatch.context() as patch:
        patch.setattr(AtHand, "adopt", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            learner.learn(second.train.texts, second.train.labels)
    learner.forget(second.labels[0])
    learner.learn(second.train.texts, second.train.labels)
    assert sorted(learner.classes_) == sorted(plain.classes_)

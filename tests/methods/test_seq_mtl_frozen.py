"""The baselines: SEQ (compared with a naive training), MTL (all tasks at once), frozen (λ = ∞)."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.by_hand import LR, distance, dry_task, naive_training
from helpers.learners import make_learner
from helpers.toys import small
from helpers.weights import assert_same_bits, weights_of

from holdfast.maths import params as P
from holdfast.methods import METHODS


def test_seq_by_hand(tiny_bert_dry, domains):
    hand = dry_task(tiny_bert_dry, METHODS["seq"](lr=LR), domains)
    start = P.snapshot(hand.model)
    expected = naive_training(hand, P.zeros(start), 0.0)
    trial = hand.trial(domains.tasks[1], {"lr": LR})
    assert trial.fit["best_epoch"] == 1
    assert distance(trial.params, expected) < 1e-3 * LR
    assert distance(trial.params, start) > LR


def test_seq_keeps_nothing(one_layer, classes):
    learner = make_learner(one_layer, METHODS["seq"](), classes)
    learner.learn(classes.tasks[0])
    tensors, meta = learner.state()
    assert set(tensors) == {"weights"}
    assert meta["numbers"] == {}


def test_seq_takes_the_best_rate_and_the_earlier_on_ties(one_layer, classes):
    settings = small(rates=(1e-7, 1e-2, 1e-2), epochs=8)
    learner = make_learner(one_layer, METHODS["seq"](), classes, settings)
    lesson = learner.learn(classes.tasks[0])
    scores = {trial.choice["lr"]: trial.score for trial in lesson.trials}
    assert scores[1e-2] > scores[1e-7]
    assert lesson.decision.trial.choice == {"lr": 1e-2}
    assert learner.method.lr == 1e-2
    settings = small(rates=(2e-9, 1e-9), epochs=1)
    tied = make_learner(one_layer, METHODS["seq"](), classes, settings).learn(classes.tasks[0])
    assert len({trial.score for trial in tied.trials}) == 1
    assert tied.decision.trial.choice == {"lr": 2e-9}


def test_mtl_joins_tasks(classes):
    joined = METHODS["mtl"]().curriculum(classes)
    [task] = joined
    assert joined.scenario == "joint"
    for part in ("train", "valid", "test"):
        pairs = [(t, y) for one in classes for t, y in zip(*vars(getattr(one, part)).values(), strict=True)]
        found = getattr(task, part)
        assert list(zip(found.texts, found.labels, strict=True)) == pairs
    assert set(task.labels) == set(classes.labels)


def test_mtl_keeps_class_weights_of_domains(domains):
    joined = METHODS["mtl"]().curriculum(domains)
    assert len(joined) == 1
    assert joined.scenario == "domain-incremental"


def test_mtl_trains_without_the_balanced_softmax(one_layer, classes):
    method = METHODS["mtl"]()
    lessons = method.curriculum(classes)
    learner = make_learner(one_layer, method, classes, small(epochs=10))
    assert learner.scenario == "joint"
    hand = learner.begin(lessons.tasks[0])
    objective = hand.train.objective
    assert (objective.log_prior == 0).all()
    assert (objective.weights == 1).all()
    learner.learn(lessons.tasks[0])
    assert min(learner.score(task.test) for task in classes) > 0.5, "nothing is forgotten"


def test_every_other_method_takes_the_stream_as_it_is(classes):
    assert all(METHODS[name]().curriculum(classes) is classes for name in METHODS if name != "mtl")


def test_frozen_trains_new_rows_only(one_layer, classes):
    learner = make_learner(one_layer, METHODS["frozen"](), classes)
    learner.learn(classes.tasks[0])
    before, alpha = weights_of(learner), learner.method.state_dict()["alpha"]
    lesson = learner.learn(classes.tasks[1])
    after = weights_of(learner)
    assert lesson.decision.trial.choice["lam"] == math.inf
    for name, value in before.items():
        if name in alpha:
            held = alpha[name] > 0
            now = after[name][: len(value)]
            assert torch.equal(now[held], value[held]), name
        else:
            assert torch.equal(after[name], value), name
    assert after["head.linear.weight"].shape[0] == 4


def test_frozen_keeps_answers_of_a_domain(one_layer, domains):
    """Without new rows, and with every weight important, the second task changes almost nothing."""
    learner = make_learner(one_layer, METHODS["frozen"](), domains)
    learner.learn(domains.tasks[0])
    predicted = learner.predict(domains.tasks[0].test.texts)
    learner.learn(domains.tasks[1])
    assert learner.predict(domains.tasks[0].test.texts) == predicted


def test_frozen_searches_the_rate_without_a_penalty(one_layer, classes):
    learner = make_learner(one_layer, METHODS["frozen"](), classes, small(rates=(1e-2, 1e-3)))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    choices = [(trial.choice["lr"], trial.choice["lam"]) for trial in lesson.trials]
    assert choices[:2] == [(1e-2, 0.0), (1e-3, 0.0)]
    assert len(choices) == 3
    assert choices[2][1] == math.inf


@pytest.mark.parametrize("name", ["mtl", "frozen"])
def test_the_first_task_is_seq(one_layer, classes, name):
    ends = []
    for method in ("seq", name):
        learner = make_learner(one_layer, METHODS[method](), classes)
        learner.scenario = "class-incremental"
        learner.learn(classes.tasks[0])
        ends.append(weights_of(learner))
    assert_same_bits(*ends)


@pytest.mark.slow
def test_on_a_domain_incremental_stream_the_printed_setting_is_the_default(one_layer, domains):
    printed = small(head="preallocated", logits="all")
    learners = [make_learner(one_layer, METHODS["la"](), domains, s) for s in (small(), printed)]
    for learner in learners:
        for task in domains.tasks[:2]:
            learner.learn(task)
    assert_same_bits(*map(weights_of, learners))

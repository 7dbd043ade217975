"""UPGD's curvature in whole trainings, and its search."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.toys import small
from helpers.upgd import HEAD, LR, Naive, dry_task, prepared, upgd, watch_curvatures
from helpers.weights import assert_same_bits, distance, weights_of
from torch import Tensor

from holdfast.data.batches import Batch
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.losses import Objective
from holdfast.methods.base import Training
from holdfast.steps.upgd import hutchinson

# ---- curvature ----------------------------------------------------------------------------------------


def test_curvature_is_measured_every_so_often(tiny_bert, classes, monkeypatch):
    calls: list[int] = []
    measured = watch_curvatures(monkeypatch)

    def spy(*args: Any) -> P.Params:
        calls.append(len(measured))  # steps taken so far
        return hutchinson(*args)

    monkeypatch.setattr("holdfast.methods.upgd.hutchinson", spy)
    settings = small(epochs=3, patience=3, batch_size=7)  # four batches of 24 sentences
    learner = make_learner(tiny_bert, upgd(every=3), classes, settings, fixed={"lr"})
    lesson = learner.learn(classes.tasks[0])
    assert calls == [0, 3, 6, 9], "steps of the training, not of an epoch"
    assert lesson.chosen_passes["curvature"] == {"forward": 0, "backward": 8}
    assert lesson.chosen_passes["train"] == {"forward": 12, "backward": 12}
    assert len(measured) == 12
    for n, curvature in enumerate(measured):
        assert curvature.keys() == P.trainable(learner.model).keys()
        assert_same_bits(curvature, measured[n - n % 3])
        if n and n % 3 == 0:
            assert distance(curvature, measured[n - 1]) > 0


def test_passes(tiny_bert, classes):
    settings = small(epochs=2, patience=2)
    trained = {"train": {"forward": 6, "backward": 6}}
    for values, expected in (
        ({}, trained | {"curvature": {"forward": 0, "backward": 12}}),
        ({"curvature": "head"}, trained),
        ({"order": "first"}, trained),
        ({"order": "first", "curvature": "head"}, trained),
    ):
        learner = make_learner(tiny_bert, upgd(**values), classes, settings, fixed={"lr"})
        hand = learner.begin(classes.tasks[0])
        assert hand.trial(classes.tasks[0], {"lr": LR}).passes == expected, values


def test_first_order_never_looks_at_curvature(tiny_bert, classes, monkeypatch):
    def refuse(*_: Any) -> None:
        raise AssertionError("no curvature was asked for")

    monkeypatch.setattr("holdfast.methods.upgd.hutchinson", refuse)
    monkeypatch.setattr(Objective, "curvature", refuse)
    learner = make_learner(tiny_bert, upgd(order="first"), classes, small(epochs=1), fixed={"lr"})
    measured = watch_curvatures(monkeypatch)
    learner.learn(classes.tasks[0])
    assert measured == [{}, {}, {}]


def test_nothing_watches_the_head_after_a_step(tiny, classes):
    learner = Learner(tiny, upgd())
    hand = learner.begin(classes.tasks[0])
    training, measured = prepared(hand, classes.tasks[0])
    training.losses(learner.model, hand.train.collate(range(4)))
    assert HEAD in measured
    assert not learner.model.head.linear._forward_hooks


def gradients(learner: Learner, training: Training, batch: Batch, seed: int = 5) -> tuple[P.Params, Tensor]:
    """Return the gradients of one batch in training mode, and the next number of the global generator."""
    learner.model.train()
    learner.model.zero_grad()
    torch.manual_seed(seed)
    sum(training.losses(learner.model, batch).values()).backward()
    return {name: weight.grad.clone() for name, weight in P.trainable(learner.model).items()}, torch.rand(1)


@pytest.mark.parametrize("curvature", ["hutchinson", "head"])
def test_the_gradient_is_the_plain_one_under_the_same_dropout(tiny_bert, classes, curvature):
    learner = make_learner(tiny_bert, upgd(curvature=curvature), classes)
    hand = learner.begin(classes.tasks[0])
    assert learner.model.encoder.config._attn_implementation == "sdpa"
    assert learner.model.encoder.config.attention_probs_dropout_prob > 0
    training, measured = prepared(hand, classes.tasks[0])
    batch = hand.train.collate(range(8))
    plain, after_plain = gradients(learner, Training(LR), batch)
    own, after_own = gradients(learner, training, batch)
    other, _ = gradients(learner, Training(LR), batch, seed=6)
    assert measured
    assert distance(own, plain) < 1e-6
    assert distance(other, plain) > 1e-3, "dropout must have an effect"
    assert torch.equal(after_plain, after_own), "no more random numbers than in a plain pass"


def test_hutchinson_in_training_mode_sees_one_dropout_mask(tiny_bert, classes):
    """z ⊙ Hz of the training loss itself: the gradient of z·g, with dropout fixed by its seed."""
    learner = make_learner(tiny_bert, upgd(), classes)
    hand = learner.begin(classes.tasks[0])
    training, measured = prepared(hand, classes.tasks[0])
    batch = hand.train.collate(range(8))
    gradients(learner, training, batch)
    found = {name: value.double() for name, value in measured.items()}

    learner.model.double()
    signs = torch.Generator().manual_seed(hand.task_seed)
    weights = P.trainable(learner.model)
    z = {
        name: 2.0 * torch.randint(0, 2, w.shape, generator=signs) - 1
        for name, w in weights.items()
        if not name.startswith("head.")
    }
    start, eps, ends = P.snapshot(learner.model), 1e-3, []
    for sign in (1, -1):
        P.restore(learner.model, {n: v + sign * eps * z[n] if n in z else v for n, v in start.items()})
        ends.append(gradients(learner, Training(LR), batch)[0])
    for name in z:
        expected = z[name] * (ends[0][name] - ends[1][name]) / (2 * eps)
        scale = float(expected.abs().max())
        assert scale > 0
        assert float((found[name] - expected).abs().max()) < 0.05 * scale, name


def test_long_and_short_sentences_in_one_batch(tiny_bert_dry, domains):
    """Groups of similar length pass through the encoder separately, through the head together."""
    hand = dry_task(tiny_bert_dry, upgd(), domains)
    training, measured = prepared(hand, domains.tasks[1])
    words = list(hand.train.tokens[0][1:-1])
    tokens = [[*row[:1], *words * 8, *row[-1:]] if i < 3 else row for i, row in enumerate(hand.train.tokens)]
    batch = type(hand.train)(tokens, hand.train.labels, hand.train.pad, hand.train.objective)
    batch = batch.collate(range(6))
    assert len(batch.by_length()) == 2
    hand.model.double()  # only for the reference
    naive = Naive(hand)
    theta = {name: value.double() for name, value in hand.start.items()}
    head = naive.of_head(theta, batch)
    trunk = naive.estimate(theta, batch, torch.Generator().manual_seed(hand.task_seed))
    hand.model.float()
    training.losses(hand.model, batch)
    for name, expected in (head | trunk).items():
        error = float((measured[name].double() - expected).abs().max())
        assert error < 1e-3 * float(expected.abs().max()), name


def test_half_precision_weights_have_single_precision_utilities(tiny_bert, classes, monkeypatch):
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    learner.model.bfloat16()
    measured = watch_curvatures(monkeypatch)
    learner.learn(classes.tasks[0])
    learner.learn(classes.tasks[1])
    assert {weight.dtype for weight in P.trainable(learner.model).values()} == {torch.bfloat16}
    assert {value.dtype for value in learner.method.utility.values()} == {torch.float32}
    assert {value.dtype for curvature in measured for value in curvature.values()} == {torch.float32}
    assert all(torch.isfinite(value).all() for value in learner.method.utility.values())
    assert float(learner.method.steps[HEAD]) == 6


# ---- search -------------------------------------------------------------------------------------------


def test_the_search_tries_the_sgd_rates_and_nothing_else(tiny_bert, classes):
    settings = small(epochs=1, sgd_rates=(0.2, 0.02, 0.002), rates=(7.0,), batch_size=24)
    learner = make_learner(tiny_bert, upgd(order="first"), classes, settings)
    for task in classes.tasks[:2]:
        lesson = learner.learn(task)
        assert [trial.choice for trial in lesson.trials] == [{"lr": 0.2}, {"lr": 0.02}, {"lr": 0.002}]
        best = max(lesson.trials, key=lambda trial: trial.score)
        assert learner.method.lr == lesson.decision.trial.choice["lr"] == best.choice["lr"]


def test_a_fixed_rate_is_the_only_trial(tiny_bert, classes):
    settings = small(epochs=1, sgd_rates=(0.2, 0.02), batch_size=24)
    learner = make_learner(tiny_bert, upgd(order="first", lr=0.7), classes, settings, fixed={"lr"})
    lesson = learner.learn(classes.tasks[0])
    assert [trial.choice for trial in lesson.trials] == [{"lr": 0.7}]
    assert learner.method.lr == 0.7


def test_nothing_to_train_but_the_head(tiny_bert, classes):
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    for name, weight in learner.model.named_parameters():
        weight.requires_grad_(name.startswith("head."))
    learner.learn(classes.tasks[0])
    assert set(learner.method.utility) == {HEAD, "head.linear.bias"}
    assert all(math.isfinite(float(value.sum())) for value in learner.method.utility.values())


def test_the_whole_stream_with_a_preallocated_head(tiny_bert, classes):
    """Rows of unseen labels have no curvature and, with a prior of 0, no gradient."""
    settings = small(head="preallocated", logits="all", epochs=2)
    learner = make_learner(tiny_bert, upgd(), classes, settings, fixed={"lr"})
    learner.learn(classes.tasks[0])
    assert torch.equal(learner.method.utility[HEAD][2:], torch.zeros(4, 32))
    assert (learner.method.utility[HEAD][:2] != 0).any()
    for task in classes.tasks[1:]:
        learner.learn(task)
    assert all(torch.isfinite(value).all() for value in weights_of(learner).values())
    assert all(torch.isfinite(value).all() for value in learner.method.utility.values())

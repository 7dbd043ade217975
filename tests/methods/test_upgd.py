"""UPGD: naive trainings, and its memory at task boundaries."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.toys import lopsided, small
from helpers.upgd import HEAD, LR, Naive, dry_task, prepared, upgd
from helpers.weights import assert_same_bits, distance, relative, weights_of
from torch import Tensor

from holdfast.data.batches import Batch
from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.maths.losses import Objective
from holdfast.methods.base import Training
from holdfast.methods.upgd import UPGD, head_curvature
from holdfast.steps.upgd import UPGDOptimizer

# ---- naive trainings ----------------------------------------------------------------------------------


VARIANTS: dict[str, dict[str, Any]] = {
    "first": {"order": "first"},
    "head": {"order": "second", "curvature": "head"},
    "hutchinson": {"order": "second", "curvature": "hutchinson"},
    "seldom": {"order": "second", "curvature": "hutchinson", "every": 2},
    "raw": {"order": "first", "maximum": "raw"},
    "local": {"order": "first", "scaling": "local"},
    "unprotected": {"order": "first", "protecting": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_by_hand(tiny_bert_dry, domains, variant):
    stream = lopsided(domains)
    method = upgd(**VARIANTS[variant])
    hand = dry_task(tiny_bert_dry, method, stream)
    before = method.state_dict()
    expected, utility = Naive(hand).train()
    assert_same_bits(method.utility, before["utility"])
    trial = hand.trial(stream.tasks[1], {"lr": LR})
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    found = trial.read()
    assert relative(found["weights"], expected, hand.start) < 1e-4
    assert relative(found["utility"], utility, before["utility"]) < 1e-4
    assert {float(t) for t in found["steps"].values()} == {7.0}, "four steps before, three now"


def test_these_trainings_differ(tiny_bert_dry, domains):
    stream = lopsided(domains)
    found = {}
    for variant, values in VARIANTS.items():
        hand = dry_task(tiny_bert_dry, upgd(**values), stream)
        assert hand.train.objective.weights.unique().numel() == 2
        found[variant] = Naive(hand).train()[0]
    for one, other in itertools.combinations(found, 2):
        assert relative(found[one], found[other], hand.start) > 3e-3, (one, other)


@pytest.mark.parametrize("curvature", ["hutchinson", "head"])
def test_a_training_in_double_precision(tiny_bert_dry, domains, curvature):
    method = upgd(order="second", curvature=curvature)
    hand = dry_task(tiny_bert_dry, method, domains)
    expected, _ = Naive(hand).train()
    hand.model.double()
    method.utility = {name: value.double() for name, value in method.utility.items()}
    hand = hand.learner.begin(domains.tasks[1])
    trial = hand.trial(domains.tasks[1], {"lr": LR})
    assert relative(trial.params, expected, hand.start) < 1e-5


def test_worked_curvature_of_the_head():
    """specs/upgd.md, section 9: both rows of W2 are [.18395763, .01991612]; equal samples do not matter."""
    hidden = torch.tanh(torch.tensor([[0.3, -0.5], [0.8, 0.2]]) @ torch.tensor([1.0, -2.0])
                        + torch.tensor([0.1, -0.1]))  # fmt: skip
    logits = torch.tensor([[0.7, -0.4], [-0.2, 0.6]]) @ hidden
    objective = Objective(torch.zeros(2), torch.tensor([0.3, 1.7]))
    for n in (1, 2):
        labels = torch.ones(n, dtype=torch.long)
        batch = Batch(labels[:, None], labels[:, None], labels, objective)
        found = head_curvature(batch, hidden.expand(n, 2), logits.expand(n, 2))
        expected = torch.tensor([0.18395763, 0.01991612]).expand(2, 2)
        assert torch.allclose(found[HEAD], expected, rtol=0, atol=1e-6)
        second = 0.62375189 * 0.37624811
        assert torch.allclose(found["head.linear.bias"], torch.full((2,), second), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stream_name", ["classes", "domains"])
def test_curvature_of_the_head_is_autograds(tiny_bert_dry, stream_name, request):
    """As measured in training, with the losses of both scenarios."""
    stream = request.getfixturevalue(stream_name)
    hand = dry_task(tiny_bert_dry, upgd(curvature="head"), stream)
    training, measured = prepared(hand, stream.tasks[1])
    batch = hand.train.collate(range(6))
    training.losses(hand.model, batch)
    assert set(measured) == {HEAD, "head.linear.bias"}
    features = hand.model.features(batch).detach()

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        return batch.objective(features @ weight.T + bias, batch.labels)

    head = hand.model.head.linear
    blocks = torch.autograd.functional.hessian(loss, (head.weight.detach(), head.bias.detach()))
    for i, name in enumerate((HEAD, "head.linear.bias")):
        n = measured[name].numel()
        diagonal = blocks[i][i].reshape(n, n).diagonal().view_as(measured[name])
        assert diagonal.abs().max() > 1e-3
        assert torch.allclose(measured[name], diagonal, rtol=1e-3, atol=1e-6)


# ---- memory -------------------------------------------------------------------------------------------


def test_memory_survives_the_task_boundary_and_grows_by_zeros(tiny_bert, classes, monkeypatch):
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=2), fixed={"lr"})
    method = learner.method
    assert method.utility == method.steps == {}
    lesson = learner.learn(classes.tasks[0])
    epochs = lesson.decision.trial.fit["best_epoch"]
    assert epochs > 0
    assert {float(t) for t in method.steps.values()} == {3.0 * epochs}
    assert all((u != 0).any() for u in method.utility.values())
    first = method.state_dict()

    learner.begin(classes.tasks[1])
    for name, value in method.utility.items():
        if name.startswith("head."):
            assert torch.equal(value[:2], first["utility"][name])
            assert torch.equal(value[2:], torch.zeros_like(value[2:]))
            assert len(value) == 4
        else:
            assert torch.equal(value, first["utility"][name])
    assert method.steps == first["steps"]

    started: list[dict[str, P.Params]] = []

    def optimizer(weights: Any, lr: float, **given: Any) -> UPGDOptimizer:
        groups = ("utility", "steps")
        started.append({group: {n: t.clone() for n, t in given[group].items()} for group in groups})
        return UPGDOptimizer(weights, lr, **given)

    monkeypatch.setattr("holdfast.methods.upgd.UPGDOptimizer", optimizer)
    lesson = learner.learn(classes.tasks[1])
    assert len(started) == 1
    assert_same_bits(started[0]["steps"], first["steps"])
    for name, value in first["utility"].items():
        assert torch.equal(started[0]["utility"][name][: len(value)], value), name
    more = lesson.decision.trial.fit["best_epoch"]
    assert {float(t) for t in method.steps.values()} == {3.0 * (epochs + more)}


@pytest.mark.slow
def test_trials_do_not_leak_into_the_memory(tiny_bert, classes):
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    before, weights = learner.method.state_dict(), weights_of(learner)
    hand.trial(classes.tasks[1], {"lr": 0.3})
    one = hand.trial(classes.tasks[1], {"lr": LR}).read()
    assert_same_bits(learner.method.utility, before["utility"])
    assert_same_bits(learner.method.steps, before["steps"])
    assert_same_bits(weights_of(learner), weights)

    alone = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    alone.learn(classes.tasks[0])
    other = alone.begin(classes.tasks[1]).trial(classes.tasks[1], {"lr": LR}).read()
    for group in ("weights", "utility", "steps"):
        assert_same_bits(one[group], other[group])


def test_the_best_epoch_brings_its_utility_back(tiny_bert, classes, monkeypatch):
    losses = iter([1.0, 0.5, 0.9, 0.8])
    monkeypatch.setattr("holdfast.learning.fit._validate", lambda *_: (next(losses), 0.0))
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=3), fixed={"lr"})
    method = learner.method
    seen: list[tuple[dict[str, P.Params], P.Params]] = []
    deployed = UPGD.deployed

    def spy(trained: UPGD, own: AtHand, training: Training, epoch: int) -> P.Params:
        carried = {
            group: {n: t.clone() for n, t in params.items()} for group, params in training.carried.items()
        }
        seen.append((carried, P.snapshot(own.model)))
        return deployed(trained, own, training, epoch)

    monkeypatch.setattr(UPGD, "deployed", spy)
    lesson = learner.learn(classes.tasks[0])
    assert lesson.decision.trial.fit["epochs"] == 3
    assert lesson.decision.trial.fit["best_epoch"] == 1
    assert [float(state["steps"][HEAD]) for state, _ in seen] == [0, 3, 6, 9]
    state, weights = seen[1]
    assert_same_bits(method.utility, state["utility"])
    assert_same_bits(method.steps, state["steps"])
    assert_same_bits(P.snapshot(learner.model), weights)
    assert distance(method.utility, seen[3][0]["utility"]) > 0


@pytest.mark.slow
def test_a_learner_goes_on_from_its_stored_state(tiny_bert, classes):
    first = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    first.learn(classes.tasks[0])
    second = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    second.load_state(*first.state())
    for learner in (first, second):
        learner.learn(classes.tasks[1])
    assert_same_bits(weights_of(first), weights_of(second))
    assert_same_bits(first.method.utility, second.method.utility)
    forgetful = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    forgetful.learn(classes.tasks[0])
    forgetful.method.utility, forgetful.method.steps = {}, {}
    forgetful.learn(classes.tasks[1])
    assert distance(weights_of(forgetful), weights_of(first)) > 1e-5, "the memory must have an effect"

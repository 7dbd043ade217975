"""The run's optimiser: its steps by hand, its learning rates, and methods with an optimiser of their own."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from helpers.by_hand import distance, dry_task
from helpers.learners import make_learner
from helpers.toys import small
from helpers.weights import assert_same_bits, weights_of
from torch import nn
from torch.optim import SGD, AdamW

from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.base import Training
from holdfast.methods.mas import MAS
from holdfast.settings import Settings

RATE = 0.05


def test_the_settings_choose_the_optimiser() -> None:
    weights = {"w": nn.Parameter(torch.ones(3))}
    adam = Training(0.1).make_optimizer(weights, Settings())
    plain = Training(0.1).make_optimizer(weights, Settings(optimizer="sgd", momentum=0.75))
    assert type(adam) is AdamW
    assert type(plain) is SGD
    assert (plain.defaults["lr"], plain.defaults["momentum"], plain.defaults["weight_decay"]) == (
        0.1,
        0.75,
        0,
    )
    assert plain.defaults["nesterov"] is False


def test_two_steps_with_momentum_by_hand() -> None:
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = Training(0.1).make_optimizer({"w": weight}, Settings(optimizer="sgd", momentum=0.5))
    for _ in range(2):  # of θ², whose gradient is 2 θ
        optimizer.zero_grad()
        weight.square().sum().backward()
        optimizer.step()
    # b = 4, θ = 2 - 0.4 = 1.6; b = 0.5 · 4 + 3.2 = 5.2, θ = 1.6 - 0.52
    assert weight.item() == pytest.approx(1.08)


def naive_sgd(hand: AtHand, alpha: P.Params, lam: float, momentum: float) -> P.Params:
    """Return the weights after an epoch of SGD on task loss + (lam/2) Σ alpha (θ - θ0)²."""
    model = hand.model
    theta, anchor = P.snapshot(model), P.snapshot(model)
    buffer = P.zeros(theta)
    order = hand.train.order(hand.settings.batch_size, torch.Generator().manual_seed(hand.task_seed))
    model.eval()
    for t, indices in enumerate(order, start=1):
        batch = hand.train.collate(indices)
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        loss = P.predict(model, leaves, batch).loss
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        for name, gradient in zip(theta, gradients, strict=True):
            pull = lam * alpha[name] * (theta[name] - anchor[name])
            buffer[name] = momentum * buffer[name] + gradient + pull
            theta[name] = theta[name] - RATE * min(1.0, t / len(order)) * buffer[name]
    return theta


@pytest.mark.parametrize("momentum", [0.0, 0.6])
def test_a_penalised_epoch_of_sgd_by_hand(tiny_bert_dry, domains, momentum):
    hand = dry_task(tiny_bert_dry, MAS(lr=RATE), domains, optimizer="sgd", momentum=momentum)
    alpha, lam = hand.method.alpha, 3.0
    expected = naive_sgd(hand, alpha, lam, momentum)
    trial = hand.trial(domains.tasks[1], {"lr": RATE, "lam": lam})
    assert trial.fit["best_epoch"] == 1
    moved = distance(hand.start, expected)
    assert distance(trial.params, expected) < 1e-4 * moved
    assert distance(naive_sgd(hand, alpha, 0.0, momentum), expected) > 1e-2 * moved, "the pull counts"


def test_the_rates_go_with_the_optimiser(one_layer, classes):
    settings = small(epochs=1, batch_size=24, rates=(1e-3, 1e-2), sgd_rates=(0.3, 0.1))
    tried = {}
    for optimizer in ("adamw", "sgd"):
        chosen = dataclasses.replace(settings, optimizer=optimizer)
        learner = make_learner(one_layer, METHODS["seq"](), classes, chosen)
        tried[optimizer] = [trial.choice["lr"] for trial in learner.learn(classes.tasks[0]).trials]
    assert tried == {"adamw": [1e-3, 1e-2], "sgd": [0.3, 0.1]}


def test_an_optimiser_of_its_own_ignores_the_setting(one_layer, classes):
    found = []
    for optimizer in ("adamw", "sgd"):
        settings = small(epochs=1, batch_size=24, optimizer=optimizer, momentum=0.5)
        learner = make_learner(one_layer, METHODS["upgd"](order="first"), classes, settings)
        learner.learn(classes.tasks[0])
        found.append(weights_of(learner))
    assert_same_bits(*found)

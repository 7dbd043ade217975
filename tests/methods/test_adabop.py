"""AdaBOP: a naive training, the choice of λ for a layer, and options that switch it off."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from helpers.adabop import (
    HELD,
    adabop_learner,
    gradients_by_hand,
    loss_by_hand,
    matrix,
    moments_by_hand,
    shaken,
)
from helpers.by_hand import LR, distance
from helpers.learners import make_learner
from helpers.toys import class_stream, small
from helpers.weights import assert_same_bits, weights_of

from holdfast.data.tasks import Stream
from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import METHODS
from holdfast.methods.adabop import AdaBOP

# ---- naive training -----------------------------------------------------------------------------------


def related_by_hand(new: np.ndarray, old: np.ndarray, scale: str) -> float:
    found = np.sqrt(((new @ old.T) ** 2).sum()) / np.sqrt((new**2).sum())
    return float(found / np.linalg.svd(old)[1][0] if scale == "free" else found)


def projector_by_hand(method: AdaBOP, moment: np.ndarray, lam: float) -> np.ndarray:
    sigma, vectors = np.linalg.eigh(moment)
    sigma = 1 + lam * method.mass * sigma.clip(0)
    if method.selection == "soft":
        return np.linalg.inv(np.eye(len(moment)) + lam * method.mass * moment)
    count = max(math.floor(len(moment) * method.fraction), 1)
    ours = sigma <= method.tau * sigma[0] if method.selection == "ratio" else np.arange(len(sigma)) < count
    found = vectors[:, ours] @ vectors[:, ours].T
    return found / np.sqrt((found**2).sum()) if method.normalize else found


def training_by_hand(hand: AtHand, projectors: dict[str, np.ndarray], free: list[int]) -> Params:
    """Return the weights after an epoch of AdamW whose every step u becomes u P."""
    model, start = hand.model, P.snapshot(hand.model)
    theta = {name: value.clone() for name, value in start.items()}
    moment, second = P.zeros(theta), P.zeros(theta)
    size = hand.settings.batch_size
    batches = hand.train.order(size, torch.Generator().manual_seed(hand.task_seed))
    model.eval()  # there is no dropout anyway
    for t, indices in enumerate(batches, start=1):
        batch = hand.train.collate(indices)
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        loss = loss_by_hand(hand, P.predict(model, leaves, batch).logits, batch.labels)
        gradients = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))
        rate = LR * min(1.0, t / len(batches))
        u = {}
        for name, g in gradients.items():
            moment[name] = 0.9 * moment[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g * g
            u[name] = -rate * moment[name] / (1 - 0.9**t) / ((second[name] / (1 - 0.999**t)).sqrt() + 1e-8)
        if not projectors:
            theta = {name: value + u[name] for name, value in theta.items()}
        for place, projector in projectors.items():
            step = matrix(u, place) @ projector
            if place == "head.linear":
                step[free] = matrix(u, place)[free]
            theta[f"{place}.weight"] = theta[f"{place}.weight"] + torch.from_numpy(step[:, :-1])
            theta[f"{place}.bias"] = theta[f"{place}.bias"] + torch.from_numpy(step[:, -1])
    P.restore(model, start)
    return theta


def dry(path: str, stream: Stream, **values: Any) -> Learner:
    """Return a float64 learner without dropout. Its mass, a power of two, is exact in any precision."""
    learner = adabop_learner(path, stream, small(epochs=1), fixed=HELD, lr=LR, mass=4096.0, **values)
    learner.model.double()
    learner.model.dropout.p = 0.0
    return shaken(learner)


WAYS = [
    {"selection": "ratio", "normalize": False},
    {"selection": "ratio", "normalize": True},
    {"selection": "ratio", "normalize": False, "scale": "free"},
    {"selection": "fraction", "fraction": 0.2, "normalize": False},
    {"selection": "fraction", "fraction": 0.01, "normalize": True},
    {"selection": "soft", "normalize": False},
    {"selection": "soft", "normalize": True},  # no effect: the size sets the softness
]


@pytest.fixture(scope="module")
def worked(tiny_bert_dry: str) -> tuple[dict[str, np.ndarray], Params, Params]:
    """Return the moments and gradients of the first task and the gradients of the second."""
    torch.set_num_threads(1)
    stream = class_stream()
    one, two, _ = stream.tasks
    twin = dry(tiny_bert_dry, stream)
    past = gradients_by_hand(twin.begin(one))
    for name in ("head.linear.weight", "head.linear.bias"):
        past[name] = torch.cat([past[name], torch.zeros_like(past[name])])  # rows of new labels
    learner = dry(tiny_bert_dry, stream)
    learner.learn(one)
    sentences = [learner.model.encode(one.train).collate([i]) for i in range(len(one.train))]
    moments, _ = moments_by_hand(learner.model, sentences)
    return moments, past, gradients_by_hand(learner.begin(two))


@pytest.mark.parametrize(
    "values",
    [*WAYS[::3], *(pytest.param(way, marks=pytest.mark.slow) for n, way in enumerate(WAYS) if n % 3)],
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_a_training_by_hand(tiny_bert_dry, classes, worked, values):
    one, two, _ = classes.tasks
    moments, past, now = worked
    learner = dry(tiny_bert_dry, classes, **values)
    learner.learn(one)
    for place, moment in moments.items():
        assert np.allclose(learner.method.moments[place].numpy(), moment, rtol=1e-4, atol=1e-6), place
    # The state is in single precision, so compare with the null space of the stored moments.
    moments = {place: value.double().numpy() for place, value in learner.method.moments.items()}
    hand = learner.begin(two)
    assert hand.past_rows == [0, 1]
    scale = values.get("scale", "plain")
    related = {p: related_by_hand(matrix(now, p), matrix(past, p), scale) for p in moments}
    low, high = sorted(related.values())[3:5]
    method, choice = learner.method, {"lr": LR, "lam_s": 0.005, "lam_l": 0.3, "eps": (low + high) / 2}
    projectors = {
        place: projector_by_hand(method, moment, 0.005 if related[place] > choice["eps"] else 0.3)
        for place, moment in moments.items()
    }
    expected = training_by_hand(hand, projectors, free=[2, 3])

    trial = hand.trial(two, choice)
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 1e-3 * LR
    assert distance(trial.params, training_by_hand(hand, {}, [])) > 0.05 * LR, (
        "the projection must have an effect"
    )
    if values["selection"] != "fraction":
        for lam in (0.005, 0.3):
            same = {p: projector_by_hand(method, moment, lam) for p, moment in moments.items()}
            assert distance(expected, training_by_hand(hand, same, [2, 3])) > 0.01 * LR, (
                "both λ must have an effect"
            )


# ---- choice of λ --------------------------------------------------------------------------------------


def single(scale: str, **values: Any) -> tuple[AdaBOP, Params]:
    """Return a method with two layers: in one the new gradient is parallel to the old, in the other not."""
    method = AdaBOP(lam_s=0.1, lam_l=10.0, eps=0.5, mass=1.0, tau=3.0, normalize=False, scale=scale, **values)
    old, along, across = torch.eye(3)[:1], torch.eye(3)[:1], torch.eye(3)[1:2]
    bias = torch.zeros(1)
    method.gradients = {f"{p}.{n}": v for p in ("a", "b") for n, v in (("weight", old), ("bias", bias))}
    method.moments = dict.fromkeys("ab", torch.diag(torch.tensor([0.0, 0.1, 1.0, 40.0])))
    now = {"a.weight": along, "a.bias": bias, "b.weight": across, "b.bias": bias}
    return method, now


@pytest.mark.parametrize("scale", ["plain", "free"])
def test_related_layers_get_the_loose_lambda(scale):
    method, now = single(scale)
    # σ = 1, 1.01, 1.1, 5 at λ = .1 and 1, 2, 11, 401 at λ = 10
    assert [round(float(value), 9) for value in method.projector("a", now).diagonal()] == [1, 1, 1, 0]
    assert [round(float(value), 9) for value in method.projector("b", now).diagonal()] == [1, 1, 0, 0]


def test_the_published_correlation_depends_on_the_old_gradients_scale():
    for scale, count in (("plain", 2), ("free", 3)):
        method, now = single(scale)
        method.gradients = {name: value / 100 for name, value in method.gradients.items()}
        assert round(float(method.projector("a", now).trace())) == count


def test_a_layer_at_the_threshold_is_not_related():
    method, now = single("free")
    method.eps = 1.0
    assert round(float(method.projector("a", now).trace())) == 2


def test_a_bias_takes_part_in_the_correlation():
    method, now = single("free")
    now["b.bias"] = torch.ones(1)
    method.gradients["b.weight"], method.gradients["b.bias"] = torch.zeros(1, 3), torch.ones(1)
    assert round(float(method.projector("b", now).trace())) == 3


@pytest.mark.parametrize("selection", ["ratio", "fraction", "soft"])
def test_layers_without_gradients_or_inputs_give_no_nan(selection):
    method, now = single("free", selection=selection)
    method.normalize = True
    now = P.zeros(now)
    method.moments["b"] = torch.zeros(4, 4)
    assert all(torch.isfinite(method.projector(place, now)).all() for place in "ab")


def test_a_normalised_projector_has_norm_one():
    for selection in ("ratio", "fraction"):
        method, now = single("plain", selection=selection)
        method.normalize = True
        assert float(torch.linalg.norm(method.projector("a", now))) == pytest.approx(1.0)
    method, now = single("plain", selection="soft")
    method.normalize = True
    assert float(torch.linalg.norm(method.projector("a", now))) > 1.5, "a soft projector is not normalised"


# ---- switching it off ---------------------------------------------------------------------------------


def test_the_first_task_is_seq_bit_for_bit(tiny_bert, classes):
    seq = make_learner(tiny_bert, METHODS["seq"](), classes)
    own = adabop_learner(tiny_bert, classes)
    for learner in (seq, own):
        learner.learn(classes.tasks[0])
    assert own.method.moments
    assert_same_bits(weights_of(seq), weights_of(own))


@pytest.mark.parametrize("selection", ["ratio", "fraction"])
@pytest.mark.slow
def test_strengths_of_zero_are_seq_bit_for_bit(tiny_bert, classes, selection):
    values = {"lam_s": 0.0, "lam_l": 0.0, "selection": selection}
    settings = small(epochs=2)
    seq = make_learner(tiny_bert, METHODS["seq"](), classes, settings)
    own = adabop_learner(tiny_bert, classes, settings, fixed=HELD - {"lr"}, **values)
    held = adabop_learner(tiny_bert, classes, settings, fixed=HELD - {"lr"}, selection=selection)
    for task in classes.tasks[:2]:
        for learner in (seq, own, held):
            learner.learn(task)
    assert_same_bits(weights_of(seq), weights_of(own))
    assert distance(weights_of(seq), weights_of(held)) > 1e-3

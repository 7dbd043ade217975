"""The trace of path integrals, and the forms of the penalty with every estimator."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.toys import small
from helpers.walks import SHORT, few, kept
from helpers.watching import watch_trainings
from helpers.weights import assert_same_bits, weights_of

from holdfast.maths import params as P
from holdfast.methods import METHODS

pytestmark = pytest.mark.slow  # half a minute in total


# ---- the trace ----------------------------------------------------------------------------------------

TRACED = [name for name in METHODS if "trace" in METHODS[name].state]


def test_who_keeps_a_trace():
    assert {"mas", "ewc", "si", "rwalk", "la", "la-merge"} <= set(TRACED)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("si", {"lam": 0.5}),
        ("rwalk", {"lam": 0.5}),
        ("la", {"lam": 0.5, "down": 0.5, "up": 0.5, "importance": "si"}),
        ("la-merge", {"importance": "rwalk"}),
    ],
    ids=str,
)
def test_the_trace_is_empty_between_tasks(one_layer, name, values):
    stream = few()
    learner = make_learner(one_layer, METHODS[name](**values), stream, small(**SHORT), fixed=set(values))
    for task in stream.tasks[:2]:
        lesson = learner.learn(task)
        assert lesson.decision.trial.read()["trace"], "the training was observed"
        assert learner.method.trace == {}
        assert learner.state()[0]["trace"] == {}


@pytest.mark.parametrize("name", ["si", "rwalk"])
@pytest.mark.parametrize("best", [0, 2])
def test_the_trace_goes_back_to_the_best_epoch(one_layer, name, best, monkeypatch):
    """It is bit-equal to that of a training that ends at this epoch. The validation losses are made up."""
    stream = few()
    learner = make_learner(one_layer, METHODS[name](), stream, small(epochs=4, batch_size=4, patience=4))
    learner.learn(stream.tasks[0])
    hand = learner.begin(stream.tasks[1])
    made = watch_trainings(monkeypatch)

    def trained(losses: list[float]) -> Any:
        learner.settings = small(epochs=len(losses) - 1, batch_size=4, patience=4)
        made_up = iter(losses)
        monkeypatch.setattr("holdfast.learning.fit._validate", lambda *args: (next(made_up), 0.0))
        return hand.trial(stream.tasks[1], {"lr": 1e-2, "lam": 5.0})

    long = trained([1.0, 1.1, 1.2, 1.3, 1.4] if best == 0 else [1.0, 0.9, 0.5, 0.7, 0.6])
    assert (long.fit["best_epoch"], long.fit["epochs"]) == (best, 4)
    [training] = [one.training for one in made]
    last, found, weights = training.carried["trace"], long.read()["trace"], long.params
    assert any(f"path/{key}" in last or f"score/{key}" in last for key in hand.start)
    assert last.keys() != found.keys() or any(not torch.equal(last[key], found[key]) for key in found)
    if best == 0:
        assert_same_bits(weights, hand.start)
        fisher = {f"fisher/{key}": value for key, value in getattr(learner.method, "fisher", {}).items()}
        assert_same_bits(found, fisher)
    else:
        learner.start_over()
        hand = learner.begin(stream.tasks[1])
        short = trained([1.0, 0.9, 0.5])
        assert (short.fit["best_epoch"], short.fit["epochs"]) == (2, 2)
        assert_same_bits(short.params, weights)
        assert_same_bits(short.read()["trace"], found)


# ---- the forms of the penalty -------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_both_forms_of_the_penalty_hold_back(one_layer, name):
    stream, moved = few(), {}
    for penalty in ("loss", "proximal"):
        method = METHODS[name](penalty=penalty)
        learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
        learner.learn(stream.tasks[0])
        method.lam = 1e3 / max(float(value.max()) for value in method.alpha.values())
        alpha, lam, start = method.state_dict()["alpha"], method.lam, P.snapshot(learner.model)
        lesson = learner.learn(stream.tasks[1])
        assert [trial.choice["lam"] for trial in lesson.trials] == [0.0, lam]
        assert all(trial.fit["best_epoch"] for trial in lesson.trials)
        assert not any(trial.fit["diverged"] for trial in lesson.trials)
        assert all(torch.isfinite(value).all() for value in weights_of(learner).values())
        assert all(torch.isfinite(value).all() for value in method.alpha.values())
        free, held = (
            sum(float((a * (trial.params[key] - start[key]) ** 2).sum()) for key, a in alpha.items())
            for trial in lesson.trials
        )
        moved[penalty] = held / free
    assert moved["loss"] < 0.9
    assert moved["proximal"] < 0.9
    assert moved["loss"] != moved["proximal"]


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
@pytest.mark.parametrize("penalty", ["loss", "proximal"])
def test_lambda_infinity_holds_every_entry_the_past_needs(one_layer, classes, name, penalty):
    learner = make_learner(one_layer, METHODS[name](penalty=penalty), classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    start, alpha = P.snapshot(learner.model), learner.method.state_dict()["alpha"]
    trial = hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": math.inf})
    assert trial.fit["best_epoch"] > 0
    held = {key: value > 0 for key, value in alpha.items()}
    assert sum(int(one.sum()) for one in held.values()) > 1000
    for key, value in trial.params.items():
        assert torch.equal(value[held[key]], start[key][held[key]]), key
    assert (trial.params["head.linear.weight"][2:] != start["head.linear.weight"][2:]).all(), "new rows train"


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_lambda_zero_is_seq_bit_for_bit_in_the_proximal_form_too(one_layer, name):
    stream, found = few(), []
    for method in (METHODS["seq"](), METHODS[name](penalty="proximal")):
        learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
        for task in stream.tasks[:2]:
            assert kept(learner.learn(task))
        found.append(weights_of(learner))
    assert_same_bits(*found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ewc", {}),
        ("si", {"lam": 1e6}),
        ("rwalk", {"lam": 1e6, "penalty": "proximal"}),
        ("si", {"lam": math.inf}),
        ("la", {"lam": 1e6, "down": 0.5, "up": 0.5}),
        ("la-merge", {"merge": 1.0}),
    ],
    ids=str,
)
def test_importance_that_is_zero_everywhere(one_layer, name, values):
    """There is no scale to divide by and nothing to protect: the second task is learnt as by SEQ."""
    stream, found = few(), []
    for method in (METHODS["seq"](), METHODS[name](**values)):
        settings = small(**SHORT, lam_trials=1)
        learner = make_learner(one_layer, method, stream, settings, fixed=set(values))
        learner.learn(stream.tasks[0])
        for value in getattr(method, "alpha", {}).values():
            value.zero_()
        lesson = learner.learn(stream.tasks[1])
        assert kept(lesson)
        assert not any(trial.fit["diverged"] for trial in lesson.trials)
        found.append(weights_of(learner))
    for key, value in found[0].items():
        assert torch.allclose(found[1][key], value, rtol=1e-5, atol=1e-6), key
    assert all(torch.isfinite(value).all() for value in method.alpha.values())

"""Fixed hyper-parameters keep their values, in trials and in decisions."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.toys import class_stream, small

from holdfast.errors import HoldfastError
from holdfast.methods import METHODS, search


def learnt(model: str, name: str, fixed: dict[str, Any], **settings: Any) -> tuple[Any, list[Any]]:
    """Return a learner after two tasks, and its lessons."""
    stream = class_stream()
    method = METHODS[name](**fixed)
    learner = make_learner(model, method, stream, small(epochs=1, **settings), fixed=set(fixed))
    return learner, [learner.learn(task) for task in stream.tasks[:2]]


@pytest.mark.slow
def test_a_largest_lambda_that_is_fixed_is_not_searched(one_layer: str) -> None:
    learner, (_, second) = learnt(one_layer, "la", {"lam_max": 1641.0})
    modulated = [trial.choice for trial in second.trials if trial.choice.get("down") is not None]
    assert modulated, "the second task has something to protect"
    assert {choice["lam_max"] for choice in modulated} == {1641.0}
    assert learner.method.lam_max == 1641.0


def test_frozen_refuses_another_strength(one_layer: str) -> None:
    with pytest.raises(HoldfastError, match="frozen is mas with lam=inf; for lam=5 choose mas"):
        learnt(one_layer, "frozen", {"lam": 5.0})
    learnt(one_layer, "frozen", {"lam": math.inf})


@pytest.mark.parametrize(("strategy", "unused"), [("cf", "down"), ("kt", "up")])
def test_what_a_strategy_does_not_use_is_not_searched(
    one_layer: str, strategy: str, unused: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loosen = search.loosen
    monkeypatch.setattr(search, "loosen", lambda path, at, _: loosen(path, at, 2.0))  # to the end of the path
    _, (_, second) = learnt(one_layer, "la", {"strategy": strategy, "lam": 1.0, "lam_max": 1e6})
    modulated = [trial.choice for trial in second.trials if trial.choice.get("down") is not None]
    assert {choice[unused] for choice in modulated} == {1.0}
    assert len(modulated) == 3, "three values of the other strength"


@pytest.mark.slow
def test_rows_that_grow_are_not_the_printed_setting(one_layer: str) -> None:
    """New rows are free for any λ: no score approaches 0, and λ_max would reach its limit."""
    _, (_, plain) = learnt(one_layer, "mas", {})
    _, (_, named) = learnt(one_layer, "mas", {}, logits="all")
    assert named.decision.notes == plain.decision.notes
    assert named.decision.trial.choice == plain.decision.trial.choice


@pytest.mark.parametrize("name", ["mas+slda", "la+slda"])
def test_a_first_task_that_moved_is_taken_in_as_it_is_seen_now(one_layer: str, name: str) -> None:
    """λ = ∞ applies to later tasks: the first one moves the trunk, and its sums follow."""
    stream = class_stream()
    method = METHODS[name](lam=math.inf)
    learner = make_learner(one_layer, method, stream, small(epochs=1, rates=(0.03,)), fixed={"lam"})
    task = stream.tasks[0]
    texts, labels = [*task.train.texts, *task.valid.texts], [*task.train.labels, *task.valid.labels]
    before = learner.model.embed(texts)
    lesson = learner.learn(texts, labels)
    after = learner.model.embed(texts)
    assert lesson.decision.trial.choice["lam"] == 0.0
    assert not torch.allclose(before, after, atol=1e-3), "the trunk moved"
    label = labels[0]
    rows = [i for i, one in enumerate(labels) if one == label]
    sums = learner.model.head.past.sums[learner.classes_.index(label)]
    assert torch.allclose(sums.double(), after[rows].double().sum(0), rtol=1e-4, atol=1e-4)
    assert learner.method.lam == math.inf, "fixed values are unchanged"

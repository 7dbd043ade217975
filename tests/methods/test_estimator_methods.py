"""EWC, SI and RWalk: naive trainings, and importances pooled over tasks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.by_hand import LR, distance, dry_task
from helpers.learners import make_learner
from helpers.toys import small
from helpers.walks import (
    SHORT,
    assert_close,
    few,
    kept,
    naive_fisher,
    naive_si,
    naive_sum,
    naive_walk,
    naive_walked,
)
from helpers.watching import watch_measures

from holdfast.importance import estimators
from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.methods import METHODS

pytestmark = pytest.mark.slow  # half a minute in total

POOLINGS = ["mean", "sum", "max", "ema", "half"]


def made_up(hand: AtHand, seed: int) -> P.Params:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.rand(value.shape, generator=generator, dtype=value.dtype)
        for name, value in P.snapshot(hand.model).items()
    }


# ---- one naive training, and the importance after it --------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("ewc", {"labels": "true"}),
        ("ewc", {"labels": "sample"}),
        ("ewc", {"labels": "expected"}),
        ("si", {}),
        ("si", {"damping": 1e-6}),
        ("rwalk", {"interval": 1}),
        ("rwalk", {"interval": 2, "damping": 1e-8}),
        ("rwalk", {}),
    ],
    ids=str,
)
def test_a_second_task_by_hand(tiny_bert_dry, name, options):
    """Compare every step, the trace, the importance and its pooling with the past."""
    stream, lam = few(), 20.0
    hand = dry_task(
        tiny_bert_dry, METHODS[name](lr=LR, lam=lam, **options), stream, batch_size=2, min_delta=0.0
    )
    hand.learner.fixed = frozenset({"lr", "lam"})
    method = hand.method
    past = {key: value.clone() for key, value in method.alpha.items()}
    walk = naive_walk(hand, past, lam)
    assert len(walk.steps) == 5, "one interval of two steps stays open"
    if name == "ewc":
        new = naive_fisher(hand, walk.end, options["labels"])
        expected = {key: (past[key] + value) / 2 for key, value in new.items()}
    elif name == "si":
        new = naive_si(walk, method.damping)
        expected = {key: past[key] + value for key, value in new.items()}
    else:
        method.fisher, method.score = (
            {key: scale * value for key, value in made_up(hand, seed).items()}
            for seed, scale in ((1, 0.01), (2, 0.1))
        )
        fisher, score = naive_walked(walk, method.interval, method.fisher, method.damping)
        score = {key: (method.score[key] + value) / 2 for key, value in score.items()}
        expected = naive_sum(fisher, score)
    lesson = hand.learner.learn(stream.tasks[1])
    trial = lesson.decision.trial
    assert trial.choice == {"lr": LR, "lam": lam}
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(P.snapshot(hand.model), walk.end) < 2e-3 * LR
    assert_close(method.alpha, expected)
    assert method.tasks_pooled == 2
    if name == "rwalk":
        assert_close(method.fisher, fisher)
        assert_close(method.score, score)
    else:  # the made-up past outweighs the new part: compare that alone
        share = 2 if name == "ewc" else 1
        assert_close({key: share * value - past[key] for key, value in method.alpha.items()}, new)
    hand = hand.learner.begin(stream.tasks[1])
    P.restore(hand.model, walk.start)
    free = naive_walk(hand, past, 0.0)
    assert distance(free.end, walk.end) > 0.05 * LR, "the penalty must have an effect"


@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_a_first_task_by_hand(tiny_bert_dry, name):
    """Nothing is pooled yet: the importance is that of the task."""
    stream = few()
    learner = make_learner(
        tiny_bert_dry, METHODS[name](lr=LR), stream, small(epochs=1, batch_size=4), fixed={"lr"}
    )
    learner.model.double()
    learner.model.dropout.p = 0.0
    hand = learner.begin(stream.tasks[0])
    walk = naive_walk(hand, P.zeros(hand.start), 0.0)
    expected = {
        "ewc": lambda: naive_fisher(hand, walk.end, "true"),
        "si": lambda: naive_si(walk),
        "rwalk": lambda: naive_sum(*naive_walked(walk, 10)),
    }[name]()
    lesson = learner.learn(stream.tasks[0])
    assert lesson.decision.trial.fit["best_epoch"] == 1
    assert_close(learner.method.alpha, expected)


# ---- pooling over real tasks --------------------------------------------------------------------------


def pooled(measured: list[P.Params], how: str, keep: float) -> P.Params:
    """Pool the importances of all tasks, entry by entry."""
    found = {}
    for name in measured[0]:
        tasks = torch.stack([one[name] for one in measured])
        k = len(tasks)
        shares = {
            "mean": [1 / k] * k,
            "sum": [1.0] * k,
            "ema": [(1 - keep) * keep ** (k - 1 - i) for i in range(k)],
            "half": [0.5 ** (k - 1)] + [0.5 ** (k - i) for i in range(1, k)],
        }
        if how == "max":
            found[name] = tasks.max(0).values
        else:
            found[name] = sum(share * task for share, task in zip(shares[how], tasks, strict=True))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", POOLINGS)
@pytest.mark.parametrize("name", ["ewc", "si", "rwalk"])
def test_pooling_over_three_tasks(one_layer, name, how, monkeypatch):
    """RWalk pools its scores, the others their importances."""
    stream = few()
    method = METHODS[name](pooling=how, keep=0.7)
    learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
    scores: list[P.Params] = []
    original = estimators.RWalkEstimator.parts

    def parts(self: Any, model: Any, trace: Any) -> Any:
        fisher, score = original(self, model, trace)
        scores.append({key: value.clone() for key, value in score.items()})
        return fisher, score

    monkeypatch.setattr(estimators.RWalkEstimator, "parts", parts)
    importances = watch_measures(monkeypatch)
    for number, task in enumerate(stream, start=1):
        assert kept(learner.learn(task))
        measured = scores if name == "rwalk" else [one.found for one in importances]
        assert len(measured) == method.tasks_pooled == number
        found = method.score if name == "rwalk" else method.alpha
        expected = pooled(measured, how, 0.7)
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=1e-5, atol=1e-9 * float(value.max())), key
        if name == "rwalk":
            assert_close(method.alpha, naive_sum(method.fisher, method.score), share=1e-5)
    others = [pooled(measured, other, 0.7) for other in POOLINGS if other != how]
    key = "head.linear.weight"
    assert not any(torch.allclose(expected[key], other[key], rtol=1e-3, atol=0) for other in others)


# ---- RWalk over tasks ---------------------------------------------------------------------------------


def test_the_running_fisher_runs_on(one_layer, classes, monkeypatch):
    """One interval per task: F_k = 0.9 mean g² + 0.1 F_{k-1}; rows of new labels start at 0."""
    method = METHODS["rwalk"](interval=1000, lam=1.0)
    learner = make_learner(one_layer, method, classes, small(**SHORT), fixed={"lam"})
    squares: dict[int, dict[str, list[torch.Tensor]]] = {}
    original = estimators.RWalkEstimator.step

    def step(self: Any, trace: Any, name: str, gradient: torch.Tensor, *way: Any) -> None:
        squares.setdefault(id(trace), {}).setdefault(name, []).append(gradient.square())
        alive.append(trace)  # kept alive, so that its id is not reused
        original(self, trace, name, gradient, *way)

    monkeypatch.setattr(estimators.RWalkEstimator, "step", step)
    alive: list[Any] = []
    learner.learn(classes.tasks[0])
    [first] = squares.values()
    for name, seen in first.items():
        expected = 0.9 * torch.stack(seen).mean(0) + 0.1 * seen[0]
        assert torch.allclose(method.fisher[name], expected, rtol=1e-5), name
    before = method.state_dict()["fisher"]
    squares.clear()
    lesson = learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] == 1
    *_, chosen = squares.values()
    assert len(squares) == 2
    for name, seen in chosen.items():
        past = torch.zeros_like(method.fisher[name])
        past[: len(before[name])] = before[name]
        expected = 0.9 * torch.stack(seen).mean(0) + 0.1 * past
        assert torch.allclose(method.fisher[name], expected, rtol=1e-5, atol=1e-20), name


def test_the_score_of_a_task_begins_at_zero_and_is_averaged(one_layer):
    stream, method = few(), METHODS["rwalk"](lam=1.0)
    learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam"})
    learner.learn(stream.tasks[0])
    first = method.state_dict()["score"]
    hand = learner.begin(stream.tasks[1])
    begun = method.prepare(hand, stream.tasks[1]).carried["trace"]
    assert set(begun) == {f"fisher/{name}" for name in method.fisher}
    trial = hand.trial(stream.tasks[1], {"lr": 3e-3, "lam": 1.0})
    assert trial.fit["best_epoch"] == 1
    trace = trial.read()["trace"]
    learner.learn(stream.tasks[1])
    with P.using(learner.model, trial.params):
        _, own = method.estimator().parts(learner.model, trace)
    for name, value in method.score.items():
        assert torch.allclose(value, (first[name] + own[name]) / 2, rtol=1e-6), name

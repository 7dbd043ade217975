"""Methods with a closed-form head: when the trunk stays, when it moves, and how the sums follow."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.learners import make_learner, watched_trainings
from helpers.plans import drive
from helpers.toys import class_stream, domain_stream, lopsided, small
from helpers.weights import assert_same_bits

from holdfast import importance
from holdfast.errors import HoldfastError
from holdfast.fields import parse
from holdfast.heads import SLDAHead, Taught
from holdfast.heads.drift import ridge_map
from holdfast.learning import at_hand
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.la import LA
from holdfast.methods.over_slda import FAR, STILL, hold_plan
from holdfast.methods.quadratic import lam_points
from holdfast.methods.search import Decision, rounded

TEXTS = [text for stream in (class_stream(), domain_stream()) for task in stream for text in task.test.texts]


@pytest.fixture
def trainings(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record every training of a test."""
    return watched_trainings(monkeypatch)


# ---- staying ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mas+slda", "la+slda", "auto"])
def test_features_that_are_good_enough_are_left_alone(one_layer, trainings, name):
    """Class-incremental: no training, and predictions bit-equal to the method that never trains."""
    stream = class_stream()
    never = METHODS["auto"](sentences=0) if name == "auto" else METHODS["slda"]()
    learner, plain = (make_learner(one_layer, one, stream, small()) for one in (METHODS[name](), never))
    for task in stream:
        decision = learner.learn(task).decision
        plain.learn(task)
        assert decision.trial.choice["lam"] == math.inf
    assert trainings == []
    assert not learner.model.adapted
    assert torch.equal(learner.model.logits(TEXTS), plain.model.logits(TEXTS))


@pytest.mark.parametrize("name", ["first+slda", "mas+slda", "la+slda", "auto"])
def test_one_label_or_no_validation_data_is_nothing_to_train_on(one_layer, trainings, name):
    learner = Learner.create(one_layer, name, settings=small())
    learner.learn(["music0 music1"] * 5, ["only"] * 5)
    learner.learn(["light0 light1", "mail0 mail1"], ["a", "b"])
    assert trainings == []
    assert learner.classes_ == ["only", "a", "b"]


def test_first_slda_trains_on_the_first_task_alone(one_layer, trainings):
    stream = class_stream()
    learner = make_learner(one_layer, METHODS["first+slda"](), stream, small(rates=(1e-3, 1e-2)))
    learner.learn(stream.tasks[0])
    assert [run["lr"] for run in trainings] == [1e-3, 1e-2]
    weights = P.snapshot(learner.model)
    learner.learn(stream.tasks[1])
    assert len(trainings) == 2
    assert_same_bits(P.snapshot(learner.model), weights)


# ---- moving -------------------------------------------------------------------------------------------


def moved(tiny: str, name: str = "mas+slda", **values: Any) -> Any:
    """Return a learner whose trunk moved on the second domain, and its state before."""
    stream = domain_stream()
    method = METHODS[name](**{"lam": 0.01, **values})
    learner = make_learner(tiny, method, stream, small(), fixed={"lam", *values})
    learner.learn(stream.tasks[0])
    before = {n: v.clone() for n, v in learner.model.head.statistics().items()}
    old = {part: learner.model.embed(getattr(stream.tasks[1], part).texts) for part in ("train", "valid")}
    lesson = learner.learn(stream.tasks[1])
    return SimpleNamespace(learner=learner, stream=stream, before=before, old=old, lesson=lesson)


def test_the_past_is_carried_along_and_the_task_added(one_layer):
    """Compared with the same steps computed from the previous state."""
    run = moved(one_layer)
    task, learner = run.stream.tasks[1], run.learner
    new = learner.model.embed(task.train.texts)
    assert not torch.equal(new, run.old["train"])
    by_hand = SLDAHead(32)
    by_hand.become(learner.model.head.labels, learner.model.head.seen)
    by_hand.load_statistics(run.before)
    by_hand.carry(ridge_map(run.old["train"], new))
    by_hand.take_in(Taught(new, task.train.labels))
    for name in ("counts", "sums", "triangles"):
        found = learner.model.head.statistics()[name]
        assert torch.allclose(found, by_hand.statistics()[name], rtol=1e-6, atol=1e-9), name
    drift = float((new - run.old["train"]).norm() / run.old["train"].norm())
    assert run.lesson.decision.trial.fit["drift"] == pytest.approx(drift, rel=1e-5)


def test_the_throw_away_head_knows_the_task_only_and_weighs_its_classes(one_layer, monkeypatch):
    seen: list[Any] = []
    original = at_hand.fit

    def watched(model, training, train, *args, **kwargs):
        seen.append((list(model.head.labels), model.head.trained, train.objective))
        return original(model, training, train, *args, **kwargs)

    monkeypatch.setattr(at_hand, "fit", watched)
    stream = lopsided(class_stream())
    learner = make_learner(one_layer, METHODS["mas+slda"](lam=1.0), stream, small(), fixed={"lam"})
    for task in stream.tasks[:2]:
        learner.learn(task)
    labels, trained, objective = seen[-1]
    assert labels == list(stream.tasks[1].labels)
    assert trained
    counts = stream.tasks[1].train.counts()
    n = counts.total()
    assert objective.weights.tolist() == pytest.approx([n / (2 * counts[label]) for label in labels])
    assert torch.equal(objective.log_prior, torch.zeros(2)), "no prior: there is no past to balance"
    assert not learner.model.head.trained


def test_a_half_precision_trunk_moves_too(one_layer):
    stream = domain_stream()
    learner = make_learner(one_layer, METHODS["mas+slda"](lam=0.01), stream, small(), fixed={"lam"})
    learner.model.to(torch.bfloat16)
    lesson = learner.learn(stream.tasks[0])
    assert lesson.decision.trial.fit["epochs"] > 0
    assert {weight.dtype for weight in P.trainable(learner.model).values()} == {torch.bfloat16}
    assert learner.score(stream.tasks[0].test) > 0.5


def test_an_infinite_strength_trains_nothing(one_layer, trainings):
    stream = domain_stream()
    learner = make_learner(one_layer, METHODS["la+slda"](), stream, small())
    hand = learner.begin(stream.tasks[0])
    weights = P.snapshot(learner.model)
    trial = hand.trial(stream.tasks[0], {"lr": 0.01, "lam": math.inf})
    assert trainings == []
    assert trial.fit["epochs"] == 0
    assert_same_bits(trial.params, weights)


def test_a_strong_proximal_pull_is_a_still_trunk(one_layer):
    """Nothing moves at the start of the search, so λ = ∞ can represent it."""
    run = moved(one_layer)
    learner, task = run.learner, run.stream.tasks[2]
    hand = learner.begin(task)
    gold = hand.trial(task, {"lr": 1e-2, "lam": 0.0})
    still = hand.trial(task, STILL)
    strongest = lam_points(learner.method.alpha, gold)[FAR]
    held = hand.trial(task, {"lr": 1e-2, "lam": strongest})
    assert gold.fit["drift"] > 0.05
    assert held.fit["drift"] < 0.02 * gold.fit["drift"]
    assert held.score == pytest.approx(still.score, abs=0.1)


# ---- importance without a head ------------------------------------------------------------------------


def test_importance_is_of_the_features(one_layer):
    """The mean over samples of |∂‖z‖²/∂θ|, sample by sample."""
    stream = domain_stream()
    learner = make_learner(one_layer, METHODS["mas+slda"](), stream, small())
    hand = learner.begin(stream.tasks[0])
    learner.model.adapted = True
    data, model = hand.train, learner.model
    found = importance.mas(model, data, batch_size=8)
    weights = P.trainable(model)
    slow = P.zeros(P.snapshot(model))
    model.eval()
    for i in range(len(data)):
        z = model.features(data.collate([i]))
        gradients = torch.autograd.grad(z.square().sum(), list(weights.values()), allow_unused=True)
        for name, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                slow[name] += gradient.abs() / len(data)
    assert set(found) == set(weights)
    for name in weights:
        assert torch.allclose(found[name], slow[name], rtol=1e-3, atol=1e-6), name
    assert not [name for name in found if name.startswith("head")]


def test_adapters_that_have_not_acted_are_measured_too(one_layer):
    stream = class_stream()
    learner = make_learner(one_layer, METHODS["la+slda"](), stream, small())
    learner.learn(stream.tasks[0])
    assert not learner.model.adapted
    adapters = [value for name, value in learner.method.alpha.items() if ".adapter." in name]
    assert adapters
    assert any(float(value.max()) > 0 for value in adapters)


# ---- the search ---------------------------------------------------------------------------------------


def fake(choice: dict[str, Any], score: float) -> Any:
    return SimpleNamespace(choice=choice, score=score, params={})


def second_task(**rest: Any) -> Any:
    """Return the parts of a learner after its first task that the search for λ reads."""
    values = {"scenario": "domain-incremental", "tasks_seen": 1, "fixed": frozenset()}
    return SimpleNamespace(**values | rest, rates=lambda: (0.01,))


@pytest.mark.parametrize("breaks", [1e-3, 0.5, 40.0, 1e-9])
def test_the_strongest_strength_that_is_good_enough(breaks):
    """The score drops once λ passes a point: the search finds the grid point just below."""
    method = METHODS["mas+slda"](thr=0.9)
    method.alpha, method.tasks_pooled = {"w": torch.tensor([2.0])}, 1
    learner = second_task(settings=small(lam_decay=0.1, lam_steps=7, lam_trials=5))
    plan = hold_plan(method, learner)
    decision, made = drive(plan, lambda choice: 0.8 if choice["lam"] <= breaks else 0.5)
    gold, *asked = [trial.choice["lam"] for trial in made]
    assert gold == 0.0
    start = rounded(100 / (0.01 * 2.0))
    grid = [rounded(start * 0.1**j) for j in range(8)]
    expected = max((lam for lam in grid if lam <= breaks), default=0.0)
    assert decision.trial.choice["lam"] == expected
    assert asked[0] == math.inf
    assert start not in asked, "λ = ∞ has shown that it is too strong"
    assert len(asked) <= 1 + 4
    if expected:
        assert decision.notes["lam_max"] == rounded(expected / 0.1)


def test_a_previous_strength_that_passes_is_kept():
    method = METHODS["mas+slda"](thr=0.9, lam=3.0)
    method.alpha, method.tasks_pooled = {"w": torch.tensor([2.0])}, 2
    plan = hold_plan(method, second_task(settings=small(), tasks_seen=2))
    scores = {0.0: 0.8, math.inf: 0.5, 3.0: 0.79}
    decision, made = drive(plan, lambda choice: scores[choice["lam"]])
    assert [trial.choice["lam"] for trial in made] == [0.0, math.inf, 3.0]
    assert decision.trial.choice["lam"] == 3.0


# ---- auto ---------------------------------------------------------------------------------------------


def auto(tiny: str, **values: Any) -> Any:
    stream = domain_stream()
    learner = make_learner(tiny, METHODS["auto"](**values), stream, small(epochs=6), fixed=set(values))
    learner.learn(stream.tasks[0])
    return learner, stream


def test_auto_says_why_it_stays(tiny_bert, trainings):
    learner, stream = auto(tiny_bert, sentences=0, thr=1.0)
    notes = learner.learn(stream.tasks[1]).decision.notes
    assert notes["chose"] == "frozen"
    assert "over the budget" in notes["why"]
    assert 0 < notes["frozen"] < 1
    assert trainings == []


def test_auto_moves_where_a_look_ahead_is_clearly_better(one_layer, trainings, monkeypatch):
    learner, stream = auto(one_layer, sentences=0, thr=1.0)
    learner.method.sentences = 10**6
    monkeypatch.setattr("holdfast.methods.auto.left_out", lambda learner, still: (0.3, 0.01))
    assert not learner.method.alpha, "nothing was measured while the trunk stayed"
    lesson = learner.learn(stream.tasks[1])
    notes = lesson.decision.notes
    assert notes["gold"] > 0.31
    assert notes["chose"] == "moving features" or "validation" in notes["why"]
    assert trainings
    if notes["chose"] == "moving features":
        assert learner.model.adapted
        assert learner.method.alpha, "the current sentences replace those of the past"
        assert learner.method.tasks_pooled == 2


def test_auto_does_not_blame_the_budget_for_what_validation_says(one_layer, monkeypatch):
    """Cross-validation asks for a move, but the search for λ decides that the trunk stays."""
    learner, stream = auto(one_layer, sentences=10**6, thr=1.0)
    task = stream.tasks[1]

    def stays(method, learner, task):
        return Decision(learner.trial(task, STILL))
        yield

    monkeypatch.setattr("holdfast.methods.auto.left_out", lambda learner, still: (0.0, 0.0))
    monkeypatch.setattr(LA, "plan", stays)
    notes = learner.learn(task).decision.notes
    assert (notes["chose"], notes["why"]) == ("frozen", "frozen features keep enough of the validation score")


@pytest.mark.parametrize("name", ["la+slda", "auto"])
def test_importances_that_need_a_trained_head_are_refused(name):
    with pytest.raises(HoldfastError, match="expected one of mas"):
        parse(METHODS[name], "importance", "fisher")


def test_auto_keeps_to_its_budget():
    """The search stops at the budget; the best acceptable trial so far is chosen."""
    method = METHODS["auto"](sentences=39)
    method.tasks_pooled = 1

    def endless():
        for lam in (5.0, 3.0, 1.0):
            yield {"lr": 0.01, "lam": lam}
        raise AssertionError("never reached")

    still, gold = fake({"lam": math.inf}, 0.5), fake({"lam": 0.0}, 0.9)
    plan = method.within(10, endless(), still, gold)  # the look-ahead, then two more
    made = [next(plan)]
    made.append(plan.send(fake(made[0], 0.6)))
    with pytest.raises(StopIteration) as end:
        plan.send(fake(made[1], 0.7))
    assert [choice["lam"] for choice in made] == [5.0, 3.0]
    assert end.value.value.trial.choice["lam"] == 3.0
    assert end.value.value.notes["flags"] == ["budget"]

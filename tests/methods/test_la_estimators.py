"""Look-Ahead and its merge with every estimator of importance, compared with naive trainings."""

from __future__ import annotations

import pytest
import torch
from helpers.by_hand import LR, distance, dry_task, naive_alpha, naive_importance
from helpers.learners import make_learner
from helpers.toys import small
from helpers.walks import (
    SHORT,
    Walk,
    assert_close,
    few,
    kept,
    naive_fisher,
    naive_si,
    naive_sum,
    naive_walk,
    naive_walked,
)
from helpers.watching import prepared, watch_measures, watch_trainings
from helpers.weights import assert_same_bits, weights_of

from holdfast.data.tasks import Stream
from holdfast.importance.estimators import ESTIMATORS, EndedTraining
from holdfast.learning.at_hand import AtHand
from holdfast.maths import equations
from holdfast.maths import params as P
from holdfast.methods import METHODS, quadratic

pytestmark = pytest.mark.slow  # half a minute in total


# ---- LA with any estimator ----------------------------------------------------------------------------


def naive_of(hand: AtHand, importance: str, walk: Walk) -> P.Params:
    return {
        "mas": lambda: naive_importance(hand, walk.end),
        "fisher": lambda: naive_fisher(hand, walk.end, "true"),
        "si": lambda: naive_si(walk),
        "rwalk": lambda: naive_sum(*naive_walked(walk, 10)),
    }[importance]()


@pytest.mark.parametrize("importance", ESTIMATORS)
def test_la_by_hand(tiny_bert_dry, importance, monkeypatch):
    """Naive look-ahead, its importance, α', the main training, and the importance of that training alone."""
    stream = few()
    lam, lam_max, down, up = 40.0, 900.0, 0.2, 0.5
    method = METHODS["la"](lr=LR, importance=importance, lam=lam, lam_max=lam_max, down=down, up=up, tau=0.3)
    hand = dry_task(tiny_bert_dry, method, stream, batch_size=4, min_delta=0.0)
    hand.learner.fixed = frozenset({"lr", "lam", "down", "up"})
    task = stream.tasks[1]
    past = {name: value.clone() for name, value in method.alpha.items()}
    there = naive_walk(hand, past, 0.0)
    ahead = naive_of(hand, importance, there)
    scale = {name: float(value.max()) for name, value in ahead.items()}
    # Made-up importances of the same size, so that shares are neither all 0 nor all 1.
    past = {name: value * scale[name] for name, value in past.items()}
    lam = method.lam = 10.0 / max(scale.values())
    method.lam_max = 20 * lam
    method.alpha = {name: value.clone() for name, value in past.items()}
    hand = hand.learner.begin(task)
    found = quadratic.measured_ahead(hand, task, method.estimator(), method.lr)
    assert_close(found, ahead)
    alpha = naive_alpha(past, ahead, lam, 20 * lam, down, up, tau=0.3)
    main = naive_walk(hand, alpha, lam)
    trainings = watch_trainings(monkeypatch)
    lesson = hand.learner.learn(task)
    trial = lesson.decision.trial
    assert trial.choice == {"lr": LR, "lam": lam, "lam_max": 20 * lam, "down": down, "up": up}
    assert trial.fit["best_epoch"] == 1
    assert_close(trainings[-1].pulls["penalty"].weights, alpha)
    assert distance(P.snapshot(hand.model), main.end) < 5e-3 * LR
    assert distance(main.end, there.end) > 0.02 * LR, "the penalty must have an effect"
    hand = hand.learner.begin(task)
    own = naive_of(hand, importance, main)
    assert_close(method.alpha, {name: (past[name] + own[name]) / 2 for name in own})
    if importance in ("si", "rwalk"):
        with pytest.raises(AssertionError):
            assert_close(own, ahead)


@pytest.mark.slow
@pytest.mark.parametrize("importance", ESTIMATORS)
@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_la_modulates_any_importance(one_layer, importance, pooling, monkeypatch):
    stream = few()
    values = {"lam": 2.0, "lam_max": 50.0, "down": 0.3, "up": 0.5}
    method = METHODS["la"](importance=importance, pooling=pooling, **values)
    learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam", "down", "up"})
    measured = watch_measures(monkeypatch)
    learner.learn(stream.tasks[0])
    first = method.state_dict()["alpha"]
    lesson = learner.learn(stream.tasks[1])
    assert lesson.decision.trial.choice["down"] == 0.3, "the task had a main phase"
    assert kept(lesson)
    for name, value in method.alpha.items():
        both = torch.stack([first[name], measured[-1].found[name]])
        expected = both.mean(0) if pooling == "mean" else both.max(0).values
        assert torch.allclose(value, expected, rtol=1e-6, atol=0), name
    assert len(measured) == 3, "one look-ahead, two finished tasks"

    task = stream.tasks[2]
    hand = learner.begin(task)
    trial = hand.trial(task, {"lr": method.lr, "lam": 0.0})
    assert trial.fit["best_epoch"] == 1
    with P.using(learner.model, trial.params):
        over = EndedTraining(learner.model, hand.train, hand.start, trial.read()["trace"], 4, hand.task_seed)
        ahead = ESTIMATORS[importance]().finish(over)
    kinds = []
    for strategy in ("balance", "cf", "kt"):
        _, pulls = prepared(method.choosing({"strategy": strategy}), hand, task)
        weights = pulls["penalty"].weights
        kinds.append(weights)
        for name, past in method.alpha.items():
            if name.startswith("head."):
                assert torch.equal(weights[name], past)
                continue
            rho = equations.relative_importance(past, ahead[name])
            tau = equations.cutoff(rho, 0.8)
            up = max(0.5 * 50.0 / 2.0, 1 / max(tau, 0.05))
            expected = equations.modulate(past, rho, tau, up, 0.3, strategy)
            assert torch.allclose(weights[name], expected, rtol=1e-5, atol=0), (strategy, name)
    for left, right in ((0, 1), (0, 2), (1, 2)):
        assert any(not torch.equal(kinds[left][name], kinds[right][name]) for name in method.alpha)


@pytest.mark.parametrize("importance", ["si", "rwalk"])
def test_the_look_ahead_and_the_main_phase_have_traces_of_their_own(one_layer, importance):
    """Neither depends on the previous content of a trace."""
    stream = few()
    values = {"lam": 2.0, "lam_max": 50.0, "down": 0.3, "up": 0.5, "importance": importance}
    found = []
    for rubbish in (False, True):
        method = METHODS["la"](**values)
        learner = make_learner(one_layer, method, stream, small(**SHORT), fixed={"lam", "down", "up"})
        learner.learn(stream.tasks[0])
        hand = learner.begin(stream.tasks[1])
        if rubbish:
            method.trace = {f"path/{name}": value + 1e6 for name, value in P.snapshot(learner.model).items()}
            hand.start_here()
        choice = {"lr": 3e-3, "lam": 2.0, "lam_max": 50.0, "down": 0.3, "up": 0.5}
        trial = hand.trial(stream.tasks[1], choice)
        assert trial.fit["best_epoch"] == 1
        found.append((trial.params, trial.read()["trace"]))
        ahead = hand.trial(stream.tasks[1], {"lr": 3e-3, "lam": 0.0})
        traces = trial.read()["trace"], ahead.read()["trace"]
        assert any(not torch.equal(value, traces[1][key]) for key, value in traces[0].items())
    for clean, dirty in zip(*found, strict=True):
        assert_same_bits(clean, dirty)


# ---- the merge ----------------------------------------------------------------------------------------


def measured_at(
    hand: AtHand, importance: str, start: P.Params, params: P.Params, trace: P.Params
) -> P.Params:
    with P.using(hand.model, params):
        size = hand.settings.batch_size
        over = EndedTraining(hand.model, hand.train, start, trace, size, hand.task_seed)
        return ESTIMATORS[importance]().finish(over)


@pytest.mark.parametrize("importance", ESTIMATORS)
@pytest.mark.parametrize("merge", [1.0, 0.4])
def test_the_merge_by_hand(one_layer, classes, importance, merge):
    method = METHODS["la-merge"](importance=importance, merge=merge)
    learner = make_learner(one_layer, method, classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    old = P.snapshot(learner.model)
    past = method.state_dict()["alpha"]
    hand = learner.begin(classes.tasks[1])
    start = hand.start
    lesson = learner.learn(classes.tasks[1])
    trial = lesson.decision.trial
    assert trial.fit["best_epoch"] > 0
    there = trial.params
    hand = learner.begin(classes.tasks[1])
    ahead = measured_at(hand, importance, start, there, trial.read()["trace"])
    merged = P.snapshot(learner.model)
    shares = []
    for name, new in there.items():
        rows = len(old[name]) if name.startswith("head.") else None  # rows of past labels
        values = zip(
            old[name].flatten().tolist(),
            new[:rows].flatten().tolist(),
            past[name].flatten().tolist(),
            ahead[name][:rows].flatten().tolist(),
            merged[name][:rows].flatten().tolist(),
            strict=True,
        )
        for here, then, a, b, found in values:
            rho = merge * a / (a + b + 1e-10)
            shares.append(rho)
            assert abs(found - (rho * here + (1 - rho) * then)) < 1e-5 * max(1.0, abs(here), abs(then)), name
        if name.startswith("head."):
            assert len(new) == 4
            assert torch.equal(merged[name][2:], new[2:]), "rows of new labels come from the look-ahead"
    assert 0.05 * merge < sum(shares) / len(shares) < 0.95 * merge, "both sides must have an effect"
    own = measured_at(hand, importance, start, merged, trial.read()["trace"])
    for name, value in method.alpha.items():
        padded = torch.zeros_like(value)
        padded[: len(past[name])] = past[name]
        expected = (padded + own[name]) / 2
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-6 * float(expected.max())), name


def test_a_merge_of_nothing_is_seq_bit_for_bit(one_layer, classes):
    found = []
    for method in (METHODS["seq"](), METHODS["la-merge"](merge=0.0), METHODS["la-merge"](merge=1.0)):
        learner = make_learner(one_layer, method, classes, small(epochs=2), fixed={"merge"})
        for task in classes.tasks[:2]:
            learner.learn(task)
        found.append(weights_of(learner))
    assert_same_bits(found[0], found[1])
    assert any(not torch.equal(value, found[0][name]) for name, value in found[2].items())


@pytest.mark.parametrize(
    ("importance", "looks"),
    [("mas", 1), ("fisher", 1), ("si", 0), ("rwalk", 0)],
    ids=lambda value: str(value),
)
def test_the_merge_costs_no_training(one_layer, importance, looks):
    stream: Stream = few(6)
    settings = small(epochs=2, batch_size=5, rates=(1e-2, 1e-3))
    learner = make_learner(one_layer, METHODS["la-merge"](importance=importance), stream, settings)
    batches = 3  # of 12 sentences
    for number, task in enumerate(stream.tasks[:2], start=1):
        lesson = learner.learn(task)
        assert [trial.choice for trial in lesson.trials] == [{"lr": 1e-2}, {"lr": 1e-3}]
        chosen = lesson.decision.trial
        assert chosen.score == max(trial.score for trial in lesson.trials)
        [other] = [trial for trial in lesson.trials if trial is not chosen]
        trained, rest = (batches * trial.fit["epochs"] for trial in (chosen, other))
        measured = batches * looks * number
        passes = {phase: count for phase, count in lesson.chosen_passes.items() if any(count.values())}
        expected = {"train": {"forward": trained, "backward": trained}}
        if measured:
            expected["importance"] = {"forward": measured, "backward": measured}
        assert passes == expected
        assert lesson.search_passes == {"train": {"forward": rest, "backward": rest}}


@pytest.mark.parametrize(("labels", "looks"), [("true", 1), ("sample", 1), ("expected", 2)])
def test_passes_of_ewc(one_layer, labels, looks):
    stream = few()
    learner = make_learner(one_layer, METHODS["ewc"](labels=labels), stream, small(**SHORT))
    lesson = learner.learn(stream.tasks[0])
    assert lesson.chosen_passes["importance"] == {"forward": 3 * looks, "backward": 3 * looks}
    assert lesson.chosen_passes["train"] == {"forward": 3, "backward": 3}

"""ANCL's auxiliary network, and the search for two strengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.by_hand import distance, naive_importance, second_task
from helpers.distilling import STREAMS
from helpers.learners import make_learner
from helpers.plans import pupil, searched
from helpers.toys import small
from helpers.watching import scripted, teachers_of, watch_measures, watch_trainings
from helpers.weights import assert_same_bits

from holdfast.learning.passes import added
from holdfast.maths import params as P
from holdfast.methods import METHODS, quadratic
from holdfast.methods.ancl import ANCLLWF, ANCLMAS
from holdfast.methods.base import Training
from holdfast.methods.search import Choice

# Whole searches over two strengths. See steps/test_two_anchors.py for single steps.
pytestmark = pytest.mark.slow
NAMES = {"ancl-mas": "mas", "ancl-lwf": "lwf"}
ALL = [0, 1, 2, 3]
every_ancl = pytest.mark.parametrize("name", NAMES)


# ---- the auxiliary network ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stream", "number", "outputs", "past", "new"),
    [
        ("classes", 1, "past", [0, 1], [2, 3]),
        ("classes", 2, "past", [0, 1, 2, 3], [4, 5]),
        ("classes", 1, "all", ALL, ALL),
        ("domains", 1, "past", [0, 1], [0, 1]),
        ("domains", 2, "all", [0, 1], [0, 1]),
    ],
)
def test_who_teaches_which_outputs(one_layer, stream, number, outputs, past, new):
    tasks = STREAMS[stream]().tasks
    method = ANCLLWF(lam=1.0, lam_a=0.5, outputs=outputs)
    learner = make_learner(one_layer, method, STREAMS[stream](), small(epochs=1))
    for seen in range(number):
        hand = learner.begin(tasks[seen])
        learner.tasks_seen += 1
    hand = learner.begin(tasks[number])
    teachers = teachers_of(method, hand, tasks[number])
    found = {name: (teacher.rows, teacher.lam) for name, teacher in teachers.items()}
    assert found == {"distillation": (past, 1.0), "auxiliary": (new, 0.5)}


def test_in_a_preallocated_head_both_teach_rows_of_their_labels(one_layer, classes):
    method = ANCLLWF(lam=1.0, lam_a=0.5)
    hand = second_task(one_layer, method, classes, small(head="preallocated", epochs=1))
    teachers = teachers_of(method, hand, classes.tasks[1])
    labels = hand.model.head.labels
    for name, task in (("distillation", classes.tasks[0]), ("auxiliary", classes.tasks[1])):
        assert sorted(labels[i] for i in teachers[name].rows) == sorted(task.labels)


@every_ancl
def test_the_first_task_has_no_auxiliary_network(one_layer, classes, name):
    ends = []
    for one, choice in (("seq", {}), (name, {"lam": 5.0, "lam_a": 5.0})):
        learner = make_learner(one_layer, METHODS[one](), classes)
        hand = learner.begin(classes.tasks[0])
        trial = hand.trial(classes.tasks[0], {"lr": 1e-2} | choice)
        ends.append(trial.params)
    assert trial.borrowed == {}
    assert_same_bits(*ends)


def gold_then_half(choice: Choice) -> float:
    """Return scores where the rate 1e-3 is best, any λ is costly, and no λ_a helps."""
    return (0.9 if choice["lr"] == 1e-3 else 0.8) if choice["lam"] == 0 else 0.5


@every_ancl
def test_the_auxiliary_network_is_the_gold_training(one_layer, classes, monkeypatch, name):
    learner = make_learner(
        one_layer, METHODS[name](lam=5.0), classes, small(epochs=1, rates=(1e-2, 1e-3, 1e-4)), fixed={"lam"}
    )
    scripted(learner, gold_then_half)
    learner.learn(classes.tasks[0])
    trainings = watch_trainings(monkeypatch)
    lesson = learner.learn(classes.tasks[1])
    off = [(lr, 0.0, 0.0) for lr in (1e-2, 1e-3, 1e-4)]
    on = [(1e-3, 5.0, lam_a) for lam_a in (0.0, 0.01, 0.04)]
    made = [(one.method.lr, one.method.lam, one.method.lam_a) for one in trainings]
    assert made == off + on, "nothing is trained twice or outside the search"
    anchors = [one.pulls["auxiliary"].anchor for one in trainings if "auxiliary" in one.pulls]
    anchors += [one.teachers["auxiliary"].params for one in trainings if "auxiliary" in one.teachers]
    gold = lesson.trials[1]
    assert len(anchors) == 2
    for anchor in anchors:
        assert_same_bits(anchor, gold.params)
    assert gold.borrowed == lesson.trials[3].borrowed == {}
    for trial in lesson.trials[4:]:
        assert trial.borrowed["look-ahead"] == {"look-ahead": gold.passes["train"]}


@every_ancl
def test_passes_are_counted_once(one_layer, classes, name):
    settings, fixed = small(epochs=2, patience=9, batch_size=5), {"lam", "lam_a"}
    learner = make_learner(one_layer, METHODS[name](lam=5.0, lam_a=0.5), classes, settings, fixed=fixed)
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    assert [(t.choice["lam"], t.choice["lam_a"]) for t in lesson.trials] == [(0, 0), (5, 0), (5, 0.5)]
    b = math.ceil(24 / 5)
    training, measuring = {"forward": 2 * b, "backward": 2 * b}, {"forward": b, "backward": b}
    chosen = {"train": training, "look-ahead": training}
    if name == "ancl-mas":
        chosen |= {"look-ahead importance": measuring, "importance": measuring}
        rest = {"train": training}
    else:
        chosen["teacher"] = {"forward": 2 * 2 * b, "backward": 0}
        rest = {"train": training, "teacher": {"forward": 2 * b, "backward": 0}}
    assert lesson.chosen_passes == chosen
    assert lesson.search_passes == rest
    everything = added(*({"": count} for count in added(chosen, rest).values()))
    assert everything[""]["backward"] == 3 * 2 * b + (2 * b if name == "ancl-mas" else 0)


def test_the_auxiliary_importance_is_fresh_and_never_pooled(tiny_bert_dry, domains, monkeypatch):
    method = ANCLMAS(lam=5.0)
    learner = make_learner(tiny_bert_dry, method, domains, small(epochs=1), fixed={"lam"})
    scripted(learner, lambda choice: 0.5 if choice["lam"] else 0.9)
    measured, pulling, aux = watch_measures(monkeypatch), quadratic.pulling, []

    def watched(own: Any, at: Any, pulls: Any) -> Training:
        if "auxiliary" in pulls:
            pull = pulls["auxiliary"]
            expected = naive_importance(at, pull.anchor)
            assert max(float(value.max()) for value in expected.values()) > 0.1
            for key, value in expected.items():
                assert torch.allclose(pull.weights[key], value, rtol=1e-3, atol=1e-5), key
            aux.append(pull)
        return pulling(own, at, pulls)

    monkeypatch.setattr(quadratic, "pulling", watched)
    for task in domains:
        learner.learn(task)
    assert len(aux) == 4, "two tasks, two λ_a each"
    assert len(measured) == 5, "α once per task, α_aux once per later task, for any number of λ_a"
    one, at_aux, two, at_last, three = measured
    assert_same_bits(at_aux.at, aux[0].anchor)
    assert_same_bits(at_last.at, aux[2].anchor)
    for key, value in method.alpha.items():
        mean = (one.found[key] + two.found[key] + three.found[key]) / 3
        assert torch.allclose(value, mean, rtol=1e-5, atol=1e-9), key


@every_ancl
def test_nothing_of_it_survives_the_task(one_layer, classes, name):
    fixed, settings = {"lam", "lam_a"}, small(epochs=1)
    ancl = make_learner(one_layer, METHODS[name](lam=5.0, lam_a=2.0), classes, settings, fixed=fixed)
    below = make_learner(one_layer, METHODS[NAMES[name]](lam=5.0), classes, settings, fixed={"lam"})
    for learner in (ancl, below):
        for task in classes.tasks[:2]:
            lesson = learner.learn(task)
        if learner is ancl:
            aux = lesson.trials[0].params
    state, other = ancl.method.state_dict(), below.method.state_dict()
    assert state.keys() == other.keys()
    tensors, meta = ancl.state()
    assert {group: P.size(params) for group, params in tensors.items()} == {
        group: P.size(params) for group, params in below.state()[0].items()
    }
    assert meta["numbers"] == below.state()[1]["numbers"]
    for group, params in tensors.items():
        for key, value in params.items():
            assert not torch.equal(value, aux[key]), (group, key)
    assert ancl.at_hand is None


# ---- the search for λ_a -------------------------------------------------------------------------------


def pairs(made: list[Any]) -> list[tuple[float, float]]:
    return [(trial.choice["lam"], trial.choice["lam_a"]) for trial in made]


def scored(values: dict[tuple[float, float], float], otherwise: float = 0.0) -> Callable[[Any], float]:
    return lambda choice: values.get((choice["lam"], choice["lam_a"]), otherwise)


GRID = [0.01, 0.02, 0.04, 0.08]
DOUBLING = {"lam_a_growth": 2.0, "lam_a_steps": 4}


@pytest.mark.parametrize(
    ("scores", "tried", "gained"),
    [
        ({0.01: 0.86}, 1, True),  # beats λ_a = 0
        ({0.04: 0.851}, 3, True),
        ({0.01: 0.85, 0.02: 0.84, 0.08: 0.88}, 4, True),  # a tie with λ_a = 0 is no improvement
        ({0.01: 0.85, 0.02: 0.85, 0.04: 0.85, 0.08: 0.85}, 4, False),
        ({}, 4, False),
    ],
    ids=str,
)
def test_lambda_a_goes_up_to_the_first_gain(scores, tried, gained):
    values = {(0.0, 0.0): 0.9, (10.0, 0.0): 0.1, (1.0, 0.0): 0.85}
    values |= {(1.0, lam_a): score for lam_a, score in scores.items()}
    decision, made = searched(ANCLLWF(lam_a=0.7), pupil(**DOUBLING), scored(values))
    plain = [(0.0, 0.0), (0.0, 0.0), (10.0, 0.0), (1.0, 0.0)]
    assert pairs(made) == plain + [(1.0, lam_a) for lam_a in GRID[:tried]]
    assert decision.trial is (made[-1] if gained else made[3]), "otherwise λ_a = 0, with the strongest λ"
    assert decision.notes == {"gold": 0.9, "flags": [], "plain": 0.85, "gained": gained}


def test_lambda_a_stops_where_gold_is_reached():
    """λ_a = 0 already scores above gold: a λ_a with a lower score that still reaches gold is accepted."""
    values = {(0.0, 0.0): 0.9, (10.0, 0.0): 0.95, (10.0, 0.01): 0.89, (10.0, 0.02): 0.9}
    decision, made = searched(ANCLLWF(), pupil(**DOUBLING), scored(values))
    assert pairs(made)[2:] == [(10.0, 0.0), (10.0, 0.01), (10.0, 0.02)]
    assert decision.trial is made[-1]
    assert decision.notes["gained"]


def test_without_a_hold_there_is_no_lambda_a_to_search():
    decision, made = searched(ANCLLWF(), pupil(), scored({(0.0, 0.0): 0.9}))
    assert decision.trial is made[0]
    assert all(lam_a == 0 for _, lam_a in pairs(made))
    infinite = pupil({"lam"})
    decision, made = searched(ANCLMAS(lam=math.inf), infinite, scored({(0.0, 0.0): 0.9}))
    assert pairs(made) == [(0.0, 0.0), (0.0, 0.0), (math.inf, 0.0)]
    assert decision.trial is made[-1]


@pytest.mark.parametrize("method", [ANCLMAS, ANCLLWF])
def test_lambda_fixed_and_lambda_a_searched(method):
    values = {(0.0, 0.0): 0.9, (7.0, 0.0): 0.5, (7.0, 0.04): 0.6}
    decision, made = searched(method(lam=7.0, lam_a=0.3), pupil({"lam"}, **DOUBLING), scored(values))
    assert pairs(made)[2:] == [(7.0, 0.0), (7.0, 0.01), (7.0, 0.02), (7.0, 0.04)]
    assert decision.trial is made[-1]


def test_lambda_searched_and_lambda_a_fixed():
    """λ is searched without the auxiliary network, followed by one training with it, whatever its score."""
    values = {(0.0, 0.0): 0.9, (1.0, 0.0): 0.85}
    decision, made = searched(ANCLLWF(lam_a=0.3), pupil({"lam_a"}), scored(values))
    assert pairs(made)[2:] == [(10.0, 0.0), (1.0, 0.0), (1.0, 0.3)]
    assert decision.trial is made[-1]


def test_both_fixed():
    decision, made = searched(ANCLMAS(lam=7.0, lam_a=0.3), pupil({"lam", "lam_a"}), scored({(0.0, 0.0): 0.9}))
    assert pairs(made)[2:] == [(7.0, 0.0), (7.0, 0.3)]
    assert decision.trial is made[-1]


def test_a_fixed_lambda_a_is_honoured_without_a_hold_too():
    """With λ = 0 and λ_a > 0 fixed, the only pull is towards the auxiliary network."""
    decision, _ = searched(ANCLLWF(lam_a=0.3), pupil({"lam", "lam_a"}), scored({(0.0, 0.0): 0.9}))
    assert decision.trial.choice["lam_a"] == 0.3


@every_ancl
def test_lambda_a_starts_again_for_every_task(one_layer, classes, name):
    learner = make_learner(one_layer, METHODS[name](lam=5.0), classes, small(epochs=1), fixed={"lam"})
    scripted(learner, lambda c: 0.9 if c["lam"] == 0 else 0.5 + 0.1 * (c["lam_a"] >= 0.04))
    found = []
    for task in classes:
        found.append(pairs(learner.learn(task).trials))
    assert learner.method.lam_a == 0.04, "it was carried over, but not used"
    later = [(0.0, 0.0), (5.0, 0.0), (5.0, 0.01), (5.0, 0.04)]
    assert found == [[(0.0, 0.0)], later, later]


@every_ancl
def test_a_real_search(one_layer, classes, name):
    """First λ without the auxiliary network, then λ_a at that λ; the decision follows from the scores."""
    learner = make_learner(one_layer, METHODS[name](thr=0.01), classes, small(epochs=2, rates=(1e-2, 1e-3)))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    decided, notes = lesson.decision.trial, lesson.decision.notes
    plain = [trial for trial in lesson.trials if trial.choice["lam_a"] == 0]
    pulled = lesson.trials[len(plain) :]
    assert lesson.trials[: len(plain)] == plain, "λ comes first"
    assert notes["gold"] == max(trial.score for trial in plain if trial.choice["lam"] == 0)
    lam, lr = decided.choice["lam"], decided.choice["lr"]
    assert lam > 0
    base = next(t for t in plain if (t.choice["lam"], t.choice["lr"]) == (lam, lr))
    assert notes["plain"] == base.score
    assert [trial.choice for trial in pulled] == [
        {"lr": lr, "lam": lam, "lam_a": lam_a} for lam_a in (0.01, 0.04)[: len(pulled)]
    ]
    good = [trial.score > base.score or trial.score >= notes["gold"] for trial in pulled]
    assert pulled
    assert not any(good[:-1])
    assert notes["gained"] == good[-1]
    assert decided is (pulled[-1] if good[-1] else base)
    assert good[-1] or len(pulled) == 2
    assert_same_bits(decided.params, P.snapshot(learner.model))


@pytest.mark.parametrize("penalty", ["loss", "proximal"])
def test_where_nobody_pulls_weights_train_freely(one_layer, classes, penalty, monkeypatch):
    """With α = 0 and α_aux = 0 there is no 0/0, and the training equals one without pulls."""
    learner = make_learner(one_layer, ANCLMAS(penalty=penalty), classes)
    learner.learn(classes.tasks[0])
    for value in learner.method.alpha.values():
        value.zero_()
    hand = learner.begin(classes.tasks[1])
    monkeypatch.setattr(quadratic, "measured_ahead", lambda own, *rest: P.zeros(own.start))
    free, pulled = (
        hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": lam, "lam_a": lam}).params for lam in (0.0, 1e6)
    )
    assert distance(hand.start, free) > 1e-3
    assert distance(free, pulled) < 1e-6

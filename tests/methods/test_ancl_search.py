"""ANCL's auxiliary network, and the search for two strengths."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import assert_same_bits, make_learner, small
from test_ancl import ALL, NAMES, every_ancl
from test_la import naive_importance
from test_lwf import STREAMS, second_task
from test_lwf_teacher import pupil, searched
from test_mas import distance

import holdfast.learning.learner
from holdfast.learning.learner import Learner
from holdfast.learning.passes import added
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.ancl import ANCLLWF, ANCLMAS

pytestmark = (
    pytest.mark.slow
)  # whole searches over two strengths; the step between two anchors is in test_two_anchors


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
        learner.begin(tasks[seen])
        learner.tasks_seen += 1
        learner._begin_anew()
    learner.begin(tasks[number])
    method.before_task(learner, tasks[number])
    found = {name: (teacher.rows, teacher.lam) for name, teacher in method.teachers.items()}
    assert found == {"distillation": (past, 1.0), "auxiliary": (new, 0.5)}


def test_in_a_preallocated_head_both_teach_rows_of_their_labels(one_layer, classes):
    method = ANCLLWF(lam=1.0, lam_a=0.5)
    learner = second_task(one_layer, method, classes, small(head="preallocated", epochs=1))
    method.before_task(learner, classes.tasks[1])
    labels = learner.model.head.labels
    for name, task in (("distillation", classes.tasks[0]), ("auxiliary", classes.tasks[1])):
        assert sorted(labels[i] for i in method.teachers[name].rows) == sorted(task.labels)


@every_ancl
def test_the_first_task_has_no_auxiliary_network(one_layer, classes, name):
    ends = []
    for one, choice in (("seq", {}), (name, {"lam": 5.0, "lam_a": 5.0})):
        learner = make_learner(one_layer, METHODS[one](), classes)
        learner.begin(classes.tasks[0])
        trial = learner.trial(classes.tasks[0], {"lr": 1e-2} | choice)
        ends.append(trial.params)
    assert trial.borrowed == {}
    assert_same_bits(*ends)


@pytest.fixture
def trainings(monkeypatch):
    """(lr, λ, λ_a) of every training that really takes place."""
    made: list[tuple[float, float, float]] = []
    fit = holdfast.learning.learner.fit

    def watched(model: Any, method: Any, *args: Any, **kwargs: Any) -> Any:
        made.append((method.lr, method.lam, method.lam_a))
        return fit(model, method, *args, **kwargs)

    monkeypatch.setattr(holdfast.learning.learner, "fit", watched)
    return made


def scripted(learner: Learner, score: Callable[[float, float, float], float]) -> Learner:
    """Real trainings whose scores are told by (lr, λ, λ_a)."""
    method = learner.method
    learner.score = lambda split: score(method.lr, method.lam, method.lam_a)
    return learner


def gold_then_half(lr: float, lam: float, lam_a: float) -> float:
    """The rate 1e-3 is best; a hold costs much of the score, and no λ_a helps."""
    return (0.9 if lr == 1e-3 else 0.8) if lam == 0 else 0.5


@every_ancl
def test_the_auxiliary_network_is_the_gold_training(one_layer, classes, trainings, name):
    learner = make_learner(
        one_layer, METHODS[name](lam=5.0), classes, small(epochs=1, rates=(1e-2, 1e-3, 1e-4)), fixed={"lam"}
    )
    scripted(learner, gold_then_half)
    learner.learn(classes.tasks[0])
    del trainings[:]
    anchors: list[P.Params] = []
    before_task = learner.method.before_task

    def watched(own: Learner, task: Any) -> None:
        before_task(own, task)
        method = own.method
        pulls, teachers = getattr(method, "pulls", {}), getattr(method, "teachers", {})
        if "auxiliary" in pulls:
            anchors.append(pulls["auxiliary"].anchor)
        if "auxiliary" in teachers:
            anchors.append(teachers["auxiliary"].params)

    learner.method.before_task = watched
    lesson = learner.learn(classes.tasks[1])
    off = [(lr, 0.0, 0.0) for lr in (1e-2, 1e-3, 1e-4)]
    on = [(1e-3, 5.0, lam_a) for lam_a in (0.0, 0.01, 0.04)]
    assert trainings == off + on, "nothing is trained twice, and nothing beside the search"
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


def test_the_auxiliary_importance_is_fresh_and_never_pooled(tiny_bert_dry, domains):
    method = ANCLMAS(lam=5.0)
    learner = make_learner(tiny_bert_dry, method, domains, small(epochs=1), fixed={"lam"})
    scripted(learner, lambda lr, lam, lam_a: 0.5 if lam else 0.9)
    measured: list[tuple[P.Params, P.Params]] = []  # where, and what
    measure, before_task, aux = method.measure, method.before_task, []

    def watched_measure(own: Learner) -> P.Params:
        measured.append((P.snapshot(own.model), measure(own)))
        return measured[-1][1]

    def watched(own: Learner, task: Any) -> None:
        before_task(own, task)
        if "auxiliary" in method.pulls:
            pull = method.pulls["auxiliary"]
            expected = naive_importance(own, pull.anchor)
            assert max(float(value.max()) for value in expected.values()) > 0.1
            for key, value in expected.items():
                assert torch.allclose(pull.weights[key], value, rtol=1e-3, atol=1e-5), key
            aux.append(pull)

    method.measure, method.before_task = watched_measure, watched
    for task in domains:
        learner.learn(task)
    assert len(aux) == 4, "two tasks, two λ_a each"
    assert len(measured) == 5, "α once a task, α_aux once a later task, however many λ_a"
    (_, one), (at_aux, _), (_, two), (at_last, _), (_, three) = measured
    assert_same_bits(at_aux, aux[0].anchor)
    assert_same_bits(at_last, aux[2].anchor)
    for key, value in method.alpha.items():
        mean = (one[key] + two[key] + three[key]) / 3
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
    assert ancl._trials == ancl._shared == ancl._ledger.borrowed == {}


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
        ({0.01: 0.85, 0.02: 0.84, 0.08: 0.88}, 4, True),  # as good as λ_a = 0 is no gain
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
    assert decision.trial is (made[-1] if gained else made[3]), "else λ_a = 0, the strongest λ alone"
    assert decision.notes == {"gold": 0.9, "flags": [], "plain": 0.85, "gained": gained}


def test_lambda_a_stops_where_gold_is_reached():
    """λ_a = 0 scores above gold already: a λ_a that loses some of it, but not below gold, is good enough."""
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
    """λ is still searched without the auxiliary network; then one training with it, whatever it scores."""
    values = {(0.0, 0.0): 0.9, (1.0, 0.0): 0.85}
    decision, made = searched(ANCLLWF(lam_a=0.3), pupil({"lam_a"}), scored(values))
    assert pairs(made)[2:] == [(10.0, 0.0), (1.0, 0.0), (1.0, 0.3)]
    assert decision.trial is made[-1]


def test_both_fixed():
    decision, made = searched(ANCLMAS(lam=7.0, lam_a=0.3), pupil({"lam", "lam_a"}), scored({(0.0, 0.0): 0.9}))
    assert pairs(made)[2:] == [(7.0, 0.0), (7.0, 0.3)]
    assert decision.trial is made[-1]


def test_a_fixed_lambda_a_is_honoured_without_a_hold_too():
    """λ = 0 and λ_a > 0, both the user's own: a pull towards the auxiliary network and nothing else."""
    decision, _ = searched(ANCLLWF(lam_a=0.3), pupil({"lam", "lam_a"}), scored({(0.0, 0.0): 0.9}))
    assert decision.trial.choice["lam_a"] == 0.3


@every_ancl
def test_lambda_a_starts_again_for_every_task(one_layer, classes, name):
    learner = make_learner(one_layer, METHODS[name](lam=5.0), classes, small(epochs=1), fixed={"lam"})
    scripted(learner, lambda lr, lam, lam_a: 0.9 if lam == 0 else 0.5 + 0.1 * (lam_a >= 0.04))
    found = []
    for task in classes:
        found.append(pairs(learner.learn(task).trials))
    assert learner.method.lam_a == 0.04, "it was carried over, and not used"
    later = [(0.0, 0.0), (5.0, 0.0), (5.0, 0.01), (5.0, 0.04)]
    assert found == [[(0.0, 0.0)], later, later]


@every_ancl
def test_a_real_search(one_layer, classes, name):
    """λ without the auxiliary network, then λ_a at that λ; the decision follows from the scores."""
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
def test_where_nobody_pulls_weights_train_freely(one_layer, classes, penalty):
    """α = 0 and α_aux = 0: no 0/0, and the training without any pull."""
    learner = make_learner(one_layer, ANCLMAS(penalty=penalty), classes)
    learner.learn(classes.tasks[0])
    for value in learner.method.alpha.values():
        value.zero_()
    learner.begin(classes.tasks[1])
    learner.method.ahead = lambda own, task: P.zeros(own.start)
    free, pulled = (
        learner.trial(classes.tasks[1], {"lr": 1e-2, "lam": lam, "lam_a": lam}).params for lam in (0.0, 1e6)
    )
    assert distance(learner.start, free) > 1e-3
    assert distance(free, pulled) < 1e-6

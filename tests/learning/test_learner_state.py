"""A learner's errors, fixed hyper-parameters, and its state."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.learners import assert_same_standing, make_learner, standing, watched_trainings
from helpers.toys import small, toy_task
from helpers.weights import assert_same_bits, weights_of

from holdfast.data.batches import Examples
from holdfast.data.tasks import Split, Task
from holdfast.errors import HoldfastError
from holdfast.learning.learner import Learner
from holdfast.methods import METHODS


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record every training of a test."""
    return watched_trainings(monkeypatch)


# ---- errors -------------------------------------------------------------------------------------------


def test_bad_tasks_are_one_line(one_layer, classes):
    learner = make_learner(one_layer, METHODS["seq"](), classes)
    task = classes.tasks[0]
    one = toy_task("alone", {"only": ["the"]}, {"train": 3, "valid": 1, "test": 1})
    with pytest.raises(HoldfastError, match="'alone' has only the label 'only'"):
        learner.learn(one)
    with pytest.raises(HoldfastError, match="no validation"):
        learner.learn(replace(task, valid=Split((), ())))
    with pytest.raises(HoldfastError, match="'nobody' is in valid but not in train"):
        learner.learn(replace(task, valid=Split(("the",), ("nobody",))))


def test_a_task_without_training_sentences_is_one_line(one_layer, classes):
    learner = make_learner(one_layer, METHODS["seq"](), classes)
    with pytest.raises(HoldfastError):
        learner.learn(Task("empty", Split((), ()), Split(("a",), ("b",)), Split((), ())))


def test_a_refused_task_leaves_the_learner_usable(one_layer, classes):
    learner = make_learner(one_layer, METHODS["mas"](), classes)
    learner.learn(classes.tasks[0])
    before = standing(learner)
    with pytest.raises(HoldfastError):
        learner.learn(replace(classes.tasks[1], valid=Split(("the",), ("nobody",))))
    assert_same_standing(before, standing(learner))
    learner.learn(classes.tasks[1])


@pytest.mark.slow
def test_five_sentences_are_enough(one_layer, classes):
    learner = make_learner(one_layer, METHODS["la"](), classes)
    for task in classes.tasks[:2]:
        few = Split(task.train.texts[:5], task.train.labels[:5])
        assert len(set(few.labels)) == 2
        learner.learn(replace(task, train=few, valid=few))
    assert all(torch.isfinite(weight).all() for weight in weights_of(learner).values())


# ---- fixed hyper-parameters ---------------------------------------------------------------------------


def test_a_fixed_rate_is_not_searched(one_layer, classes, trained):
    learner = make_learner(
        one_layer, METHODS["mas"](lr=5e-3), classes, small(rates=(1e-2, 1e-3)), fixed={"lr"}
    )
    for task in classes.tasks[:2]:
        learner.learn(task)
    assert {run["lr"] for run in trained} == {5e-3}
    free = make_learner(one_layer, METHODS["mas"](lr=5e-3), classes, small(rates=(1e-2, 1e-3)))
    trained.clear()
    free.learn(classes.tasks[0])
    assert [run["lr"] for run in trained] == [1e-2, 1e-3]


@pytest.mark.parametrize("name", ["mas", "la"])
@pytest.mark.parametrize("lam", [5.0, math.inf])
def test_a_fixed_lam_is_kept(one_layer, classes, name, lam):
    learner = make_learner(one_layer, METHODS[name](lam=lam), classes, fixed={"lam"})
    for task in classes.tasks[:2]:
        lesson = learner.learn(task)
    assert lesson.decision.trial.choice["lam"] == lam
    assert learner.method.lam == lam


def test_a_fixed_down_is_kept(one_layer, classes):
    learner = make_learner(one_layer, METHODS["la"](down=0.5, thr=0.01), classes, fixed={"down", "thr"})
    for task in classes.tasks[:2]:
        lesson = learner.learn(task)
    assert {trial.choice.get("down") for trial in lesson.trials} - {None} == {0.5}


# ---- state --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_state_comes_back(one_layer, classes):
    learner = make_learner(one_layer, METHODS["la"](), classes)
    for task in classes.tasks[:2]:
        learner.learn(task)
    fresh = make_learner(one_layer, METHODS["la"](), classes)
    fresh.load_state(*learner.state())
    assert fresh.tasks_seen == 2
    assert_same_standing(standing(learner), standing(fresh))
    texts = [text for task in classes for text in task.test.texts]
    assert fresh.predict(texts) == learner.predict(texts)


def test_state_comes_back_into_a_learner_with_a_past(one_layer, classes):
    one, two, _ = classes.tasks
    learner, other = (make_learner(one_layer, METHODS["seq"](), classes) for _ in range(2))
    for task in (one, two):
        learner.learn(task)
    for task in (two, one):
        other.learn(task)
    other.load_state(*learner.state())
    assert other.predict(two.test.texts) == learner.predict(two.test.texts)


def test_state_is_a_copy(one_layer, classes):
    learner = make_learner(one_layer, METHODS["seq"](), classes)
    learner.learn(classes.tasks[0])
    _, meta = learner.state()
    learner.begin(classes.tasks[1])
    assert len(meta["labels"]) == len(meta["seen"]) == 2


def test_nothing_of_a_task_lives_on_in_the_learner(one_layer, classes):
    learner = make_learner(one_layer, METHODS["la"](), classes)
    learner.learn(classes.tasks[0])
    assert learner.at_hand is None
    _, meta = learner.state()
    assert not any(isinstance(value, Examples) for value in vars(learner.method).values())
    words = {word for text in classes.tasks[0].train.texts for word in text.split()}
    assert not words & set(str(meta).replace("'", " ").split())


@pytest.mark.parametrize("name", ["seq", "la", "slda"])
def test_a_task_is_gone_at_once_when_it_is_learnt(one_layer, classes, name):
    """Without waiting for the garbage collector: nothing that the task at hand owns refers back to it."""
    learner = make_learner(one_layer, METHODS[name](), classes, small(epochs=1))
    learner.learn(classes.tasks[0])
    gc.collect()
    gc.disable()
    try:
        hand = weakref.ref(learner.begin(classes.tasks[1]))
        lesson = learner.learn(classes.tasks[1])
        assert hand() is None
    finally:
        gc.enable()
    assert lesson.trial.score >= 0


def test_a_copy_of_a_learner_has_no_task_at_hand(one_layer, classes):
    learner = make_learner(one_layer, METHODS["mas"](), classes)
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    twin = copy.deepcopy(learner)
    assert twin.at_hand is None
    assert learner.at_hand is hand
    assert_same_standing(standing(twin), standing(learner))
    assert twin.begin(classes.tasks[2]).past_rows == [0, 1, 2, 3]


def test_a_task_that_is_begun_again_is_the_same(one_layer, classes):
    learner = make_learner(one_layer, METHODS["mas"](), classes)
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    trial = hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": 0.0})
    assert learner.begin(classes.tasks[1]) is hand
    assert hand.past_rows == [0, 1]
    assert hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": 0.0}) is trial
    assert learner.begin(classes.tasks[2]) is not hand


def test_lacl_importance_does_not_depend_on_what_ran_before(one_layer, classes):
    found = []
    for noise in (1, 2):
        learner = make_learner(one_layer, METHODS["mas"](convention="lacl"), classes)
        hand = learner.begin(classes.tasks[0])
        hand.trial(classes.tasks[0], {"lr": 1e-2, "lam": 0.0})
        torch.manual_seed(noise)  # as in a process that found the trial on disk
        learner.learn(classes.tasks[0])
        found.append(learner.method.alpha)
    assert_same_bits(*found)


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        pytest.param("mas", "holdfast.learning.at_hand.fit", marks=pytest.mark.slow),
        ("mas", "holdfast.methods.quadratic.Quadratic.consolidate"),
        ("slda", "holdfast.methods.base.Method.consolidate"),
    ],
)
def test_a_lesson_that_is_broken_off_leaves_nothing(one_layer, classes, monkeypatch, trained, name, moment):
    """Ctrl-C during a training, or after the chosen one was adopted."""
    first, second = classes.tasks[:2]
    whole, learner = (make_learner(one_layer, METHODS[name](), classes) for _ in "12")
    for one in (whole, learner):
        one.learn(first)
    before, known = standing(learner), learner.classes_
    with monkeypatch.context() as patch:
        patch.setattr(moment, lambda *args, **kwargs: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            learner.learn(second)
    assert (learner.classes_, learner.model.head.labels, learner.tasks_seen) == (known, known, 1)
    assert len(learner.history) == 1
    assert_same_standing(before, standing(learner))
    whole.learn(second)
    trained.clear()
    learner.learn(second)
    if moment.endswith("consolidate"):
        assert not trained, "finished trainings are reused"
    assert_same_standing(standing(whole), standing(learner))
    assert whole.predict(second.test.texts) == learner.predict(second.test.texts)


def test_one_workspace_for_several_learners(one_layer, classes, tmp_path, trained):
    """Only an identical training is reused: the same seed, method and settings."""

    def learn(method: str, seed: int = 0, epochs: int = 2, **values: Any) -> Learner:
        made = METHODS[method](**values)
        learner = make_learner(one_layer, made, classes, small(epochs=epochs), seed=seed, workspace=tmp_path)
        learner.learn(classes.tasks[0])
        return learner

    first = learn("mas")
    other = learn("mas", seed=1)
    learn("mas", epochs=1)
    learn("la", fraction=0.5)
    assert len(trained) == 4
    again = learn("mas")
    assert len(trained) == 4
    assert_same_standing(standing(first), standing(again))
    assert not torch.equal(weights_of(other)["head.linear.weight"], weights_of(first)["head.linear.weight"])


def test_trials_of_the_lesson_before_last_are_gone(one_layer, classes):
    learner = make_learner(one_layer, METHODS["seq"](), classes)
    lessons = [learner.learn(task) for task in classes]
    assert [lesson.trials[0].path.exists() for lesson in lessons] == [False, False, True]


def test_a_task_that_was_interrupted_can_be_learnt_again(one_layer, classes, monkeypatch):
    from holdfast.learning import at_hand

    whole, learner = (make_learner(one_layer, METHODS["lwf"](lam=1.0), classes, fixed={"lam"}) for _ in "12")
    for one in (whole, learner):
        one.learn(classes.tasks[0])
    whole.learn(classes.tasks[1])
    before = weights_of(learner)

    def interrupted(model, *args, **kwargs):
        with torch.no_grad():
            model.head.linear.weight.add_(1.0)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(at_hand, "fit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            learner.learn(classes.tasks[1])
    after = weights_of(learner)
    assert all(torch.equal(after[name][: len(value)], value) for name, value in before.items())
    assert learner.begin(classes.tasks[1]).past_rows == [0, 1]
    learner.learn(classes.tasks[1])
    assert_same_bits(weights_of(learner), weights_of(whole))

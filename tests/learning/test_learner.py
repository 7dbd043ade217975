"""Learner: trials without side effects, their cache, passes, growing heads, prediction."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.learners import assert_same_standing, epochs, make_learner, standing, watched_trainings
from helpers.toys import small
from helpers.weights import assert_same_bits, weights_of

from holdfast.learning.passes import added
from holdfast.methods import METHODS, quadratic

BATCHES = 3  # of 8, in a toy task of 24


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record every training of a test."""
    return watched_trainings(monkeypatch)


# ---- trials -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mas", "la"])
@pytest.mark.slow
def test_search_leaves_the_learner_as_it_found_it(one_layer, classes, name):
    learner = make_learner(one_layer, METHODS[name](thr=0.5), classes)
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    before = standing(learner)
    hand.search()
    assert len(hand.trials) > 3
    assert_same_standing(before, standing(learner))


def test_a_trial_does_not_depend_on_what_ran_before(one_layer, classes):
    task, choice = classes.tasks[0], {"lr": 1e-2, "lam": 0.0}
    alone = make_learner(one_layer, METHODS["mas"](), classes).begin(task)
    expected = alone.trial(task, choice)
    other = make_learner(one_layer, METHODS["mas"](), classes).begin(task)
    other.trial(task, {"lr": 3e-2, "lam": 0.0})
    torch.manual_seed(99)
    found = other.trial(task, choice)
    assert_same_bits(expected.params, found.params)
    assert expected.score == found.score


def test_a_trial_is_made_once(one_layer, classes, trained):
    learner = make_learner(one_layer, METHODS["mas"](), classes)
    hand = learner.begin(classes.tasks[0])
    first = hand.trial(classes.tasks[0], {"lr": 1e-2, "lam": 0.0})
    again = hand.trial(classes.tasks[0], {"lam": 0.0, "lr": 1e-2})
    assert first is again
    assert len(trained) == 1


def test_a_trial_is_found_on_disk_by_the_next_process(one_layer, classes, trained, tmp_path):
    ends = []
    for _ in range(2):
        learner = make_learner(one_layer, METHODS["mas"](), classes, workspace=tmp_path / "new" / "place")
        learner.learn(classes.tasks[0])
        ends.append(standing(learner))
    assert len(trained) == 1
    assert_same_standing(*ends)
    learner.drop_trials()
    assert not list((tmp_path / "new" / "place").glob("*.trial"))


def test_look_ahead_is_the_winning_rate_trial(one_layer, classes, trained):
    learner = make_learner(one_layer, METHODS["la"](thr=0.01), classes)
    learner.learn(classes.tasks[0])
    trained.clear()
    lesson = learner.learn(classes.tasks[1])
    assert lesson.decision.trial.choice["down"] is not None
    free = [run for run in trained if run["lam"] == 0.0]
    assert len(free) == 1, "the look-ahead needs no separate training"
    assert len(trained) == len(lesson.trials)


def test_look_ahead_starts_nothing_twice(one_layer, classes, trained):
    learner = make_learner(one_layer, METHODS["la"](lr=1e-2), classes)
    hand = learner.begin(classes.tasks[0])
    gold = hand.trial(classes.tasks[0], {"lr": 1e-2, "lam": 0.0})
    assert_same_bits(hand.look_ahead(classes.tasks[0], 1e-2).params, gold.params)
    assert len(trained) == 1


def test_a_workspace_does_not_hand_one_tasks_trial_to_another(one_layer, classes, tmp_path):
    first = make_learner(one_layer, METHODS["seq"](), classes, workspace=tmp_path)
    first.learn(classes.tasks[0])
    second = make_learner(one_layer, METHODS["seq"](), classes, workspace=tmp_path)
    lesson = second.learn(classes.tasks[1])
    alone = make_learner(one_layer, METHODS["seq"](), classes)
    assert lesson.trials[0].score == alone.learn(classes.tasks[1]).trials[0].score
    assert_same_bits(weights_of(second), weights_of(alone))


# ---- passes -------------------------------------------------------------------------------------------


def both(n: int) -> dict[str, int]:
    return {"forward": n, "backward": n}


def two_lessons(path: str, name: str, stream: Any, **values: Any):
    learner = make_learner(path, METHODS[name](**values), stream)
    lessons = [learner.learn(task) for task in stream.tasks[:2]]
    return lessons, added(*(lesson.chosen_passes for lesson in lessons))


def test_passes_of_seq(one_layer, classes):
    (one, two), passes = two_lessons(one_layer, "seq", classes)
    assert passes == {"train": both((epochs(one) + epochs(two)) * BATCHES)}


def test_passes_of_mas(one_layer, classes):
    (one, two), passes = two_lessons(one_layer, "mas", classes, thr=0.01)
    assert two.decision.trial.choice["lam"] > 0
    assert passes == {
        "train": both((epochs(one) + epochs(two)) * BATCHES),
        "importance": both(2 * BATCHES),  # b1 in the paper's formula; b2 is the last consolidation
    }


def test_passes_of_la(one_layer, classes):
    """E1 b1 + b1 + E2aux b2 + b2 + E2main b2, and the last consolidation."""
    (one, two), passes = two_lessons(one_layer, "la", classes, thr=0.01)
    [gold] = [trial for trial in two.trials if trial.choice["lam"] == 0]
    assert passes == {
        "train": both((epochs(one) + epochs(two)) * BATCHES),
        "importance": both(2 * BATCHES),
        "look-ahead": both(gold.fit["epochs"] * BATCHES),
        "look-ahead importance": both(BATCHES),
    }


@pytest.mark.parametrize("name", ["mas", "la"])
def test_chosen_and_search_passes_are_every_step_that_was_taken(one_layer, classes, trained, name):
    (_, two), _ = two_lessons(one_layer, name, classes, thr=0.01)
    steps = sum(run["batches"] for run in trained[1:])
    counted = [*two.chosen_passes.values(), *two.search_passes.values()]
    assert sum(count["backward"] for count in counted) == steps + BATCHES * (2 if name == "la" else 1)
    assert set(two.search_passes) <= {"train"}


# ---- growing heads ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mas", "la", "frozen"])
def test_head_growth_grows_the_state(one_layer, classes, name):
    learner = make_learner(one_layer, METHODS[name](), classes)
    learner.learn(classes.tasks[0])
    old = learner.method.state_dict()["alpha"]
    assert (old["head.linear.bias"] > 0).all()
    learner.begin(classes.tasks[1])
    new = learner.method.alpha
    for name in ("head.linear.weight", "head.linear.bias"):
        assert len(new[name]) == 4
        assert torch.equal(new[name][:2], old[name])
        assert (new[name][2:] == 0).all()
    assert all(torch.equal(new[name], old[name]) for name in old if not name.startswith("head."))
    assert {name: value.shape for name, value in new.items()} == {
        name: weight.shape for name, weight in learner.model.named_parameters() if weight.requires_grad
    }


def test_new_rows_depend_on_seed_and_label_alone(one_layer, classes):
    there, back = (make_learner(one_layer, METHODS["seq"](), classes) for _ in range(2))
    there.begin(classes.tasks[1])
    back.learn(classes.tasks[0])
    back.begin(classes.tasks[1])
    left, right = (
        {
            label: learner.model.head.linear.weight[i].tolist()
            for i, label in enumerate(learner.model.head.labels)
        }
        for learner in (there, back)
    )
    assert set(left) < set(right)
    assert all(right[label] == row for label, row in left.items())
    other = make_learner(one_layer, METHODS["seq"](), classes, seed=1)
    other.begin(classes.tasks[1])
    assert other.model.head.linear.weight[0].tolist() != left[other.model.head.labels[0]]


def test_a_row_first_learnt_at_task_k_enters_the_mean_as_alpha_over_k(one_layer, classes, monkeypatch):
    learner = make_learner(one_layer, METHODS["mas"](), classes)
    measured: list[Any] = []
    original = quadratic.measured
    monkeypatch.setattr(quadratic, "measured", lambda *own: measured.append(original(*own)) or measured[-1])
    for task in classes.tasks[:2]:
        learner.learn(task)
    first, second = measured
    found = learner.method.alpha["head.linear.bias"]
    assert torch.allclose(found[:2], (first["head.linear.bias"] + second["head.linear.bias"][:2]) / 2)
    assert torch.allclose(found[2:], second["head.linear.bias"][2:] / 2)


# ---- seeds and prediction -----------------------------------------------------------------------------


def test_seeds_are_keyed_by_seed_and_task(one_layer, classes):
    def seeds_of(method, seed, tasks):
        learner = make_learner(one_layer, METHODS[method](), classes, seed=seed)
        return {task.name: learner.begin(task).task_seed for task in tasks}

    tasks = list(classes)
    first, second = (seeds_of("seq", seed, tasks) for seed in (0, 1))
    assert len({*first.values(), *second.values()}) == 6, "another seed or task has another seed"
    assert seeds_of("seq", 0, tasks[::-1]) == first, "the order of tasks does not count"
    assert seeds_of("mas", 0, tasks) == first, "nor does the method"
    assert all(0 <= seed < 2**31 for seed in (*first.values(), *second.values()))


def test_predict_and_score(one_layer, classes):
    learner = make_learner(one_layer, METHODS["seq"](), classes, small(epochs=8))
    task = classes.tasks[0]
    learner.learn(task)
    assert learner.classes_ == list(task.labels)
    predicted = learner.predict(task.test.texts)
    right = sum(p == gold for p, gold in zip(predicted, task.test.labels, strict=True))
    assert right >= 13, "the 16 sentences are easy to classify"
    assert learner.predict(list(reversed(task.test.texts))) == predicted[::-1]
    assert [learner.predict([text]) for text in task.test.texts] == [[label] for label in predicted]
    from sklearn.metrics import f1_score

    assert learner.score(task.test) == pytest.approx(f1_score(task.test.labels, predicted, average="macro"))
    assert learner.predict([]) == []


@pytest.mark.parametrize(("logits", "visible"), [("seen", 2), ("all", 6)])
def test_prediction_looks_at_visible_rows_only(one_layer, classes, logits, visible):
    learner = make_learner(
        one_layer, METHODS["seq"](), classes, small(head="preallocated", logits=logits, epochs=1)
    )
    task = classes.tasks[0]
    learner.begin(task)
    with torch.no_grad():
        learner.model.head.linear.bias[5] += 100
    assert len(learner.classes_) == visible
    best = set(learner.predict(task.test.texts))
    assert (best == {classes.labels[5]}) is (logits == "all")

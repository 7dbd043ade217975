"""AdaBOP over tasks: what a task keeps, what moves in the next, and the search."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from helpers.adabop import HELD, adabop_learner, gradients_by_hand, matrix, moments_by_hand, shaken
from helpers.by_hand import distance
from helpers.learners import make_learner
from helpers.toys import small
from helpers.watching import watch_trainings
from helpers.weights import assert_same_bits, weights_of

from holdfast.data.tasks import Split, Stream, Task
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import METHODS
from holdfast.methods.adabop import AdaBOP
from holdfast.steps import projection

# ---- what a task keeps --------------------------------------------------------------------------------


def assert_same_state(left: Learner, right: Learner) -> None:
    for group in ("moments", "tokens", "gradients"):
        assert_same_bits(left.method.state_dict()[group], right.method.state_dict()[group])


def test_the_gradients_are_those_of_the_tasks_start(one_layer, classes):
    """Not those of its end. They are computed without dropout, unlike in training."""
    one, two, _ = classes.tasks
    settings = small(batch_size=7)  # 24 sentences: the last batch is shorter
    learner = shaken(adabop_learner(one_layer, classes, settings, fixed=HELD, lr=1e-2))
    for k, task in enumerate((one, two)):
        # A second learner, stopped at the start of the task.
        twin = shaken(adabop_learner(one_layer, classes, settings, fixed=HELD, lr=1e-2))
        for earlier in classes.tasks[:k]:
            twin.learn(earlier)
        expected = gradients_by_hand(twin.begin(task))
        learner.learn(task)
        found = learner.method.gradients
        assert {n: g.shape for n, g in found.items()} == {n: g.shape for n, g in expected.items()}
        for name, gradient in expected.items():
            largest = float(gradient.abs().max())
            assert float((found[name] - gradient).abs().max()) < 1e-4 * largest, name
    assert distance(weights_of(learner), weights_of(twin)) > 1e-3, "start and end must differ"


@pytest.mark.slow
def test_a_rerun_finds_the_same_state(one_layer, classes, tmp_path, monkeypatch):
    """From trial files alone: nothing is trained again, but gradients and moments are restored."""
    from holdfast.learning import at_hand

    settings = small(rates=(1e-2, 3e-3), epochs=1)
    learners, lessons = [], []
    for attempt in range(2):
        learner = make_learner(one_layer, AdaBOP(), classes, settings, workspace=tmp_path)
        if attempt:
            monkeypatch.setattr(at_hand, "fit", None)
        lessons.append([learner.learn(task) for task in classes.tasks[:2]])
        learners.append(learner)
    assert_same_bits(*map(weights_of, learners))
    assert_same_state(*learners)
    assert learners[0].method.hparams() == learners[1].method.hparams()
    for first, again in zip(*lessons, strict=True):
        assert first.chosen_passes == again.chosen_passes
        assert first.search_passes == again.search_passes


def uneven(stream: Stream) -> list[Task]:
    """Return tasks of 24, 10 and 17 sentences."""
    return [
        replace(task, train=Split(task.train.texts[:n], task.train.labels[:n]))
        for task, n in zip(stream.tasks, (24, 10, 17), strict=True)
    ]


@pytest.mark.parametrize("stream", ["classes", "domains"])
def test_moments_are_pooled_by_tokens(one_layer, stream, request):
    """With an unchanged model they are the moments of all sentences together."""
    stream = request.getfixturevalue(stream)
    tasks = uneven(stream)
    learner = shaken(adabop_learner(one_layer, stream, small(rates=(0.0,), epochs=1), fixed=HELD, lr=0.0))
    for task in tasks:
        learner.learn(task)
    texts = [(text, "") for task in tasks for text in task.train.texts]
    examples = learner.model.encode(Split.of(texts))
    assert len(examples) == 51
    sentences = [examples.collate([i]) for i in range(len(examples))]
    moments, counts = moments_by_hand(learner.model, sentences)
    method = learner.method
    assert moments.keys() == method.moments.keys() == method.tokens.keys()
    assert len(set(counts.values())) == 2, "tokens are counted, for the head sentences"
    for place, moment in moments.items():
        assert int(method.tokens[place]) == counts[place]
        assert np.abs(method.moments[place].numpy() - moment).max() < 1e-5 * np.abs(moment).max(), place


def test_moments_are_taken_of_the_finished_model(one_layer, classes):
    learner = shaken(adabop_learner(one_layer, classes, fixed=HELD, lr=1e-2))
    task = classes.tasks[0]
    examples = learner.model.encode(task.train)
    sentences = [examples.collate([i]) for i in range(len(examples))]
    before, _ = moments_by_hand(learner.model, sentences)
    learner.learn(task)
    after, _ = moments_by_hand(learner.model, sentences)
    for place, found in learner.method.moments.items():
        assert np.abs(found.numpy() - after[place]).max() < 1e-5 * np.abs(after[place]).max(), place
    place = "head.linear"
    assert np.abs(before[place] - after[place]).max() > 1e-3


def test_the_state_grows_with_rows_only_where_it_must(one_layer, classes):
    learner = adabop_learner(one_layer, classes, small(epochs=1), fixed=HELD, lr=1e-2)
    sizes = []
    for k, task in enumerate(classes):
        learner.learn(task)
        method = learner.method
        sizes.append({place: tuple(moment.shape) for place, moment in method.moments.items()})
        assert method.moments["head.linear"].shape == (33, 33)
        assert {tuple(count.shape) for count in method.tokens.values()} == {()}
        assert method.gradients["head.linear.weight"].shape == (2 * k + 2, 32)
        assert all(method.gradients[n].shape == w.shape for n, w in P.trainable(learner.model).items())
        assert set(method.gradients) == set(P.trainable(learner.model))
    assert sizes[0] == sizes[1] == sizes[2]
    assert set(sizes[0].values()) == {(33, 33), (65, 65)}


def test_old_gradients_of_new_rows_are_zero(one_layer, classes):
    learner = adabop_learner(one_layer, classes, small(epochs=1), fixed=HELD, lr=1e-2)
    learner.learn(classes.tasks[0])
    learner.begin(classes.tasks[1])
    assert (learner.method.gradients["head.linear.weight"][2:] == 0).all()
    assert (learner.method.gradients["head.linear.weight"][:2] != 0).all()


# ---- what moves ---------------------------------------------------------------------------------------


def watch_free(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record the free rows of every projected training from now on."""
    seen: list[dict[str, Any]] = []
    project = projection.project_after_step

    def watched(optimizer: Any, params: Any, projectors: Params, free: dict[str, Any]) -> None:
        seen.append(free)
        project(optimizer, params, projectors, free)

    monkeypatch.setattr(projection, "project_after_step", watched)
    return seen


def second_task(
    path: str, stream: Stream, name: str = "adabop", **values: Any
) -> tuple[Learner, Params, Any]:
    """Learn the first task and try the second; return the learner and the weights before and after."""
    learner = make_learner(path, METHODS[name](**values), stream, small(), fixed=HELD & set(values) | {"lr"})
    learner.method.lr = 1e-2
    learner.learn(stream.tasks[0])
    hand = learner.begin(stream.tasks[1])
    start = P.snapshot(learner.model)
    trial = hand.trial(stream.tasks[1], {"lr": 1e-2})
    assert trial.fit["best_epoch"] > 0
    return learner, start, trial


STRICT = {"lam_s": 1e4, "lam_l": 1e4, "normalize": False}


def on_old_inputs(learner: Learner, start: Params, end: Params) -> list[float]:
    """Return δ F δᵀ per row of the head, the mean squared change of its logit on the first task's inputs."""
    step = matrix(end, "head.linear") - matrix(start, "head.linear")
    return [float(row @ learner.method.moments["head.linear"].numpy() @ row) for row in step]


def test_rows_of_new_labels_are_free(one_layer, classes, monkeypatch):
    free = watch_free(monkeypatch)
    learner, start, trial = second_task(one_layer, classes, **STRICT)
    assert free == [{"head.linear": [2, 3]}]
    changes = on_old_inputs(learner, start, trial.params)
    assert min(changes[2:]) > 1e4 * max(changes[:2])
    assert (trial.params["head.linear.weight"] != start["head.linear.weight"]).all(), "held rows move too"


def test_no_row_is_free_where_labels_are_shared(one_layer, domains, monkeypatch):
    free = watch_free(monkeypatch)
    learner, start, trial = second_task(one_layer, domains, **STRICT)
    assert free == [{"head.linear": []}]
    assert learner.at_hand.past_rows == [0, 1]
    assert max(on_old_inputs(learner, start, trial.params)) < 1e-6
    assert distance(trial.params, start) > 1e-3


def test_unseen_rows_of_a_preallocated_head_are_free(one_layer, classes, monkeypatch):
    seen = watch_free(monkeypatch)
    learner = adabop_learner(one_layer, classes, small(head="preallocated", epochs=1), fixed=HELD, lr=1e-2)
    learner.learn(classes.tasks[0])
    assert seen == [], "no projection yet: every row is free"
    for task, free in zip(classes.tasks[1:], ([2, 3, 4, 5], [4, 5]), strict=True):
        seen.clear()
        learner.learn(task)
        rows = [classes.labels.index(label) for label in learner.model.head.labels]
        [found] = seen
        assert [rows[row] for row in found["head.linear"]] == free


def test_norms_do_not_move_after_the_first_task(tiny_bert, classes):
    learner = adabop_learner(tiny_bert, classes, fixed=HELD, lr=1e-2)
    norms = [name for name in P.trainable(learner.model) if "LayerNorm" in name]
    assert len(norms) == 8
    before = weights_of(learner)
    learner.learn(classes.tasks[0])
    first = weights_of(learner)
    assert all((first[name] != before[name]).any() for name in norms)
    lesson = learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] > 0
    second = weights_of(learner)
    assert all(torch.equal(second[name], first[name]) for name in norms)
    others = [name for name in P.trainable(learner.model) if name not in norms and "head" not in name]
    assert all((second[name] != first[name]).any() for name in others), "everything else moves"


@pytest.mark.parametrize("selection", ["ratio", "soft"])
@pytest.mark.slow
def test_old_answers_change_far_less_than_under_seq(tiny_bert_dry, classes, selection):
    """Compared by the logits of the first task's labels on its sentences."""
    texts = classes.tasks[0].train.texts
    changes = {}
    for name, values in (("seq", {}), ("adabop", STRICT | {"selection": selection})):
        learner, start, trial = second_task(tiny_bert_dry, classes, name, **values)
        with P.using(learner.model, start):
            before = learner.model.logits(texts)[:, :2]
        with P.using(learner.model, trial.params):
            changes[name] = float((learner.model.logits(texts)[:, :2] - before).abs().mean())
    assert 0 < changes["adabop"] < 0.05 * changes["seq"]


# ---- the search ---------------------------------------------------------------------------------------

PAPER = [
    {"lam_s": small_, "lam_l": large, "eps": eps}
    for small_, large in ((0.1, 0.3), (0.03, 0.08), (0.005, 0.01))
    for eps in (0.002, 0.004)
]


def choices(path: str, stream: Stream, settings: Any, *, fixed: Any = (), **values: Any) -> list[Any]:
    """Return the choices tried for each of the first two tasks."""
    learner = adabop_learner(path, stream, settings, fixed=fixed, **values)
    return [[trial.choice for trial in learner.learn(task).trials] for task in stream.tasks[:2]]


@pytest.mark.slow
def test_the_grid_after_the_rates(one_layer, classes):
    first, second = choices(one_layer, classes, small(rates=(1e-2, 1e-3), epochs=1))
    assert first == [{"lr": 1e-2}, {"lr": 1e-3}], "there is nothing to protect yet"
    assert second[:2] == [{"lr": lr} | PAPER[0] for lr in (1e-2, 1e-3)]
    best = second[2]["lr"]
    assert second[2:] == [{"lr": best} | point for point in PAPER[1:]]


@pytest.mark.slow
def test_the_grid_for_every_rate(one_layer, classes):
    first, second = choices(one_layer, classes, small(rates=(1e-2, 1e-3), epochs=1, grids="product"))
    assert len(first) == 2
    assert len(second) == 12
    assert all({"lr": lr} | point in second for lr in (1e-2, 1e-3) for point in PAPER)


def test_with_a_fraction_only_the_rate_is_searched(one_layer, classes):
    settings = small(rates=(1e-2, 1e-3), epochs=1, grids="product")
    assert choices(one_layer, classes, settings, selection="fraction") == [[{"lr": 1e-2}, {"lr": 1e-3}]] * 2


def test_a_fixed_strength_is_honoured(one_layer, classes, monkeypatch):
    learner = adabop_learner(one_layer, classes, small(epochs=1), fixed={"lam_s"}, lam_s=0.7)
    learner.learn(classes.tasks[0])
    made = watch_trainings(monkeypatch)
    lesson = learner.learn(classes.tasks[1])
    points = [{n: v for n, v in point.items() if n != "lam_s"} for point in PAPER]
    assert [trial.choice for trial in lesson.trials] == [{"lr": 1e-2} | point for point in points]
    assert [(one.method.lam_s, one.method.lam_l) for one in made] == [
        (0.7, point["lam_l"]) for point in points
    ]
    assert learner.method.lam_s == 0.7


def test_fixed_strengths_leave_the_threshold(one_layer, classes):
    _, second = choices(one_layer, classes, small(epochs=1), fixed={"lam_s", "lam_l"})
    assert second == [{"lr": 1e-2, "eps": eps} for eps in (0.002, 0.004)]
    _, second = choices(one_layer, classes, small(epochs=1), fixed={"lam_s", "lam_l", "eps"})
    assert second == [{"lr": 1e-2}]


def test_the_best_point_is_adopted(one_layer, classes):
    learner = adabop_learner(one_layer, classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    best = max(trial.score for trial in lesson.trials)
    chosen = next(trial for trial in lesson.trials if trial.score == best)
    assert lesson.decision.trial is chosen
    assert {name: getattr(learner.method, name) for name in chosen.choice} == chosen.choice


@pytest.mark.slow
def test_the_gradients_are_measured_once_for_all_trials(one_layer, classes, monkeypatch):
    from holdfast import importance

    calls = []
    original = importance.mean_gradients
    monkeypatch.setattr(importance, "mean_gradients", lambda *a, **k: calls.append(1) or original(*a, **k))
    settings = small(rates=(1e-2, 1e-3), epochs=1, grids="product")
    learner = adabop_learner(one_layer, classes, settings)
    for k, task in enumerate(classes.tasks[:2]):
        learner.learn(task)
        assert len(calls) == k + 1


@pytest.mark.parametrize("scenario", ["class-incremental", "domain-incremental"])
def test_an_inert_lambda_is_said_so(scenario):
    def inert(method: AdaBOP) -> list[str]:
        return [text for text in method.cautions(scenario) if "lam_s" in text and "no effect" in text]

    assert len(inert(AdaBOP(selection="fraction"))) == 1
    assert not inert(AdaBOP())
    assert not inert(AdaBOP(selection="soft"))
    others = set(AdaBOP().cautions(scenario))
    assert others <= set(AdaBOP(selection="fraction").cautions(scenario)), "in addition to the usual notes"

"""LwF's teacher and the search for its strength."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from helpers.by_hand import distance, second_task
from helpers.learners import make_learner
from helpers.plans import pupil, searched
from helpers.toys import class_stream, small
from helpers.watching import scripted, watch_trainings
from helpers.weights import assert_same_bits, weights_of
from torch import Tensor, nn

from holdfast.data.batches import Batch
from holdfast.data.tasks import Task
from holdfast.learning.at_hand import AtHand
from holdfast.learning.fit import FitResult
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.base import Method, Training
from holdfast.methods.lwf import LwF, Teacher
from holdfast.models.network import Output

# ---- the teacher --------------------------------------------------------------------------------------


def sentence(batch: Batch, i: int) -> tuple[int, ...]:
    return tuple(batch.input_ids[i][batch.attention_mask[i].bool()].tolist())


def test_the_teacher_answers_without_dropout_while_the_student_trains_with_it(
    one_layer, classes, monkeypatch
):
    method = LwF(temperature=2.0, outputs="all")
    hand = second_task(one_layer, method, classes, small(epochs=3, patience=9))
    task = classes.tasks[1]
    started = dict(zip(task.train.texts, hand.model.logits(task.train.texts), strict=True))
    tokens = dict(zip(map(tuple, hand.model.tokenize(task.train.texts)), task.train.texts, strict=True))
    answers: dict[tuple[int, ...], list[Tensor]] = {}
    students: list[tuple[tuple[int, ...], Tensor]] = []
    answer, fit = Teacher.answers, AtHand._fit

    def watched_answers(teacher: Teacher, own: AtHand, batch: Batch) -> Tensor:
        found = answer(teacher, own, batch)
        for i in range(len(batch)):
            answers.setdefault(sentence(batch, i), []).append(found[i])
        assert hand.model.training, "the model must be in training mode again"
        return found

    def watched_fit(own: AtHand, task: Task, method: Method, training: Training) -> FitResult:
        def student(model: nn.Module, batch: Batch) -> Output:
            assert model.training
            output = training.forward(model, batch)
            students.extend((sentence(batch, i), z.detach()) for i, z in enumerate(output.logits))
            return output

        return fit(own, task, method, replace(training, forward=student))

    monkeypatch.setattr(Teacher, "answers", watched_answers)
    monkeypatch.setattr(AtHand, "_fit", watched_fit)
    trial = hand.trial(task, {"lr": 1e-2, "lam": 5.0})
    assert trial.fit["epochs"] == 3
    assert len(answers) == len(tokens)
    for key, given in answers.items():
        assert len(given) >= 3, "once per epoch"
        for z in given:
            assert not z.requires_grad
            assert torch.allclose(z, started[tokens[key]], atol=2e-5)
    first = students[: hand.settings.batch_size]  # no step yet: they differ only by dropout
    assert max(float((z - started[tokens[key]]).abs().max()) for key, z in first) > 1e-2


def test_the_first_task_has_no_teacher(one_layer, classes, monkeypatch):
    ends = []
    made = watch_trainings(monkeypatch)
    for name, choice in (("seq", {}), ("lwf", {"lam": 5.0})):
        learner = make_learner(one_layer, METHODS[name](), classes)
        hand = learner.begin(classes.tasks[0])
        trial = hand.trial(classes.tasks[0], {"lr": 1e-2, **choice})
        ends.append(trial.params)
    assert made[-1].method.lam == 5.0
    assert made[-1].teachers == made[-1].training.terms == {}
    assert "teacher" not in trial.passes
    assert_same_bits(*ends)


@pytest.mark.slow
def test_lambda_zero_is_seq_bit_for_bit(one_layer, classes):
    seq = make_learner(one_layer, METHODS["seq"](), classes, small(epochs=2))
    lwf = make_learner(one_layer, METHODS["lwf"](), classes, small(epochs=2), fixed={"lam"})
    for task in classes.tasks[:2]:
        seq.learn(task)
        lesson = lwf.learn(task)
    assert len(lesson.trials) == 1
    assert lwf.model.head.seen[:2] == list(classes.tasks[0].labels)
    assert_same_bits(weights_of(seq), weights_of(lwf))
    held = make_learner(one_layer, METHODS["lwf"](lam=5.0), classes, small(epochs=2), fixed={"lam"})
    for task in classes.tasks[:2]:
        held.learn(task)
    other, mine = weights_of(held), weights_of(lwf)
    assert any(not torch.equal(mine[name], other[name]) for name in mine), "another λ must give other weights"


def test_the_teacher_of_the_third_task_is_the_model_after_the_second(one_layer, classes, monkeypatch):
    learner = make_learner(one_layer, LwF(lam=2.0), classes, small(epochs=1), fixed={"lam"})
    for task in classes.tasks[:2]:
        learner.learn(task)
    before = P.snapshot(learner.model)
    made = watch_trainings(monkeypatch)
    learner.learn(classes.tasks[2])
    teacher = made[-1].teachers["distillation"]
    assert teacher.rows == [0, 1, 2, 3]
    for name, value in before.items():
        assert torch.equal(teacher.params[name][: len(value)], value), name
    assert distance(P.snapshot(learner.model), teacher.params) > 0


def test_nothing_is_stored(one_layer, classes):
    learner = make_learner(one_layer, LwF(lam=2.0), classes, small(epochs=1), fixed={"lam"})
    for task in classes.tasks[:2]:
        learner.learn(task)
    assert learner.method.state_dict() == {}
    tensors, meta = learner.state()
    assert set(tensors) == {"weights"}
    assert meta["numbers"] == {}


def test_the_teacher_costs_one_forward_a_batch(one_layer, classes):
    learner = make_learner(
        one_layer, LwF(lam=2.0), classes, small(epochs=3, batch_size=5, patience=9), fixed={"lam"}
    )
    first = learner.learn(classes.tasks[0])
    assert "teacher" not in first.chosen_passes
    lesson = learner.learn(classes.tasks[1])
    gold, held = lesson.trials
    passes = 3 * math.ceil(24 / 5)
    assert (gold.fit["epochs"], held.fit["epochs"]) == (3, 3)
    assert gold.passes == {"train": {"forward": passes, "backward": passes}}
    assert held.passes == gold.passes | {"teacher": {"forward": passes, "backward": 0}}
    assert lesson.chosen_passes == held.passes
    assert lesson.search_passes == gold.passes


# ---- the search for λ ---------------------------------------------------------------------------------


def lams(made: list[Any]) -> list[float]:
    return [trial.choice["lam"] for trial in made]


@pytest.mark.parametrize(("previous", "start"), [(0.0, 10.0), (0.37, 0.37), (25.0, 25.0)])
def test_the_search_starts_at_ten_or_at_the_previous_lambda_and_ends_at_gold(previous, start):
    decision, made = searched(LwF(lam=previous), pupil(), lambda c: 0.0 if c["lam"] else 1 - c["lr"])
    assert lams(made) == pytest.approx([0.0, 0.0, start, start / 10, start / 100, start / 1000])
    assert decision.trial is made[1], "the better rate without a teacher"
    assert {trial.choice["lr"] for trial in made[2:]} == {1e-3}
    assert decision.notes == {"gold": 0.999, "flags": []}


@pytest.mark.parametrize(("scenario", "share"), [("class-incremental", 0.90), ("domain-incremental", 0.95)])
def test_the_strongest_lambda_that_keeps_enough_is_taken(scenario, share):
    def score(choice: dict[str, float]) -> float:
        return {10.0: share - 0.01, 1.0: share + 0.01}.get(choice["lam"], 1.0) * 0.8

    decision, made = searched(LwF(), pupil(scenario=scenario), score)
    assert lams(made) == [0.0, 0.0, 10.0, 1.0]
    assert decision.trial is made[-1]
    decision, made = searched(LwF(thr=share - 0.02), pupil(scenario=scenario), score)
    assert lams(made) == [0.0, 0.0, 10.0], "a start that passes is chosen"


def test_bisection_and_its_limit():
    learner = pupil(engine="bisect", lam_steps=7, lam_trials=2)
    decision, made = searched(LwF(), learner, lambda c: float(c["lam"] < 1e-4))
    assert lams(made) == [0.0, 0.0, 10.0, 1e-3]
    assert decision.trial is made[0]
    assert decision.notes["flags"] == ["limit"]


def test_the_first_task_and_a_fixed_lambda_are_not_searched():
    first = pupil()
    first.tasks_seen = 0
    assert lams(searched(LwF(lam=3.0), first, lambda c: 0.5)[1]) == [0.0, 0.0]
    decision, made = searched(LwF(lam=3.0), pupil({"lam"}), lambda c: 0.5)
    assert lams(made) == [0.0, 0.0, 3.0]
    assert decision.trial is made[-1], "whatever its score"


def test_a_real_search_goes_down_from_ten_and_on_from_what_it_found(one_layer, classes):
    learner = make_learner(one_layer, LwF(), classes, small(epochs=1, engine="linear", lam_trials=None))
    strongest = [math.inf]  # the strongest λ that the current task tolerates
    scripted(learner, lambda choice: 0.8 if choice["lam"] <= strongest[0] else 0.4)
    found = []
    stream = class_stream()
    for bears, task in zip((9.0, 1.0, 0.5), stream.tasks, strict=True):
        strongest[0] = bears
        lesson = learner.learn(task)
        found.append(lams(lesson.trials))
        assert learner.method.lam == lesson.decision.trial.choice["lam"]
    assert found == [[0.0], [0.0, 10.0, 1.0], [0.0, 1.0, 0.1]]


def test_after_lambda_zero_a_real_search_starts_at_ten_again(tiny_bert, classes):
    method = LwF()
    method.thr = 2.0  # beyond the allowed range: no λ passes
    learner = make_learner(tiny_bert, method, classes, small(epochs=1, lam_steps=1, lam_trials=None))
    for task in classes.tasks:
        lesson = learner.learn(task)
        if task is not classes.tasks[0]:
            assert lams(lesson.trials) == [0.0, 10.0, 1.0]
            assert lesson.decision.trial is lesson.trials[0], "the gold trial must be chosen"
            assert_same_bits(lesson.trials[0].params, P.snapshot(learner.model))

"""The contract of every method in METHODS. A new method needs no change here."""

from __future__ import annotations

import copy
import dataclasses
import functools
import gc
import inspect
import json
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.contract import STREAMS, every_method, every_method_but, taught
from helpers.learners import make_learner, make_method
from helpers.toys import KEYWORDS, class_stream, small
from helpers.weights import assert_same_bits, weights_of

from holdfast.data.batches import Batch, Examples
from holdfast.data.tasks import Split, Stream
from holdfast.heads.closed import SumsHead
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.metrics import forgetting
from holdfast.methods import METHODS
from holdfast.models import Network

SETTINGS = small(epochs=2)


def joins(name: str, stream: Stream) -> bool:
    """Return whether the method learns all tasks at once (joint training)."""
    return len(METHODS[name]().curriculum(stream)) < len(stream)


def closed_form(learner: Learner) -> bool:
    """Return whether the head is computed, not trained."""
    return not learner.model.head.trained


# 1 ---- it runs ----------------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("stream", STREAMS)
def test_tasks_run_and_stay_finite(tiny_bert, name, stream):
    run = taught(tiny_bert, name, stream)
    for weights in run.weights:
        assert all(torch.isfinite(value).all() for value in weights.values())
    for tensors, meta in run.states:
        assert all(torch.isfinite(v).all() for params in tensors.values() for v in params.values())
        json.dumps(meta, allow_nan=False)


@every_method
@pytest.mark.parametrize("stream", STREAMS)
def test_loss_terms_are_finite_and_their_names_stable(tiny_bert, name, stream):
    run = taught(tiny_bert, name, stream)
    names = [{key for training in task for epoch in training for key in epoch} for task in run.trainings]
    if closed_form(run.learner):  # it may not train at all: each entry is a training that took place
        assert all({"task", "valid"} <= found for found in names if found)
    else:
        assert all({"task", "valid"} <= found for found in names)
        assert names[1] == names[2], "later tasks have the same terms"
    for training in (training for task in run.trainings for training in task if training):
        assert len({frozenset(epoch) for epoch in training}) == 1, "every epoch has the same terms"
        assert all(math.isfinite(value) for epoch in training for value in epoch.values())


@every_method
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_the_stable_plan_runs_under_both_optimisers(tiny_bert, name, optimizer):
    run = taught(tiny_bert, name, "classes", "stable", optimizer)
    for weights in run.weights:
        assert all(torch.isfinite(value).all() for value in weights.values())
    for tensors, meta in run.states:
        assert all(torch.isfinite(v).all() for params in tensors.values() for v in params.values())
        json.dumps(meta, allow_nan=False)
    assert_state_grows_by_new_rows_only(run, name)


@every_method
def test_the_papers_plan_runs_under_sgd(tiny_bert, name):
    run = taught(tiny_bert, name, "classes", "paper", "sgd")
    assert all(torch.isfinite(value).all() for weights in run.weights for value in weights.values())
    assert_state_grows_by_new_rows_only(run, name)


# 2 ---- the same seed ----------------------------------------------------------------------------------


@every_method
def test_same_seed_same_weights(tiny_bert, name):
    run, again = taught(tiny_bert, name, "classes"), taught_sealed(tiny_bert, name)
    for weights, states, (other, (tensors, meta)) in zip(run.weights, run.states, again, strict=True):
        assert_same_bits(other, weights)
        assert meta == states[1]
        for group, params in tensors.items():
            assert_same_bits(params, states[0][group])


# 4 ---- bounded state ----------------------------------------------------------------------------------


def sizes(state: tuple[dict[str, P.Params], dict[str, Any]]) -> dict[str, int]:
    return {group: P.size(params) for group, params in state[0].items()}


@every_method
def test_state_does_not_grow_with_domains(tiny_bert, name):
    run = taught(tiny_bert, name, "domains")
    _, second, third = run.states
    if closed_form(run.learner):
        # A label's sums may grow with its sentences, up to what the limit on labels assumes, and a scatter
        # of all labels up to its triangle.
        head = copy.deepcopy(run.learner.model.head)
        head.become([], [])
        rest = sum(tensor.nbytes for tensor in head.statistics().values()) + shared(head)
        for tensors, meta in (second, third):
            own = sum(tensor.nbytes for n, tensor in tensors["memory"].items() if n != "adapted")
            assert own <= rest + len(meta["labels"]) * head.bytes_per_label
        assert {**sizes(third), "memory": 0} == {**sizes(second), "memory": 0}
    else:
        assert sizes(second) == sizes(third)
    numbers = [len(json.dumps(state[1]["numbers"])) for state in (second, third)]
    assert abs(numbers[1] - numbers[0]) <= 8, "scalars, not lists that grow"


def shared(head):
    """Return the bytes of the triangles that hold the scatter of all labels."""
    every = [one.past for one in head.modules() if isinstance(one, SumsHead)]
    return sum(8 * one.width * (one.width + 1) // 2 for one in every if one.scatter == "pooled")


@every_method
def test_state_grows_by_new_rows_only(tiny_bert, name):
    assert_state_grows_by_new_rows_only(taught(tiny_bert, name, "classes"), name)


def assert_state_grows_by_new_rows_only(run, name):
    _, second, third = run.states
    if closed_form(run.learner):
        # A new label adds sums instead of weights: as many for the last two labels as for the two before.
        # A scatter of all labels grows with their sentences instead.
        every = shared(run.learner.model.head)
        apart = ("triangles", "ranks", "factors") if every else ()
        sums = [
            sum(one.nbytes for name, one in tensors["memory"].items() if not name.endswith(apart))
            for tensors, _ in run.states
        ]
        assert sums[2] - sums[1] == sums[1] - sums[0] > 0
        assert {**sizes(third), "memory": 0} == {**sizes(second), "memory": 0}
        return
    rows = 2 * (32 + 1)
    # Some groups do not grow: empty ones, such as a trace between tasks, and those without head rows.
    fixed = {group for group, kind in METHODS[name].state.items() if kind == "fixed"}
    grown = {
        group: size + rows if size and group not in fixed else size for group, size in sizes(second).items()
    }
    assert sizes(third) == grown
    assert set(METHODS[name].state.values()) <= {"weights", "zeros", "fixed", "number"}


@every_method
def test_only_the_declared_state_survives(tiny_bert, name):
    tensors, meta = taught(tiny_bert, name, "classes").states[2]
    state = METHODS[name].state
    memory = {"memory"} if closed_form(taught(tiny_bert, name, "classes").learner) else set()
    assert set(tensors) == {"weights"} | memory | {key for key, kind in state.items() if kind != "number"}
    assert set(meta["numbers"]) == {key for key, kind in state.items() if kind == "number"}
    words = {word for words in KEYWORDS.values() for word in words}
    assert not any(word in json.dumps(meta["numbers"]) for word in words)


# 5 ---- no replay --------------------------------------------------------------------------------------


class Sealed(Split):
    """A split that cannot be read once it is sealed."""

    def __getattribute__(self, name: str) -> Any:
        if name in ("texts", "labels", "counts", "capped") and object.__getattribute__(self, "__dict__").get(
            "shut"
        ):
            raise AssertionError(f"a past task's {name} were read")
        return object.__getattribute__(self, name)

    def __len__(self) -> int:
        return len(self.texts)


@functools.cache
def taught_sealed(path: str, name: str) -> list[tuple[dict[str, torch.Tensor], Any]]:
    """Teach the classes with past tasks and all test splits sealed; return weights and state by task."""
    torch.manual_seed(2**20)  # the global generator must not matter
    stream = class_stream()
    learner = make_learner(path, make_method(name), stream, SETTINGS)
    tasks = stream.tasks
    if not joins(name, stream):
        parts = ("train", "valid", "test")
        tasks = tuple(
            dataclasses.replace(
                task, **{p: Sealed(getattr(task, p).texts, getattr(task, p).labels) for p in parts}
            )
            for task in stream
        )
    first = {tuple(tokens) for tokens in learner.model.tokenize(stream.tasks[0].train.texts)}
    after = []
    for number, task in enumerate(tasks):
        if isinstance(task.test, Sealed):
            object.__setattr__(task.test, "shut", True)  # no decision may read a test split
        learner.learn(task)
        after.append((weights_of(learner), copy.deepcopy(learner.state())))
        if number:
            gc.collect()
            held = [one for one in gc.get_objects() if type(one) is Examples]
            assert not any(tuple(tokens) in first for one in held for tokens in one.tokens)
        for part in (task.train, task.valid):
            if isinstance(part, Sealed):
                object.__setattr__(part, "shut", True)
    if isinstance(tasks[0].train, Sealed):
        with pytest.raises(AssertionError, match="past task"):
            len(tasks[0].train)
    return after


@every_method
def test_past_tasks_are_not_touched(tiny_bert, name):
    if joins(name, class_stream()):
        pytest.skip(f"{name} is joint training: it reads every task by design")
    assert len(taught_sealed(tiny_bert, name)) == 3


# 6 ---- no task id -------------------------------------------------------------------------------------


def test_prediction_takes_no_task():
    assert list(inspect.signature(Network.forward).parameters) == ["self", "batch"]
    assert {field.name for field in dataclasses.fields(Batch)} == {
        "input_ids",
        "attention_mask",
        "labels",
        "objective",
    }
    assert list(inspect.signature(Learner.predict).parameters) == ["self", "texts"]


@every_method
def test_prediction_depends_on_the_text_alone(tiny_bert, name):
    learner, stream = taught(tiny_bert, name, "classes").learner, class_stream()
    texts = [text for task in stream for text in task.test.texts]
    together = learner.predict(texts)
    assert together == [label for task in stream for label in learner.predict(task.test.texts)]
    assert set(together) <= set(learner.classes_) == set(stream.labels)


# 7 ---- reductions to SEQ ------------------------------------------------------------------------------


@every_method
def test_the_first_task_is_seq(tiny_bert, name):
    if METHODS[name].reduces_to_seq is not True:
        assert len(str(METHODS[name].reduces_to_seq)) > 10, "a readable reason"
        pytest.skip(f"{name} is not SEQ on the first task: {METHODS[name].reduces_to_seq}")
    learner = taught(tiny_bert, name, "domains")
    assert_same_bits(learner.weights[0], taught(tiny_bert, "seq", "domains").weights[0])


@every_method
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
@pytest.mark.parametrize("stream", STREAMS)
def test_strengths_at_zero_are_seq(tiny_bert, name, stream, optimizer):
    """From the same start of the second task, training with every strength at 0 is bit-equal to SEQ."""
    method = METHODS[name]
    if method.reduces_to_seq is not True:
        assert len(str(method.reduces_to_seq)) > 10, "a readable reason"
        pytest.skip(f"{name} switched off is not SEQ: {method.reduces_to_seq}")
    ended, off = (switched_off(tiny_bert, one, stream, optimizer) for one in ("seq", name))
    assert_same_bits(ended.params, off.params)
    assert ended.score == off.score
    assert ended.fit == off.fit


@functools.cache
def switched_off(path: str, name: str, stream_name: str, optimizer: str) -> Any:
    """Train the second task with every strength at 0."""
    stream, settings = STREAMS[stream_name](), dataclasses.replace(SETTINGS, optimizer=optimizer)
    learner = make_learner(path, make_method(name), stream, settings)
    learner.scenario = stream.scenario
    learner.learn(stream.tasks[0])
    hand = learner.begin(stream.tasks[1])
    trial = hand.trial(stream.tasks[1], {"lr": 1e-2} | dict.fromkeys(METHODS[name].strengths, 0.0))
    return SimpleNamespace(params=trial.params, score=trial.score, fit=trial.fit)


# 8 ---- the search leaves no trace ---------------------------------------------------------------------


@every_method
def test_search_leaves_the_learner_as_it_found_it(tiny_bert, name):
    stream = class_stream()
    learner = make_learner(tiny_bert, make_method(name), stream, SETTINGS)
    learner.learn(stream.tasks[0])
    hand = learner.begin(stream.tasks[1])
    weights, (tensors, meta) = weights_of(learner), learner.state()
    hand.search()
    assert hand.trials
    assert_same_bits(weights_of(learner), weights)
    after, after_meta = learner.state()
    assert after_meta == meta
    for group, params in tensors.items():
        assert_same_bits(after[group], params)


# 9 ---- frozen weights ---------------------------------------------------------------------------------


@every_method
@pytest.mark.parametrize("stream", STREAMS)
def test_frozen_weights_never_change(tiny_bert, name, stream):
    run = taught(tiny_bert, name, stream)
    trainable = set(P.trainable(run.learner.model))
    frozen = [key for key in run.start if key not in trainable]
    assert len(frozen) > 20
    for key in frozen:
        assert torch.equal(run.weights[-1][key], run.start[key]), key
    assert all(
        not weight.requires_grad for key, weight in run.learner.model.named_parameters() if key in frozen
    )


# less forgetting ---------------------------------------------------------------------------------------


@every_method_but("seq", "mtl")
def test_it_forgets_less_than_seq(tiny_bert, name):
    """Shared words mean the opposite in the next domain, so SEQ forgets the previous one."""
    lost = {one: forgetting(taught(tiny_bert, one, "domains").F) for one in ("seq", name)}
    assert lost["seq"] > 0.3, "SEQ must forget on this stream"
    assert lost[name] < lost["seq"]

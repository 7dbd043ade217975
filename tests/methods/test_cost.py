"""Passes over the data of two tasks by method, compared with the paper's table "Computation cost".

A pass in the paper is one forward through one batch, with or without a backward. Validation is not counted.
Every training here has a different number of epochs, so that no wrong formula fits by chance.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import pytest
import torch
from helpers.learners import make_learner
from helpers.published_passes import ROWS, SILENT, Facts, Ways
from helpers.toys import KEYWORDS, TOPICS, small, toy_task

import holdfast.learning.fit as fitting
from holdfast.data.tasks import Stream
from holdfast.learning import at_hand
from holdfast.learning.lesson import Lesson
from holdfast.learning.passes import Passes, added
from holdfast.maths.params import trainable
from holdfast.methods import METHODS
from holdfast.models import Network

pytestmark = pytest.mark.slow  # every row trains a method
every_row = pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.xdist_group(f"cost-{n}")) for n in ROWS]
)

# ---- two tasks of different size, learnt once per row --------------------------------------------------

BATCH = 8
PER_LABEL = (15, 23)  # 30 and 46 sentences: 3 ¾ and 5 ¾ batches, together not a whole number


def stream() -> Stream:
    tasks = []
    for k, n in enumerate(PER_LABEL):
        words = {topic: KEYWORDS[topic] for topic in TOPICS[2 * k : 2 * k + 2]}
        tasks.append(toy_task(f"task{k}", words, {"train": n, "valid": 4, "test": 1}))
    return Stream("two", tuple(tasks), "class-incremental")


@dataclass
class Run:
    """Both tasks learnt, and the passes that really took place."""

    facts: Facts
    lessons: list[Lesson]
    forward: int
    backward: int

    @property
    def chosen(self) -> Passes:
        return added(*(lesson.chosen_passes for lesson in self.lessons))

    @property
    def search(self) -> Passes:
        return added(*(lesson.search_passes for lesson in self.lessons))


class Meter:
    """Counts the model's forward and backward passes and trainings, except in validation."""

    def __init__(self, lessons: Stream) -> None:
        self.validation = {task.valid.texts for task in lessons}
        self.forward = self.backward = 0
        self.validating = False
        self.lengths = itertools.count(2)

    def watching(self, original: Callable[..., Any], way: str) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            if not self.validating:
                setattr(self, way, getattr(self, way) + 1)
            return original(*args, **kwargs)

        return watched

    def unwatched(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self.validating = True
            try:
                return original(*args, **kwargs)
            finally:
                self.validating = False

        return watched

    def embedding(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Count the embedding of sentences as forward passes of their batches, except in validation."""

        def watched(model: Any, texts: Any, *args: Any, **kwargs: Any) -> Any:
            if tuple(texts) not in self.validation:
                self.forward += math.ceil(len(texts) / BATCH)
            return original(model, texts, *args, **kwargs)

        return watched

    def lengthened(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Give the first training two epochs, the second three, and so on."""

        def fit(model: Any, method: Any, train: Any, valid: Any, settings: Any, **rest: Any) -> Any:
            own = replace(settings, epochs=next(self.lengths), patience=99)
            return original(model, method, train, valid, own, **rest)

        return fit


@functools.cache
def learnt(path: str, name: str) -> Run:
    row, tasks = ROWS[name], stream()
    method = METHODS[row.method](lr=1e-3, **row.values)
    meter = Meter(method.curriculum(tasks))
    settings = small(batch_size=BATCH, epochs=1, rates=(1e-3,), sgd_rates=(1e-3,))
    learner = make_learner(path, method, tasks, settings, fixed={"lr", *row.values})
    with (
        mock.patch.object(at_hand, "fit", meter.lengthened(at_hand.fit)),
        mock.patch.object(fitting, "_validate", meter.unwatched(fitting._validate)),
        mock.patch.object(Network, "logits", meter.unwatched(Network.logits)),
        mock.patch.object(Network, "embed", meter.embedding(Network.embed)),
        mock.patch.object(Network, "forward", meter.watching(Network.forward, "forward")),
        mock.patch.object(torch.autograd, "grad", meter.watching(torch.autograd.grad, "backward")),
        mock.patch.object(torch.Tensor, "backward", meter.watching(torch.Tensor.backward, "backward")),
    ):
        lessons = [learner.learn(task) for task in method.curriculum(tasks)]
    b1, b2 = (math.ceil(len(task.train) / BATCH) for task in tasks)
    epochs = [lesson.decision.trial.fit["epochs"] for lesson in lessons]
    ahead = [t.fit["epochs"] for t in lessons[-1].trials if not t.choice.get("lam") and "lam" in t.choice]
    facts = Facts(
        b1=b1,
        b2=b2,
        E1=epochs[0],
        E2=epochs[-1],
        E2_aux=ahead[0] if ahead else 0,
        N=sum(weight.dim() == 2 for weight in trainable(learner.model).values()),
        C1=len(tasks.tasks[0].labels),
        C2=len(tasks.labels),
    )
    return Run(facts, lessons, meter.forward, meter.backward)


def total(passes: Passes, way: str) -> int:
    return sum(counts[way] for counts in passes.values())


def as_passes(counts: dict[str, Ways]) -> Passes:
    return {phase: {"forward": ways[0], "backward": ways[1]} for phase, ways in counts.items()}


# ---- the tests ----------------------------------------------------------------------------------------


def test_every_method_has_a_row():
    assert {row.method for row in ROWS.values()} == set(METHODS)
    assert sum(row.published for row in ROWS.values()) >= 9


def test_the_tasks_tell_the_formulas_apart():
    sizes = [len(task.train) for task in stream()]
    b1, b2 = (math.ceil(size / BATCH) for size in sizes)
    assert b1 != b2
    assert all(size % BATCH for size in sizes)
    assert math.ceil(sum(sizes) / BATCH) == b1 + b2, (
        "the joint task has as many batches as both tasks together"
    )


@every_row
def test_passes_by_phase(one_layer, name):
    run = learnt(one_layer, name)
    made = {phase: count for phase, count in run.chosen.items() if any(count.values())}
    assert made == as_passes(ROWS[name].phases(run.facts))


@every_row
def test_no_phase_is_without_a_pass(one_layer, name):
    """Only phases that took place are listed."""
    run = learnt(one_layer, name)
    for passes in (run.chosen, run.search):
        assert not [phase for phase, count in passes.items() if not any(count.values())]


@every_row
def test_the_papers_formula_and_what_is_beyond_it(one_layer, name):
    run, row = learnt(one_layer, name), ROWS[name]
    extras = row.extras(run.facts)
    assert all(any(ways) for ways in extras.values()), "extras without passes must not be listed"
    assert total(run.chosen, "forward") == row.paper(run.facts) + sum(ways[0] for ways in extras.values())
    # Every forward has a backward, except those of teachers and those that only collect inputs.
    silent = sum(count["forward"] for phase, count in run.chosen.items() if phase in SILENT)
    known = sum(ways[1] for ways in extras.values() if not ways[0])
    assert total(run.chosen, "backward") == total(run.chosen, "forward") - silent + known


@every_row
def test_chosen_and_search_passes_are_all_that_ran(one_layer, name):
    """Compared with the model's actual forward and backward passes."""
    run = learnt(one_layer, name)
    everything = added(run.chosen, run.search)
    assert total(everything, "forward") == run.forward
    assert total(everything, "backward") == run.backward


@every_row
def test_the_second_task_had_its_main_phase(one_layer, name):
    run, row = learnt(one_layer, name), ROWS[name]
    if row.method == "mtl":
        assert len(run.lessons) == 1
        return
    second = run.lessons[1]
    fixed = {n: v for n, v in row.values.items() if n in ("lam", "lam_a", "down", "up")}
    chosen = second.decision.trial.choice
    if row.method != "rp2f":  # its λ is not searched, so it is in no choice
        assert {n: chosen[n] for n in fixed} == fixed
    assert run.facts.E1 != run.facts.E2 or not chosen["lr"], (
        "otherwise the formulas could not be distinguished"
    )
    assert not any(trial.fit["diverged"] for trial in second.trials)
    if row.method in ("la", "ancl-mas", "ancl-lwf"):
        assert chosen["lam"] > 0
        assert 0 < run.facts.E2_aux < run.facts.E2
        assert (chosen["down"], chosen["up"]) == (0.3, 0.5) if row.method == "la" else chosen["lam_a"] > 0


@pytest.mark.parametrize("name", [n for n, row in ROWS.items() if row.printed])
def test_the_classes_print_the_same_formula(one_layer, name):
    facts, row = learnt(one_layer, name).facts, ROWS[name]
    text = METHODS[row.method].facts()["Two tasks"]
    assert re.fullmatch(r"[Eb\d_a-z()+· ]+", text)
    names = vars(facts) | {"E": facts.E1, "E2_la": facts.E2_aux}
    assert eval(text.replace("·", "*"), {"__builtins__": {}}, names) == row.paper(facts)
    assert METHODS[row.method].facts()["Extras"].startswith("none") == (not row.extras(facts))


def test_a_search_adds_to_the_search_alone(one_layer):
    """The same choice out of several has the same chosen passes."""
    tasks, values = stream(), ROWS["la"].values
    lessons = []
    for rates in ((1e-2,), (1e-2, 1e-9)):
        settings = small(batch_size=BATCH, rates=rates, epochs=2)
        learner = make_learner(one_layer, METHODS["la"](**values), tasks, settings, fixed=set(values))
        lessons.append([learner.learn(task) for task in tasks])
    for short, long in zip(*lessons, strict=True):
        assert short.decision.trial.choice == long.decision.trial.choice
        assert short.chosen_passes == long.chosen_passes
        more = total(long.search_passes, "forward") - total(short.search_passes, "forward")
        [other] = [trial for trial in long.trials if trial.choice["lr"] == 1e-9]
        assert more == other.passes["train"]["forward"] > 0

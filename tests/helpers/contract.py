"""Every method of the contract, taught once for all of its tests."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import pytest
import torch
from conftest import class_stream, domain_stream, make_learner, make_method, small, weights_of

from holdfast.events import Progress
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.methods import METHODS

# One method of each kind, trained by gradient and in closed form; the others run with the slow tests, so that
# the quick ones stay quick.
QUICK = {"la", "slda"}
every_method = pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow]) for name in METHODS],
)
STREAMS = {"classes": class_stream, "domains": domain_stream}


class Diary(Progress):
    """The loss terms of every training, epoch by epoch."""

    def __init__(self) -> None:
        self.trainings: list[list[dict[str, float]]] = []

    def trial(self, number: int, what: str) -> None:
        self.trainings.append([])

    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        self.trainings[-1].append(losses)


@dataclasses.dataclass
class Run:
    """A method taught three tasks, with what it was after each of them."""

    learner: Learner
    weights: list[dict[str, torch.Tensor]]
    states: list[tuple[dict[str, P.Params], dict[str, Any]]]
    trainings: list[list[list[dict[str, float]]]]
    F: list[list[float]]
    start: dict[str, torch.Tensor]


@functools.cache
def taught(path: str, name: str, stream_name: str, epochs: int = 2) -> Run:
    """Teach all three tasks, once for the whole suite; nobody may change what this gives."""
    stream, diary = STREAMS[stream_name](), Diary()
    learner = make_learner(path, make_method(name), stream, small(epochs=epochs), progress=diary)
    run = Run(learner, [], [], [], [], weights_of(learner))
    for task in stream:
        diary.trainings = []
        learner.learn(task)
        run.weights.append(weights_of(learner))
        run.states.append(copy.deepcopy(learner.state()))
        run.trainings.append(diary.trainings)
        run.F.append([learner.score(seen.test) for seen in stream])
    return run

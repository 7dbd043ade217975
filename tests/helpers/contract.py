"""Runs of every method, shared by all tests of the contract."""

from __future__ import annotations

import copy
import dataclasses
import functools
from typing import Any

import pytest
import torch
from helpers.learners import make_learner, make_method
from helpers.toys import class_stream, domain_stream, small
from helpers.weights import weights_of

from holdfast.events import Progress
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.methods import METHODS


def every_method_but(*left_out: str) -> pytest.MarkDecorator:
    """Parametrise a test by method. One worker runs all tests of a method, which it trains once."""
    names = [name for name in METHODS if name not in left_out]
    return pytest.mark.parametrize(
        "name", [pytest.param(name, marks=pytest.mark.xdist_group(f"contract-{name}")) for name in names]
    )


every_method = every_method_but()
STREAMS = {"classes": class_stream, "domains": domain_stream}
EPOCHS = {"classes": 2, "domains": 6}  # enough for SEQ to forget a domain


class Diary(Progress):
    """Progress that records the loss terms of every training by epoch."""

    def __init__(self) -> None:
        self.trainings: list[list[dict[str, float]]] = []

    def trial(self, number: int, what: str) -> None:
        self.trainings.append([])

    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        self.trainings[-1].append(losses)


@dataclasses.dataclass
class Run:
    """A learner that was taught three tasks, with its state after each of them."""

    learner: Learner
    weights: list[dict[str, torch.Tensor]]
    states: list[tuple[dict[str, P.Params], dict[str, Any]]]
    trainings: list[list[list[dict[str, float]]]]
    F: list[list[float]]
    start: dict[str, torch.Tensor]


@functools.cache
def taught(path: str, name: str, stream_name: str, plan: str = "paper", optimizer: str = "adamw") -> Run:
    """Teach all three tasks, once for the whole suite. The result must not be changed."""
    stream, diary = STREAMS[stream_name](), Diary()
    settings = small(epochs=EPOCHS[stream_name], plan=plan, optimizer=optimizer)
    learner = make_learner(path, make_method(name), stream, settings, progress=diary)
    run = Run(learner, [], [], [], [], weights_of(learner))
    for task in stream:
        diary.trainings = []
        learner.learn(task)
        run.weights.append(weights_of(learner))
        run.states.append(copy.deepcopy(learner.state()))
        run.trainings.append(diary.trainings)
        run.F.append([learner.score(seen.test) for seen in stream])
    return run

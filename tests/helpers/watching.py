"""Record what a method prepares, trains with and measures; replace scores by given ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import pytest

from holdfast.data.tasks import Task
from holdfast.importance.estimators import Estimator
from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.learning.trials import StoredTrial
from holdfast.maths import params as P
from holdfast.methods import ancl, lwf, quadratic
from holdfast.methods.base import Method, Training
from holdfast.methods.lwf import Teacher
from holdfast.methods.search import Choice
from holdfast.steps.proximal import Pull

# ---- pulls and teachers -------------------------------------------------------------------------------


def acting(pulls: Mapping[str, Pull]) -> dict[str, Pull]:
    """Return the pulls with a strength and weights to pull."""
    return {name: pull for name, pull in pulls.items() if pull.weights and pull.lam > 0}


def prepared(method: Method, hand: Any, task: Any) -> tuple[Training, dict[str, Pull]]:
    """Return the training that a method prepares, and its pulls."""
    with mock.patch.object(quadratic, "pulling", wraps=quadratic.pulling) as pulling:
        training = method.prepare(hand, task)
    return training, acting(pulling.call_args.args[2])


def teachers_of(method: Method, learner: Any, task: Any) -> dict[str, Teacher]:
    """Return the teachers of the training that a method prepares."""
    module = ancl if isinstance(method, ancl.ANCLLWF) else lwf
    with mock.patch.object(module, "distilling", wraps=lwf.distilling) as distilling:
        method.prepare(learner, task)
    return dict(distilling.call_args.args[2])


@dataclass
class Trained:
    """A training that took place: the method's hyper-parameters, pulls and teachers."""

    method: Any
    training: Training
    pulls: dict[str, Pull] = field(default_factory=dict)
    teachers: dict[str, Teacher] = field(default_factory=dict)


def watch_trainings(monkeypatch: pytest.MonkeyPatch) -> list[Trained]:
    """Record every training from now on, in order."""
    made: list[Trained] = []
    pulls: list[tuple[Training, dict[str, Pull]]] = []
    teachers: list[tuple[Training, dict[str, Teacher]]] = []
    pulling, distilling, fit = quadratic.pulling, lwf.distilling, AtHand._fit

    def watched_pulling(method: Any, learner: Any, given: Any, *rest: Any, **named: Any) -> Training:
        training = pulling(method, learner, given, *rest, **named)
        pulls.append((training, acting(given)))
        return training

    def watched_distilling(lr: float, learner: Any, given: Any, *rest: Any, **named: Any) -> Training:
        training = distilling(lr, learner, given, *rest, **named)
        teachers.append((training, dict(given)))
        return training

    def watched_fit(self: AtHand, task: Any, method: Method, training: Training) -> Any:
        own_pulls = next((found for one, found in pulls if one is training), {})
        own_teachers = next((found for one, found in teachers if one is training), {})
        made.append(Trained(method, training, own_pulls, own_teachers))
        return fit(self, task, method, training)

    monkeypatch.setattr(quadratic, "pulling", watched_pulling)
    monkeypatch.setattr(lwf, "distilling", watched_distilling)
    monkeypatch.setattr(ancl, "distilling", watched_distilling)
    monkeypatch.setattr(AtHand, "_fit", watched_fit)
    return made


# ---- importances --------------------------------------------------------------------------------------


@dataclass
class Measured:
    """A measurement of importance: the weights, the result, and whether it is to be pooled."""

    at: P.Params
    found: P.Params
    to_pool: bool


def watch_measures(monkeypatch: pytest.MonkeyPatch) -> list[Measured]:
    """Record every measurement of importance from now on, in order."""
    made: list[Measured] = []
    measured, consolidate = quadratic.measured, quadratic.consolidate
    consolidating = False

    def watched(learner: Any, estimator: Estimator, trace: P.Params) -> P.Params:
        found = measured(learner, estimator, trace)
        copied = {name: value.clone() for name, value in found.items()}
        made.append(Measured(P.snapshot(learner.model), copied, consolidating))
        return found

    def watched_consolidate(method: Any, learner: Any) -> None:
        nonlocal consolidating
        consolidating = True
        consolidate(method, learner)
        consolidating = False

    monkeypatch.setattr(quadratic, "measured", watched)
    monkeypatch.setattr(quadratic, "consolidate", watched_consolidate)
    return made


# ---- scores -------------------------------------------------------------------------------------------


def scripted(learner: Learner, score: Callable[[Choice], float]) -> Learner:
    """Replace the scores of real trainings by a function of their hyper-parameters."""
    begin = learner.begin

    def begun(task: Task) -> AtHand:
        hand = begin(task)
        real = hand.trial

        def trial(task: Task, choice: Choice) -> StoredTrial:
            found = real(task, choice)
            found.score = score(choice)
            return found

        hand.trial = trial  # type: ignore[method-assign]
        return hand

    learner.begin = begun  # type: ignore[method-assign]
    return learner

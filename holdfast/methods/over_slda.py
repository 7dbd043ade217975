"""Training the trunk under a discriminant head: whether to move it, and how far."""

from __future__ import annotations

import math
from functools import partial

from holdfast.data.tasks import Task
from holdfast.methods import search
from holdfast.methods.base import LearnerView, Plan
from holdfast.methods.quadratic import Holds, lam_points, measured, stable_plan
from holdfast.methods.search import Choice, Decision, Trial

FAR = 2  # index in `lam_points`: λ = 100/(lr max α), at which features hardly move
STILL: Choice = {"lr": 0.0, "lam": math.inf}
"""Hyper-parameters that leave the trunk unchanged."""


def moves(method: Holds) -> bool:
    """Return whether the trunk is trained: not at λ = ∞, nor with a learning rate of 0."""
    return method.lr > 0 and math.isfinite(method.lam)


def can_train(task: Task) -> bool:
    """Return whether a task can be trained on: it has at least two labels and validation sentences."""
    return len(task.labels) > 1 and len(task.valid) > 0


def stand_in(method: Holds, learner: LearnerView) -> None:
    """Measure α on the current sentences if earlier tasks, which left the trunk unchanged, measured none.

    This needs an importance that uses no labels. The task's training runs then start from this state.
    """
    if learner.tasks_seen and not method.alpha:
        estimator = method.estimator()
        method.alpha = learner.once("importance", lambda: measured(learner, estimator, method.trace))
        method.tasks_pooled = learner.tasks_seen
        learner.start_here()


def stay_or_move(method: Holds, learner: LearnerView, task: Task, moving: Plan) -> Plan:
    """Decide whether the trunk moves, and search if it may.

    Leave the trunk unchanged if it scores at least thr times the best score, or if the task cannot be trained
    on; otherwise search. If λ is set, always search.
    """
    if "lam" in learner.fixed:
        stand_in(method, learner)
        return (yield from moving)
    still: Trial = yield STILL
    target = partial(search.target_of, learner, method.thr)
    if not can_train(task):
        return Decision(still, {"flags": ["nothing to train on"]})
    # No training can score more than 1: an unchanged trunk that reaches thr needs no comparison.
    if target(1.0).met(still):
        return Decision(still, {"flags": ["saturated"]})
    stand_in(method, learner)
    gold = yield from search.chosen_rate(learner, {"lam": 0.0})
    if target(gold.score).met(still):
        return Decision(still, {"gold": gold.score, "flags": ["saturated"]})
    return (yield from moving)


def hold_plan(method: Holds, learner: LearnerView, rest: Choice | None = None) -> Plan:
    """Search for the learning rate, then for λ downwards from the previous one, at most from `FAR`.

    λ_max is the grid point just above the accepted λ. If the first grid point is accepted, or none is, λ_max
    is the first grid point. Finding it costs no training.
    """
    if learner.settings.plan == "stable":
        return (yield from stable_plan(method, learner, {"lam": 0.0}, rest))[0]
    gold: Trial = yield from search.best_rate(learner.rates(), {"lam": 0.0})

    def at(lam: float) -> Choice:
        return gold.choice | {"lam": float(lam)} | (rest or {})

    if not learner.tasks_seen:
        return Decision(gold, {"gold": gold.score})
    if "lam" in learner.fixed:
        return Decision((yield at(method.lam)), {"gold": gold.score})
    still = yield STILL
    accept = search.keeps_enough(gold, search.share_to_keep(method.thr, learner.scenario))
    grid, strongest = search.lam_grid(learner.settings), lam_points(method.alpha, gold)[FAR]
    previous = min(method.lam, strongest) if method.tasks_pooled > 1 and method.lam > 0 else strongest
    found = yield from search.strongest(previous, at, accept, gold, known={strongest: still}, **grid)
    lam_max = previous if found.value in (0.0, previous) else search.rounded(found.value / grid["decay"])
    return Decision(found.trial, {"gold": gold.score, "lam_max": lam_max, "flags": list(found.flags)})

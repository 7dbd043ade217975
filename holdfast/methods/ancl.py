"""ANCL: an auxiliary network, trained on the new task alone, pulls against the old one (Kim et al. 2023)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.importance.estimators import Estimator, EstimatorName, estimator_named
from holdfast.importance.per_sample import Convention, Norm
from holdfast.methods import knobs, quadratic, search
from holdfast.methods.base import LearnerView, Plan, Training
from holdfast.methods.lwf import LwF, Teacher, distilling, lwf_plan
from holdfast.methods.quadratic import Quadratic
from holdfast.methods.search import Choice, Decision
from holdfast.steps.proximal import Pull

FIRST = 0.01  # first point of the λ_a grid
OFF: Choice = {"lam": 0.0, "lam_a": 0.0}


def lam_a() -> Any:
    """Declare λ_a, the strength of the pull towards the auxiliary network."""
    return setting(
        0.0, "strength of the pull towards the auxiliary network; 0: none", least=0, below=math.inf
    )


def auxiliary_plan(lam_a: float, learner: LearnerView, plain_plan: Plan) -> Plan:
    """Search for λ without the auxiliary network, then, unless it is set, upwards for a λ_a that gains."""
    plain = yield from plain_plan
    lam = plain.trial.choice["lam"]

    def at(value: float) -> Choice:
        return plain.trial.choice | {"lam_a": value}

    if learner.tasks_seen and "lam_a" in learner.fixed:
        return Decision((yield at(lam_a)), plain.notes)
    if lam == 0 or math.isinf(lam):
        return plain  # nothing holds the new task back, or nothing can be pulled
    growth, steps = learner.settings.lam_a_growth, learner.settings.lam_a_steps
    points = [search.rounded(FIRST * growth**j) for j in range(steps)]
    trial, gained = yield from search.first_gain(points, at, plain.trial, plain.notes["gold"])
    return Decision(trial, plain.notes | {"plain": plain.trial.score, "gained": gained})


@dataclass
class ANCLMAS(Quadratic):
    """ANCL over MAS: importance-weighted quadratic pulls towards the old and the auxiliary weights.

    λ, towards the old weights, serves stability; λ_a, towards the auxiliary network, serves plasticity.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})² + (λ_a/2) Σ_j α_aux,j (θ_j - θ_aux,j)²
    Paper: Kim, Noci, Orvieto, Hofmann, CVPR 2023
    Cost: E_aux·b + b to measure α_aux + E·b + b to measure the importance
    Two tasks: E1·b1 + b1 + E2_aux·b2 + b2 + E2·b2
    """

    strengths: ClassVar[tuple[str, ...]] = ("lam", "lam_a")

    lam_a: float = lam_a()
    importance: EstimatorName = knobs.importance()
    convention: Convention = knobs.convention()
    norm: Norm = knobs.norm()

    @override
    def estimator(self) -> Estimator:
        return estimator_named(self.importance, self.convention, self.norm)

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Pull towards θ_{k-1} and, if λ_a > 0, towards the look-ahead, whose importance is never pooled."""
        pulls = {"penalty": Pull(learner.start, self.alpha, self.lam)}
        if self.alpha and self.lam_a > 0:
            weights = quadratic.measured_ahead(learner, task, self.estimator(), self.lr)
            pulls["auxiliary"] = Pull(learner.look_ahead(task, self.lr).params, weights, self.lam_a)
        return quadratic.pulling(self, learner, pulls)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for λ, then for λ_a."""
        return auxiliary_plan(self.lam_a, learner, quadratic.hold_plan(self, learner, OFF))

    @override
    def shared_as(self) -> dict[str, Any] | None:
        """Share plain pulls: without the auxiliary network, and with no estimator that observes training."""
        pull = None if self.lam_a > 0 else quadratic.plain_pull(self)
        return None if pull is None else quadratic.shared_pull(self, ANCLMAS, pull)


@dataclass
class ANCLLWF(LwF):
    """ANCL over LwF: the old model teaches the old outputs, the auxiliary network those of the new task.

    Equation: L = L_task(θ) + λ KD_past(z, z_{k-1}) + λ_a KD_new(z, z_aux)
    Paper: Kim, Noci, Orvieto, Hofmann, CVPR 2023
    Cost: E_aux·b + E·(b + b + b), two more forward passes, one per teacher
    Two tasks: E1·b1 + E2_aux·b2 + E2·(b2 + b2)
    Extras: E2·b2, the second teacher
    """

    strengths: ClassVar[tuple[str, ...]] = ("lam", "lam_a")

    lam_a: float = lam_a()

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Learn from the old model and, if λ_a > 0, from the auxiliary network."""
        teachers = self.teachers(learner)
        if learner.past_rows and self.lam_a > 0:
            head = learner.model.head
            new = task.labels if learner.scenario == "class-incremental" else head.seen
            rows = self.taught(learner, [head.labels.index(label) for label in new])
            teachers["auxiliary"] = Teacher(learner.look_ahead(task, self.lr).params, rows, self.lam_a)
        return distilling(self.lr, learner, teachers, self.temperature)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for λ, then for λ_a."""
        return auxiliary_plan(self.lam_a, learner, lwf_plan(self, learner, OFF))

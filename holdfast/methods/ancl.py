"""ANCL: an auxiliary network, trained on the new task alone, pulls against the old one."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from holdfast.methods import search
from holdfast.methods.consolidating import AnyImportance
from holdfast.methods.lwf import LwF, Teacher
from holdfast.methods.quadratic import Quadratic
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.methods.strength import Strength
from holdfast.settings import setting
from holdfast.steps.proximal import Pull

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner

FIRST = 0.01  # of the λ_a grid


@dataclass
class Auxiliary(Strength):
    """Two pulls: λ towards the past for stability, λ_a towards the auxiliary network for plasticity.

    Paper: Kim, Noci, Orvieto, Hofmann, CVPR 2023
    """

    strengths: ClassVar[tuple[str, ...]] = ("lam", "lam_a")

    lam_a: float = setting(
        0.0, "strength of the pull towards the auxiliary network; 0 is none", least=0, below=math.inf
    )

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """λ without the auxiliary network, then λ_a from 0.01 up until the new task gains; else λ_a = 0."""
        plain = yield from super().search(learner, task)
        lam = plain.trial.choice["lam"]

        def at(lam_a: float) -> Choice:
            return plain.trial.choice | {"lam_a": lam_a}

        if learner.tasks_seen and "lam_a" in learner.fixed:
            return Decision((yield at(self.lam_a)), plain.notes)
        if lam == 0 or math.isinf(lam):
            return plain  # nothing holds the new task back, or nothing can be pulled
        growth, steps = learner.settings.lam_a_growth, learner.settings.lam_a_steps
        points = [search.rounded(FIRST * growth**j) for j in range(steps)]
        trial, gained = yield from search.first_gain(points, at, plain.trial, plain.notes["gold"])
        return Decision(trial, plain.notes | {"plain": plain.trial.score, "gained": gained})


@dataclass
class ANCLMAS(Auxiliary, AnyImportance, Quadratic):
    """ANCL over MAS: a quadratic pull to the old weights and one to the auxiliary ones, by importance.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})² + (λ_a/2) Σ_j α_aux,j (θ_j - θ_aux,j)²
    Cost: E_aux·b + b to measure α_aux + E·b + b to measure the importance
    Two tasks: E1·b1 + b1 + E2_aux·b2 + b2 + E2·b2
    """

    def trains_as(self) -> dict[str, Any] | None:
        """Without the auxiliary network it is plain MAS."""
        return None if self.lam_a > 0 else super().trains_as()

    def before_task(self, learner: Learner, task: Task) -> None:
        """The auxiliary network is the look-ahead; its importance is fresh, never pooled with the past's."""
        pull = None
        if self.alpha and self.lam_a > 0:
            weights = self.ahead(learner, task)
            pull = Pull(learner.look_ahead(task).params, weights, self.lam_a)
        super().before_task(learner, task)
        if pull is not None:
            self.pulls["auxiliary"] = pull


@dataclass
class ANCLLWF(Auxiliary, LwF):
    """ANCL over LwF: the old model teaches the old outputs, the auxiliary network those of the new task.

    Equation: L = L_task(θ) + λ KD_past(z, z_{k-1}) + λ_a KD_new(z, z_aux)
    Cost: E_aux·b + E·(b + b + b), two more forwards for the two teachers
    Two tasks: E1·b1 + E2_aux·b2 + E2·(b2 + b2)
    Extras: E2·b2, the second teacher
    """

    lam: float = setting(0.0, "strength of the distillation; 0 is none", least=0, below=math.inf)

    def before_task(self, learner: Learner, task: Task) -> None:
        """On shared labels both teach all of them."""
        aux = learner.look_ahead(task).params if learner.past_rows and self.lam_a > 0 else None
        super().before_task(learner, task)
        if aux is not None:
            head = learner.model.head
            new = task.labels if learner.scenario == "class-incremental" else head.seen
            rows = self.taught(learner, [head.labels.index(label) for label in new])
            self.teachers["auxiliary"] = Teacher(aux, rows, self.lam_a)

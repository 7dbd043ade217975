"""Adapt the encoder to the first task, then freeze it under discriminant analysis."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from holdfast.methods.closed_form import ClosedForm, Discriminant
from holdfast.methods.search import Choice, Decision, Trial, best_rate
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass
class FirstSLDA(Discriminant, ClosedForm):
    """Adapters learn the first task under a throw-away head; from then on only the sums grow.

    Equation: L = L_task(θ) on task 1, θ fixed afterwards; scores as in slda
    Paper: first-session adaptation (Panos et al., ICCV 2023) under streaming discriminant analysis
    Cost: b, one look at each sentence
    Two tasks: E1·b1 + b2
    Extras: b1 + b1, features before and after the first training
    Keeps: n_k, s_k and S_k of every label: d(d+3)/2 + 1 numbers each
    """

    lr: float = setting(3e-4, "learning rate of the first task", least=0)

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """The best learning rate on the first task, if it can be trained on; then nothing moves."""
        if learner.tasks_seen or len(task.labels) < 2 or not len(task.valid):
            return Decision((yield {"lr": 0.0}))
        return Decision((yield from best_rate(learner.rates(), {})))

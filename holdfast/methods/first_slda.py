"""Adapt the encoder to the first task, then freeze it under discriminant analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.heads import Head
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.methods import knobs
from holdfast.methods.base import LearnerView, Plan
from holdfast.methods.closed_form import ClosedForm
from holdfast.methods.over_slda import can_train
from holdfast.methods.search import Decision, chosen_rate
from holdfast.methods.slda import slda_head
from holdfast.models import Adapters
from holdfast.settings import Settings


@dataclass
class FirstSLDA(ClosedForm):
    """Adapters learn the first task under a throw-away head; afterwards only the sums grow.

    Equation: L = L_task(θ) on task 1, θ fixed afterwards; scores as in slda
    Paper: first-session adaptation (Panos et al., ICCV 2023) under streaming discriminant analysis
    Cost: b, one forward pass over each sentence
    Two tasks: E1·b1 + b2
    Extras: b1 + b1, features before and after the trunk moves
    Keeps: n_k, s_k and S_k of every label: d(d+3)/2 + 1 numbers each
    """

    adapters: ClassVar[Adapters] = "always"

    lr: float = setting(3e-4, "learning rate of the first task", least=0)
    shrinkage: float | None = knobs.shrinkage()
    weighting: Weighting = knobs.weighting()
    scatter: Scatter = knobs.scatter()

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return slda_head(self, width, seed)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate on the first task, if it can be trained on; otherwise move nothing."""
        if learner.tasks_seen or not can_train(task):
            return Decision((yield {"lr": 0.0}))
        return Decision((yield from chosen_rate(learner, {})))

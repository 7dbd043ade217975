"""The look-ahead merge: relative importance as a merging weight, without a second training run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.importance.estimators import Estimator, EstimatorName, estimator_named
from holdfast.importance.per_sample import Convention, Norm
from holdfast.maths import params as P
from holdfast.maths.equations import Pooling, merge
from holdfast.maths.params import Params
from holdfast.methods import knobs, quadratic, search
from holdfast.methods.base import REGULARISER, LearnerView, Method, Plan, StateKind, Training
from holdfast.methods.search import Decision


@dataclass
class LAMerge(Method):
    """Look ahead, then interpolate each weight: the past's share ρ of its old value, the rest of the new one.

    The search judges the look-ahead itself; the merge follows it and needs no further training.

    Equation: θ_k = θ_la + m ρ (θ_{k-1} - θ_la), ρ = α_{k-1}/(α_{k-1} + α_la + ε)
    Paper: the paper's ρ as the weight of Fisher merging (Matena, Raffel, NeurIPS 2022)
    Cost: E·b + b to measure α_la + b to measure the importance
    Two tasks: E1·b1 + b1 + E2·b2 + b2
    Extras: b2, the last consolidation
    Keeps: α, the pooled importance (one number per trainable weight)
    """

    state: ClassVar[dict[str, StateKind]] = quadratic.STATE
    strengths: ClassVar[tuple[str, ...]] = ("merge",)
    cannot: ClassVar[dict[str, str]] = REGULARISER

    merge: float = setting(
        1.0, "m, how much of the past's share is restored: from 0 (none) to 1 (all)", least=0, most=1
    )
    pooling: Pooling = knobs.pooling()
    keep: float = knobs.keep()
    importance: EstimatorName = knobs.importance()
    convention: Convention = knobs.convention()
    norm: Norm = knobs.norm()

    alpha: Params = field(default_factory=dict, init=False, repr=False)
    tasks_pooled: int = field(default=0, init=False, repr=False)
    trace: Params = field(default_factory=dict, init=False, repr=False)

    def estimator(self) -> Estimator:
        """Return the importance estimator."""
        return estimator_named(self.importance, self.convention, self.norm)

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Train with the task loss only, which the estimator may observe."""
        return quadratic.watched(self.lr, self.estimator())

    @override
    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Merge if there is a past and m > 0, then pool the importance of the resulting weights."""
        if self.alpha and self.merge:
            ahead = quadratic.measured(learner, self.estimator(), self.trace)
            there = P.snapshot(learner.model)
            P.restore(learner.model, merge(learner.start, there, self.alpha, ahead, self.merge))
        quadratic.consolidate(self, learner)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate; the chosen training run is the look-ahead."""
        gold = yield from search.chosen_rate(learner, {})
        return Decision(gold, {"gold": gold.score})

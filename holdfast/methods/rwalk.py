"""RWalk: Fisher information and path integral combined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.importance.estimators import RWalkEstimator
from holdfast.maths import params as P
from holdfast.maths.equations import Pooling, pool
from holdfast.maths.params import Params
from holdfast.methods import knobs, quadratic
from holdfast.methods.base import LearnerView, StateKind, Training
from holdfast.methods.quadratic import Quadratic
from holdfast.steps.proximal import Pull


@dataclass
class RWalk(Quadratic):
    """Riemannian Walk: a running Fisher plus the loss saved per unit of KL divergence, in equal parts.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})², α = F̂ + ŝ, s_j += max(0, ΔL_j / (½ F_j
        Δθ_j² + ε))
    Paper: Chaudhry et al., ECCV 2018
    Cost: E·b
    Two tasks: E1·b1 + E2·b2
    Extras: none
    Keeps: α, the running Fisher F and the pooled score s (three numbers per trainable weight)
    """

    state: ClassVar[dict[str, StateKind]] = quadratic.STATE | {"fisher": "zeros", "score": "zeros"}

    damping: float = setting(1e-3, "epsilon in the score's denominator", least=1e-12)
    interval: int = setting(10, "steps between two updates of Fisher and score", least=1)
    pooling: Pooling = knobs.pooling(
        "half", "how scores of several tasks are pooled; the Fisher keeps running"
    )

    fisher: Params = field(default_factory=dict, init=False, repr=False)
    score: Params = field(default_factory=dict, init=False, repr=False)

    @override
    def estimator(self) -> RWalkEstimator:
        return RWalkEstimator(self.damping, self.interval)

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Continue the running Fisher of the past; the score of a task starts at 0."""
        trace = {f"fisher/{name}": value for name, value in self.fisher.items()}
        return quadratic.pulling(self, learner, {"penalty": Pull(learner.start, self.alpha, self.lam)}, trace)

    @override
    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Pool the scores, then normalise: pooling normalised scores would weight tasks arbitrarily."""
        estimator = self.estimator()
        self.fisher, score = estimator.parts(learner.model, self.trace)
        past = self.score or P.zeros(score)
        self.score = pool(past, score, self.tasks_pooled, self.pooling, self.keep)
        self.alpha = estimator.combined(learner.model, self.fisher, self.score)
        self.tasks_pooled += 1
        self.trace = {}

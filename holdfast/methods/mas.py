"""MAS and its limit λ = ∞: plain importance-weighted regularisation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.errors import HoldfastError
from holdfast.fields import setting
from holdfast.importance.estimators import Estimator, MASEstimator
from holdfast.importance.per_sample import Convention, Norm
from holdfast.methods import knobs, search
from holdfast.methods.base import REGULARISER, LearnerView, Plan
from holdfast.methods.quadratic import Quadratic
from holdfast.methods.search import Decision


@dataclass
class MAS(Quadratic):
    """Memory Aware Synapses: hold each weight as strongly as the model's answers depend on it.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})², α_j = (1/n) Σ_i |∂‖z(x_i)‖² / ∂θ_j|
    Paper: Aljundi et al., ECCV 2018
    """

    convention: Convention = knobs.convention()
    norm: Norm = knobs.norm()

    @override
    def estimator(self) -> Estimator:
        return MASEstimator(self.convention, self.norm)


@dataclass
class Frozen(Quadratic):
    """MAS with λ = ∞: only weights the past never used, such as rows of new labels, are trained.

    Equation: L = L_task(θ) with θ_j = θ_{k-1,j} wherever α_j > 0
    Paper: the limit of MAS; a yardstick for every method that claims to balance
    """

    cannot: ClassVar[dict[str, str]] = REGULARISER | {
        "domain-incremental": "learns nothing after the first task once every weight is used"
    }

    lam: float = setting(math.inf, "fixed at infinity", least=0)
    convention: Convention = knobs.convention()
    norm: Norm = knobs.norm()

    @override
    def estimator(self) -> Estimator:
        return MASEstimator(self.convention, self.norm)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate without a penalty, then, if there is a past, train once with λ = ∞."""
        if "lam" in learner.fixed and math.isfinite(self.lam):
            raise HoldfastError(f"frozen is mas with lam=inf; for lam={self.lam:g} choose mas")
        gold = yield from search.chosen_rate(learner, {"lam": 0.0})
        if not self.alpha:
            return Decision(gold, {"gold": gold.score})
        held = yield {"lr": gold.choice["lr"], "lam": math.inf}
        return Decision(held, {"gold": gold.score})

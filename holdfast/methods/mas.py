"""MAS and its limit: plain importance-weighted regularisation."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.errors import HoldfastError
from holdfast.importance import estimators
from holdfast.importance.estimators import Estimator
from holdfast.importance.per_sample import Convention
from holdfast.methods import search
from holdfast.methods.quadratic import Quadratic
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass
class MAS(Quadratic):
    """Memory Aware Synapses: hold each weight as strongly as the model's answers have depended on it.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})², α_j = (1/n) Σ_i |∂‖z(x_i)‖² / ∂θ_j|
    Paper: Aljundi et al., ECCV 2018
    """

    convention: Convention = setting("per-sample", "per sample, or as in the authors' released code (lacl)")

    def estimator(self) -> Estimator:
        """Per sample, or by the released code's chunks."""
        return estimators.MAS(self.convention)


@dataclass
class Frozen(MAS):
    """MAS with λ = ∞: only weights the past never used, such as rows of new labels, are trained.

    Equation: L = L_task(θ) with θ_j = θ_{k-1,j} wherever α_j > 0
    Paper: the limit of MAS; a yardstick for every method that claims to balance
    """

    cannot: ClassVar[dict[str, str]] = MAS.cannot | {
        "domain-incremental": "learns nothing after the first task once every weight is used"
    }

    lam: float = setting(math.inf, "fixed at infinity", least=0)

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """The learning rate, found without a penalty as for every method; then one training with all held."""
        if "lam" in learner.fixed and math.isfinite(self.lam):
            raise HoldfastError(f"frozen is mas with lam=inf; for lam={self.lam:g} choose mas")
        gold = yield from search.best_rate(learner.rates(), {"lam": 0.0})
        if not self.alpha:
            return Decision(gold, {"gold": gold.score})
        held = yield {"lr": gold.choice["lr"], "lam": math.inf}
        return Decision(held, {"gold": gold.score})

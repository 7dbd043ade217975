"""MAS on an encoder under discriminant analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.heads import Head
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.importance.estimators import Estimator, MASEstimator
from holdfast.importance.per_sample import Convention, Norm
from holdfast.methods import knobs, over_slda
from holdfast.methods.base import LearnerView, Plan
from holdfast.methods.closed_form import COMPUTED
from holdfast.methods.quadratic import PullForm, Quadratic
from holdfast.methods.slda import slda_head
from holdfast.settings import Settings


@dataclass
class MASSLDA(Quadratic):
    """Adapters learn under a throw-away head and the MAS penalty; the head's sums follow the trunk.

    Importance is measured on the features, so no head is needed for it. When the trunk moves, a ridge map
    from old to new features, estimated on the current task's sentences, moves the stored sums too.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})², α_j = (1/n) Σ_i |∂‖z(x_i)‖² / ∂θ_j| of the
        features z; s_k <- s_k (I + T), S_k <- (I + T)ᵀ S_k (I + T), T = (Z_oᵀZ_o + rI)⁻¹ Z_oᵀ(Z_n - Z_o)
    Paper: MAS (Aljundi et al., ECCV 2018) with streaming discriminant analysis and drift compensation
    Cost: E·b + b to measure the importance + 2·b to follow the features
    Two tasks: E1·b1 + b1 + E2·b2
    Extras: 2·(b1 + b2), features before and after the trunk moves; b2, the last consolidation
    Keeps: α (one number per trainable weight); n_k, s_k and S_k of every label
    """

    cannot: ClassVar[dict[str, str]] = {}
    reduces_to_seq: ClassVar[bool | str] = COMPUTED

    # In the loss, Adam lets weights jitter at any strength; a proximal step holds them as λ grows.
    penalty: PullForm = knobs.penalty("proximal")
    convention: Convention = knobs.convention()
    norm: Norm = knobs.norm()
    shrinkage: float | None = knobs.shrinkage()
    weighting: Weighting = knobs.weighting()
    scatter: Scatter = knobs.scatter()

    @override
    def estimator(self) -> Estimator:
        return MASEstimator(self.convention, self.norm)

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return slda_head(self, width, seed)

    @property
    @override
    def moves(self) -> bool:
        return over_slda.moves(self)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Decide whether the trunk moves; if so, search for the learning rate and λ."""
        return over_slda.stay_or_move(self, learner, task, over_slda.hold_plan(self, learner))

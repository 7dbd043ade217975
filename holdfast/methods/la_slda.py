"""Look-Ahead on an encoder under discriminant analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.heads import Head
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.methods import knobs, over_slda
from holdfast.methods.base import LearnerView, Plan
from holdfast.methods.closed_form import COMPUTED
from holdfast.methods.la import LA
from holdfast.methods.quadratic import PullForm
from holdfast.methods.slda import slda_head
from holdfast.settings import Settings


@dataclass
class LASLDA(LA):
    """Look-Ahead under discriminant analysis: the trunk moves little, and the head's sums follow it.

    Adapters learn under a throw-away head and the Look-Ahead penalty; importance is measured on the features.
    When the trunk moves, a ridge map from old to new features, estimated on the current task's sentences,
    moves the stored sums too. Where the unchanged features are good enough, nothing moves.

    Equation: L = L_task(θ) + (λ/2) Σ_j α'_j (θ_j - θ_{k-1,j})², α' as in la, of the features z; s_k <- s_k
        (I + T), S_k <- (I + T)ᵀ S_k (I + T), T = (Z_oᵀZ_o + rI)⁻¹ Z_oᵀ(Z_n - Z_o)
    Paper: relative parameter importance (Suresh, Nkisi-Orji, Wiratunga) over streaming discriminant analysis
    Cost: E_la·b to look ahead + b to measure + E·b + b to measure the importance + 2·b to follow the features
    Two tasks: E1·b1 + b1 + E2_la·b2 + b2 + E2·b2
    Extras: 2·(b1 + b2), features before and after the trunk moves; b2, the last consolidation
    Keeps: α (one number per trainable weight); n_k, s_k and S_k of every label
    """

    cannot: ClassVar[dict[str, str]] = {}
    reduces_to_seq: ClassVar[bool | str] = COMPUTED

    penalty: PullForm = knobs.penalty("proximal")
    importance: Literal["mas"] = setting("mas", "only mas needs neither labels nor a trained head")
    shrinkage: float | None = knobs.shrinkage()
    weighting: Weighting = knobs.weighting()
    scatter: Scatter = knobs.scatter()

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return slda_head(self, width, seed)

    @property
    @override
    def moves(self) -> bool:
        return over_slda.moves(self)

    @override
    def plain_plan(self, learner: LearnerView) -> Plan:
        """Search for λ with the plain importance, as mas+slda does."""
        return over_slda.hold_plan(self, learner, {"down": None})

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Decide whether the trunk moves; if so, search as Look-Ahead does."""
        return over_slda.stay_or_move(self, learner, task, super().plan(learner, task))

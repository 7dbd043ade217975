"""SI: hold the weights whose path through training has lowered the loss."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from holdfast.fields import setting
from holdfast.importance.estimators import Estimator, SIEstimator
from holdfast.maths.equations import Pooling
from holdfast.methods import knobs
from holdfast.methods.quadratic import Quadratic


@dataclass
class SI(Quadratic):
    """Synaptic Intelligence: add up during training how much each weight lowers the loss.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})², α_j = Σ_k max(0, -Σ_t g_j Δθ_j) / ((θ_j -
        θ*_j)² + ξ)
    Paper: Zenke, Poole, Ganguli, ICML 2017
    Cost: E·b
    Two tasks: E1·b1 + E2·b2
    Extras: none
    """

    damping: float = setting(
        0.1, "xi, a squared distance that keeps the quotient finite where nothing moved", least=1e-12
    )
    pooling: Pooling = knobs.pooling("sum")

    @override
    def estimator(self) -> Estimator:
        return SIEstimator(self.damping)

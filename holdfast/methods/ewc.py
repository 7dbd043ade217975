"""EWC: hold each weight in proportion to its Fisher information."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from holdfast.fields import setting
from holdfast.importance.estimators import Estimator, FisherEstimator
from holdfast.importance.per_sample import FisherLabels
from holdfast.methods.quadratic import Quadratic


@dataclass
class EWC(Quadratic):
    """Elastic weight consolidation: hold each weight in proportion to the Fisher information.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})², α_j = (1/n) Σ_i E_y (∂ log p(y|x_i) /
        ∂θ_j)²
    Paper: Kirkpatrick et al., PNAS 2017
    Cost: E·b + b to measure the importance (C·b with labels=expected over C labels)
    Extras: b2, the last consolidation; with labels=expected C-1 more passes per measurement
    """

    labels: FisherLabels = setting(
        "true", "labels of the Fisher information: true, sample (from the model) or expected"
    )

    @override
    def estimator(self) -> Estimator:
        return FisherEstimator(self.labels)

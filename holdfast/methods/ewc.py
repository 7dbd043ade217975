"""EWC: the Fisher information says which weights to hold."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast.estimators import Estimator, Fisher
from holdfast.importance import FisherLabels
from holdfast.methods.quadratic import Quadratic
from holdfast.settings import setting


@dataclass
class EWC(Quadratic):
    """Elastic weight consolidation: hold each weight as the likelihood of the labels is curved there."""

    paper: ClassVar[str] = "Kirkpatrick et al., PNAS 2017"
    equation: ClassVar[str] = Quadratic.equation + ",  α_j = (1/n) Σ_i E_y (∂ log p(y|x_i) / ∂θ_j)²"
    cost: ClassVar[str] = Quadratic.cost + " (C·b with labels=expected over C labels)"
    extras: ClassVar[str] = Quadratic.extras + "; with labels=expected C-1 more passes per measurement"

    labels: FisherLabels = setting("true", "labels of the Fisher: true, sample(d from the model) or expected")

    def estimator(self) -> Estimator:
        """Squared per-sample gradients of the log-likelihood."""
        return Fisher(self.labels)

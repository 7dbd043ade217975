"""SI: a weight matters as much as its way through training has lowered the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from holdfast import estimators
from holdfast.equations import Pooling
from holdfast.estimators import Estimator
from holdfast.methods.quadratic import Quadratic
from holdfast.settings import setting


@dataclass
class SI(Quadratic):
    """Synaptic Intelligence: adds up during training what each weight did for the loss."""

    paper: ClassVar[str] = "Zenke, Poole, Ganguli, ICML 2017"
    equation: ClassVar[str] = Quadratic.equation + ",  α_j = Σ_k max(0, -Σ_t g_j Δθ_j) / ((θ_j - θ*_j)² + ξ)"
    cost: ClassVar[str] = "E·b"
    two_tasks: ClassVar[str] = "E1·b1 + E2·b2"
    extras: ClassVar[str] = "none"

    damping: float = setting(0.1, "xi, in squared distance: keeps the quotient finite where nothing moved")
    pooling: Pooling = setting("sum", "how importances of several tasks are pooled")

    def estimator(self) -> Estimator:
        """The path integral of the task loss."""
        return estimators.SI(self.damping)

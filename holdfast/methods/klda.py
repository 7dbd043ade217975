"""Kernel discriminant analysis on a frozen encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from holdfast.fields import setting
from holdfast.heads import Head, KLDAHead
from holdfast.heads.random_features import WIDTHS, Combine
from holdfast.methods.closed_form import ClosedForm
from holdfast.settings import Settings


@dataclass
class KLDA(ClosedForm):
    """Discriminant analysis on random Fourier features: slda's sums, over features of a kernel.

    The mean, spread and median distance of the features are fixed on the first task.

    Equation: slda on φ(z) = √(2/D) cos(Ωᵀz + b), Ω ~ N(0, 2γ), b ~ U[0, 2π], γ = c / median ‖z - z'‖²
    Paper: Momeni, Mazumder, Ke, Liu, AAAI 2025
    Keeps: n_k and s_k of every label, one S for all, Ω and b: D(D+1)/2 + (d+1)·D numbers and D + 1 per label
    """

    features: int = setting(2000, "D, number of random features", least=1, below=100_001)
    widths: tuple[float, ...] = setting(WIDTHS, "values of c, one kernel width each", above=0)
    combine: Combine = setting("best", "widths used: the best on validation data, or all, averaged")
    draws: int = setting(1, "draws of Ω whose probabilities are averaged", least=1)
    shrinkage: float | None = setting(
        None, "shrinkage of the covariance, in (0, 1]; none: chosen on validation data", least=1e-6, most=1
    )
    weighting: Literal["equal", "counts", "choose"] = setting(
        "equal", "weighting of classes of unequal size: equal, counts (a prior) or choose"
    )

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return KLDAHead(
            width,
            seed=seed,
            features=self.features,
            widths=self.widths,
            draws=self.draws,
            combine=self.combine,
            shrinkage=self.shrinkage,
            weighting=self.weighting,
        )

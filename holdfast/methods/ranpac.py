"""Ridge regression on random projections of a frozen encoder's features."""

from __future__ import annotations

import math
from dataclasses import dataclass

from typing_extensions import override

from holdfast.fields import setting
from holdfast.heads import Head, RanPACHead
from holdfast.methods.closed_form import ClosedForm
from holdfast.settings import Settings


@dataclass
class RanPAC(ClosedForm):
    """Ridge regression of the labels on random rectified projections, from running sums.

    Equation: score = W_outᵀ h, h = relu(Wᵀz), W_out = (G + ρI)⁻¹ C, G = Σ h hᵀ, C = Σ h yᵀ
    Paper: McDonnell et al., NeurIPS 2023
    Keeps: G, one column of C per label and W: M(M+1)/2 + d·M numbers and M + 1 per label
    """

    features: int = setting(2000, "M, number of random projections", least=1, below=100_001)
    ridge: float | None = setting(None, "ridge; none: chosen on validation data", least=1e-6, below=math.inf)

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return RanPACHead(width, seed=seed, features=self.features, ridge=self.ridge)

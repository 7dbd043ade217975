"""Regularised discriminant analysis on a frozen encoder."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from holdfast.fields import setting
from holdfast.heads import Head, RDAHead
from holdfast.methods import knobs
from holdfast.methods.closed_form import ClosedForm
from holdfast.settings import Settings


@dataclass
class RDA(ClosedForm):
    """Class means, each under a blend of its own and the shared covariance: for labels of different shapes.

    Shrinkage and blend are chosen by sentences left out of every task so far. A label can be removed exactly,
    and the sums can follow a moving encoder.

    Equation: score_k = -½ (z - μ_k)ᵀ A_k⁻¹ (z - μ_k) - ½ log det A_k,
        A_k = (1 - e) [o Σ_k + (1 - o) Σ] + e (trace Σ / d) I
    Paper: Friedman, JASA 1989, with exact sums per class
    Keeps: n_k, s_k and the scatter of every label: at most d(d+3)/2 + 2 numbers each, fewer up to d sentences
    """

    shrinkage: float | None = knobs.shrinkage()
    blend: float | None = setting(
        None, "o, share of a label's own covariance, in [0, 1]; none: chosen by evidence", least=0, most=1
    )

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return RDAHead(width, seed=seed, shrinkage=self.shrinkage, blend=self.blend)

"""Streaming discriminant analysis on a frozen encoder."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.methods.closed_form import Discriminant, FrozenTrunk
from holdfast.settings import setting


@dataclass
class SLDA(Discriminant, FrozenTrunk):
    """Class means under one shared covariance, kept as exact sums: any order, any batching, any removal.

    Equation: score_k = μ_kᵀ Σ_e⁻¹ z - ½ μ_kᵀ Σ_e⁻¹ μ_k, Σ_e = (1 - e) Σ + e (trace Σ / d) I
    Paper: Hayes, Kanan, CVPR workshops 2020, with exact sums per class
    Keeps: n_k, s_k and S_k of every label: d(d+3)/2 + 1 numbers each
    """

    lr: float = setting(0.0, "nothing is trained", least=0)

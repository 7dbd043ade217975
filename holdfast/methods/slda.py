"""Streaming discriminant analysis on a frozen encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from typing_extensions import override

from holdfast.heads import Head, SLDAHead
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.methods import knobs
from holdfast.methods.closed_form import ClosedForm
from holdfast.settings import Settings


class HasDiscriminant(Protocol):
    """A method with the hyper-parameters of a discriminant head."""

    shrinkage: float | None
    weighting: Weighting
    scatter: Scatter


def slda_head(method: HasDiscriminant, width: int, seed: int) -> Head:
    """Return a discriminant head with a method's hyper-parameters."""
    return SLDAHead(
        width, seed=seed, shrinkage=method.shrinkage, weighting=method.weighting, scatter=method.scatter
    )


@dataclass
class SLDA(ClosedForm):
    """Class means under one shared covariance, computed from sums that do not depend on order or batching.

    Equation: score_k = μ_kᵀ Σ_e⁻¹ z - ½ μ_kᵀ Σ_e⁻¹ μ_k, Σ_e = (1 - e) Σ + e (trace Σ / d) I
    Paper: Hayes, Kanan, CVPR workshops 2020, with exact sums per class
    Keeps: n_k, s_k and S_k of every label: d(d+3)/2 + 1 numbers each
    """

    shrinkage: float | None = knobs.shrinkage()
    weighting: Weighting = knobs.weighting()
    scatter: Scatter = knobs.scatter()

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return slda_head(self, width, seed)

"""Regularised discriminant analysis: each class has a blend of its own and the shared covariance."""

from __future__ import annotations

import itertools
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.heads.base import Taught
from holdfast.heads.closed import Option
from holdfast.heads.discriminant import SLDAHead
from holdfast.heads.sums import eigen, factored
from holdfast.maths.params import precise

STRENGTHS = (1e-2, 0.1, 0.3, 0.6, 0.9)  # of e
BLENDS = (0.0, 0.1, 0.3, 0.6)  # of o; 0 gives every class the shared covariance, as in slda


class Turned(NamedTuple):
    """The sums in the coordinates of the eigenvectors of Σ, in which every shrunk Σ is diagonal."""

    middle: Tensor
    """The mean of the class means: scores are computed around it."""
    axes: Tensor
    """The eigenvectors, in columns."""
    values: Tensor
    """The eigenvalues of Σ, none negative."""
    means: Tensor
    deviations: list[Tensor]
    """For each class a matrix R with RᵀR = Σ_k."""


class Solved(NamedTuple):
    """What the scores of one option are computed from, in coordinates w in which B is the identity."""

    middle: Tensor
    whiten: Tensor
    """w = (z - middle) whiten."""
    centres: Tensor
    """μ_k in the coordinates of w."""
    shapes: Tensor
    """T_k of every class, one below the other: A_k⁻¹ is I - T_kᵀ T_k in the coordinates of w."""
    at_centre: Tensor
    """T_k μ_k."""
    owner: Tensor
    """The class of each row of `shapes`."""
    constant: Tensor
    """-½ log det A_k."""


class RDAHead(SLDAHead):
    """Score_k = -½ (z - μ_k)ᵀ A_k⁻¹ (z - μ_k) - ½ log det A_k; probabilities as in SLDAHead.

    A_k = (1 - e) [o Σ_k + (1 - o) Σ] + e (trace Σ / d) I, where Σ_k is the covariance of n_k sentences and
    Σ = Σ_k (n_k / N) Σ_k. With o = 0 the answers are those of SLDAHead. A shrinkage e or blend o that is None
    is chosen after each task, by sentences left out of every task so far. A label can be removed exactly, and
    the sums can follow features that move. Distances of unknown inputs use the shared covariance alone.

    With B = (1 - e)(1 - o) Σ + e (trace Σ / d) I and Σ_k = R_kᵀ R_k, A_k⁻¹ is B⁻¹ minus a product of as many
    rows as R_k has (Woodbury), so that few sentences need no d × d matrix of their own.
    """

    kind: ClassVar[str] = "rda"
    chooses: ClassVar[str] = "shrinkage, blend"
    _working: torch.dtype = torch.float64
    """The precision in which options are solved."""
    _turned: Turned | None = None
    _ready: tuple[Option, torch.dtype, Solved] | None = None

    def __init__(
        self, width: int, *, seed: int = 0, shrinkage: float | None = None, blend: float | None = None
    ) -> None:
        if blend is not None and not 0 <= blend <= 1:
            raise HoldfastError(f"blend {blend} is not in [0, 1]; choose a value in this range")
        super().__init__(width, seed=seed, shrinkage=shrinkage)
        strengths = STRENGTHS if shrinkage is None else (shrinkage,)
        blends = BLENDS if blend is None else (blend,)
        # As in SLDAHead the shrinkage comes first, then the number of the weighting "equal".
        self.options = tuple((e, 0.0, o) for o, e in itertools.product(blends, strengths))
        self.evidence = torch.zeros(len(self.options), dtype=torch.float64)
        self.chosen = self.options[0]

    @override
    def forward(self, features: Tensor) -> Tensor:
        z = precise(self.lift(features))
        solved = Solved(*(part.to(z.device) for part in self._solution(z.dtype)))
        w = (z - solved.middle) @ solved.whiten
        scores = solved.constant - 0.5 * torch.cdist(w, solved.centres).square()
        if len(solved.shapes):
            nearer = 0.5 * (w @ solved.shapes.T - solved.at_centre).square()
            scores = scores.index_add(1, solved.owner, nearer)
        return scores

    @override
    def fitness(self, option: Option) -> float:
        """Prefer the smallest blend, then shrinkages as in SLDAHead."""
        return super().fitness(option) - 100 * option[2]

    @override
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        return super().settle(valid, learnt) | {"blend": self.chosen[2]}

    @override
    def _scores(self, data: Taught) -> Tensor:
        """Work in single precision, in half the time: the evidence counts correct answers."""
        self._working = torch.float32
        try:
            return super()._scores(data)
        finally:
            self._working = torch.float64
            self._turned = self._ready = None

    @override
    def changed(self) -> None:
        super().changed()
        self._turned = self._ready = None

    def _solution(self, dtype: torch.dtype) -> Solved:
        """Return what the scores of the chosen option are computed from, in this precision."""
        ready = self._ready
        if ready is None or ready[:2] != (self.chosen, dtype):
            parts = self._solve_option(self.chosen)
            solved = Solved(*(part.to(dtype) if part.is_floating_point() else part for part in parts))
            self._ready = ready = (self.chosen, dtype, solved)
        return ready[2]

    def _solve_option(self, option: Option) -> Solved:
        e, _, o = option
        turned = self._turn()
        own, identity = (1 - e) * o, e * turned.values.mean()
        spread = (1 - e) * (1 - o) * turned.values + identity  # B, a diagonal in these coordinates
        scale = spread.rsqrt()
        centres = turned.means * scale
        shapes, owner = [turned.means[:0]], []
        constant = -0.5 * spread.log().sum().repeat(len(centres))
        for row, deviations in enumerate(turned.deviations if own else []):
            scaled = own**0.5 * deviations * scale  # A_k is I + GᵀG in the coordinates of w
            factor = factored(torch.eye(len(scaled)).to(scaled) + scaled @ scaled.T)
            shapes.append(torch.linalg.solve_triangular(factor, scaled, upper=False))
            owner += [row] * len(scaled)
            constant[row] -= factor.diagonal().log().sum()
        every, owners = torch.cat(shapes), torch.tensor(owner, dtype=torch.long)
        at_centre = (every * centres[owners]).sum(1)
        return Solved(turned.middle, turned.axes * scale, centres, every, at_centre, owners, constant)

    def _turn(self) -> Turned:
        """Return the sums along the eigenvectors of Σ; computed once for all options."""
        if self._turned is None:
            counts, visible = self.past.counts, self.visible_rows()
            n, spare = float(counts.sum()), float(counts.sum()) - len(visible)
            covariance = self._spread(balanced=False) * (spare / n if spare > 0 else 1)  # over N, not N - K
            values, axes = eigen(covariance)
            means = self.past.means()
            middle = means[visible].mean(0) if visible else means.new_zeros(means.shape[1])
            values, turned = (x.to(self._working) for x in (values.clamp(min=0), (means - middle) @ axes))
            axes = axes.to(self._working)
            deviations = [
                self.past.deviations(row).to(axes) @ axes / counts[row].clamp(min=1).sqrt().to(axes)
                for row in range(len(counts))
            ]
            self._turned = Turned(middle, axes, values, turned, deviations)
        return self._turned

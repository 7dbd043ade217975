"""Streaming linear discriminant analysis: class means with one shared covariance, from sums alone."""

from __future__ import annotations

import itertools
import math
from typing import ClassVar, Literal

import numpy
import torch
from torch import Tensor
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.heads.base import Taught
from holdfast.heads.closed import Option, SumsHead
from holdfast.heads.sums import Scatter, factored
from holdfast.maths.params import Params

SHRINKAGES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 0.6, 0.9)  # the largest for very few sentences
WEIGHTINGS = ("equal", "covariance", "counts")
Weighting = Literal["equal", "covariance", "counts", "choose"]
LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)  # fractions of known sentences at which distances are recorded


def shrunk(covariance: Tensor, shrinkage: float) -> Tensor:
    """Return Σ_e = (1 - e) Σ + e (trace Σ / d) I."""
    found = (1 - shrinkage) * covariance
    found.diagonal().add_(shrinkage * covariance.trace() / len(covariance))
    return found


def oracle_shrinkage(covariance: Tensor, n: float) -> float:
    """Return the shrinkage for a covariance of n samples: the oracle approximation of Chen et al. (2010)."""
    d, trace = len(covariance), float(covariance.trace())
    squares = float(covariance.square().sum())
    spread = (n + 1 - 2 / d) * (squares - trace**2 / d)
    return min(1.0, ((1 - 2 / d) * squares + trace**2) / spread) if spread > 0 else 1.0


class SLDAHead(SumsHead):
    """Score_k = μ_kᵀ Σ_e⁻¹ z - ½ μ_kᵀ Σ_e⁻¹ μ_k; probabilities are the softmax of the scores / temperature.

    `weighting` handles classes of unequal size: "equal" uses no prior, "covariance" also gives each class
    the same weight in Σ, "counts" adds the prior log n_k/N. With `shrinkage` None or the weighting "choose",
    validation chooses after each task.
    """

    kind: ClassVar[str] = "slda"
    scale: float = 1.0
    """What a sentence vector is multiplied by in the sums."""
    _spreads: dict[bool, Tensor]
    _factored: tuple[Option, Tensor] | None = None
    _oracle: float | None = None

    def __init__(
        self,
        width: int,
        *,
        seed: int = 0,
        lifted: int = 0,
        shrinkage: float | None = None,
        weighting: Weighting = "equal",
        scatter: Scatter = "per-class",
    ) -> None:
        if shrinkage is not None and not 0 < shrinkage <= 1:
            raise HoldfastError(f"shrinkage {shrinkage} is not in (0, 1]; choose a value in this range")
        if weighting == "covariance" and scatter == "pooled":
            raise HoldfastError("weighting=covariance needs the sums of each class; use scatter=per-class")
        known = [name for name in WEIGHTINGS if name != "covariance" or scatter == "per-class"]
        options = itertools.product(
            SHRINKAGES if shrinkage is None else [shrinkage], known if weighting == "choose" else [weighting]
        )
        numbers = [(e, float(WEIGHTINGS.index(name))) for e, name in options]
        super().__init__(width, numbers, seed=seed, lifted=lifted, scatter=scatter)
        # Summed over tasks: n, and for each of LEVELS, n times the distance to the nearest class within which
        # that fraction of the n validation sentences lies.
        self.calibration = torch.zeros(1 + len(LEVELS), dtype=torch.float64)

    @override
    def solve(self, option: Option) -> tuple[Tensor, Tensor]:
        """Return W = Σ_e⁻¹ μ and b = -½ μᵀ W, plus the log prior for "counts"."""
        means, counts = self.past.means(), self.past.counts
        weight = torch.cholesky_solve(means.T, self._factor(option)).T
        bias = -0.5 * (weight * means).sum(1)
        if WEIGHTINGS[int(option[1])] == "counts":
            bias = bias + (counts.clamp(min=1) / counts.sum().clamp(min=1)).log()
        return weight, bias

    @override
    def fitness(self, option: Option) -> float:
        """Prefer shrinkages near the oracle approximation, then the earlier of WEIGHTINGS."""
        if self._oracle is None:
            spread = self._spread(balanced=False)
            self._oracle = oracle_shrinkage(spread, self.free)
        return -abs(math.log(option[0] / self._oracle)) - 1e-6 * option[1]

    @override
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """Choose an option, then record the distances of validation sentences from their nearest class."""
        super().settle(valid, learnt)
        if n := float(len(valid.labels)):
            found = self.distances(valid.features).quantile(torch.tensor(LEVELS, dtype=torch.float64))
            self.calibration = self.calibration + n * torch.cat([torch.ones(1).double(), found])
        return {"shrinkage": self.chosen[0]}

    @override
    def merge(self, other: SumsHead) -> None:
        assert isinstance(other, SLDAHead)
        self.calibration = self.calibration + other.calibration
        super().merge(other)

    @override
    def statistics(self) -> Params:
        return {**super().statistics(), "calibration": self.calibration}

    @override
    def load_statistics(self, statistics: Params) -> None:
        super().load_statistics(statistics)
        self.calibration = statistics["calibration"].cpu()

    # ---- what is known of the sentences themselves ---------------------------------------------------------

    @property
    def free(self) -> float:
        """Degrees of freedom of the covariance within labels."""
        return float(self.past.counts.sum()) - len(self.visible_rows())

    def spread_within(self) -> Tensor | None:
        """Return the covariance of sentence vectors around the means of their labels.

        None if no label has two sentences.
        """
        if self.free < 1:
            return None
        return self.past.within()[: self.width, : self.width] / (self.free * self.scale**2)

    # ---- unknown inputs -----------------------------------------------------------------------------------

    @property
    @override
    def calibrated(self) -> bool:
        return bool(self.calibration[0])

    @override
    def distances(self, features: Tensor) -> Tensor:
        """Return the squared Mahalanobis distance of each sentence to the nearest class."""
        factor, means = self._factor(self.chosen), self.past.means()[self.visible_rows()]
        white, centres = (
            torch.linalg.solve_triangular(factor, x.T, upper=False).T
            for x in (self.lift(features).double().cpu(), means)
        )
        return torch.cdist(white, centres).square().min(1).values

    @override
    def threshold(self, keep: float) -> float:
        if not LEVELS[0] <= keep <= LEVELS[-1]:
            raise HoldfastError(
                f"rejection can keep between {LEVELS[0]} and {LEVELS[-1]} of known inputs, not {keep}"
            )
        if not self.calibrated:
            raise HoldfastError("rejection needs validation sentences; learn more sentences first")
        distances = (self.calibration[1:] / self.calibration[0]).tolist()
        return float(numpy.interp(keep, LEVELS, distances))

    @override
    def changed(self) -> None:
        super().changed()
        self._spreads = {}
        self._factored = None
        self._oracle = None

    def _factor(self, option: Option) -> Tensor:
        """Return the Cholesky factor of Σ_e."""
        if self._factored is None or self._factored[0] != option:
            spread = self._spread(balanced=WEIGHTINGS[int(option[1])] == "covariance")
            self._factored = (option, factored(shrunk(spread, option[0])))
        return self._factored[1]

    def _spread(self, *, balanced: bool) -> Tensor:
        if balanced not in self._spreads:
            self._spreads[balanced] = self.past.covariance(balanced=balanced)
        return self._spreads[balanced]

"""Heads on random features of the sentence vector: kernel discriminant analysis and RanPAC."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.heads.base import Taught
from holdfast.heads.closed import ClosedFormHead, Option, SumsHead
from holdfast.heads.discriminant import SLDAHead, Weighting
from holdfast.heads.sums import factored
from holdfast.maths.params import Params, misfit

WIDTHS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)  # c of γ = c / median ‖z - z'‖²
RIDGES = tuple(10.0**j for j in range(-2, 9))
Combine = Literal["best", "average"]
PAIRS = 1000  # sentences for the median distance


def _drawn(seed: int, number: int) -> torch.Generator:
    return torch.Generator().manual_seed(1_000_003 * seed + number)


class FourierLDA(SLDAHead):
    """Discriminant analysis with an RBF kernel: φ(z) = √(2/D) cos(Ωᵀz + b), Ω ~ N(0, 2γ), b ~ U[0, 2π]."""

    def __init__(self, width: int, features: int, *, number: int, seed: int, **options: object) -> None:
        super().__init__(width, seed=seed, lifted=features, scatter="pooled", **options)  # type: ignore[arg-type]
        generator = _drawn(seed, number)
        self.omega = torch.randn(width, features, generator=generator)
        self.phase = 2 * math.pi * torch.rand(features, generator=generator)
        self.gamma = 0.0

    @override
    def lift(self, features: Tensor) -> Tensor:
        """Return φ(z)."""
        omega, phase = self.omega.to(features), self.phase.to(features)
        angles = math.sqrt(2 * self.gamma) * features @ omega + phase
        return math.sqrt(2 / len(phase)) * angles.cos()

    @override
    def statistics(self) -> Params:
        """Include what was drawn: another release of torch may draw other values."""
        gamma = torch.tensor([self.gamma], dtype=torch.float64)
        return {**super().statistics(), "omega": self.omega, "phase": self.phase, "gamma": gamma}

    @override
    def load_statistics(self, statistics: Params) -> None:
        super().load_statistics(statistics)
        self.omega, self.phase = statistics["omega"].cpu(), statistics["phase"].cpu()
        self.gamma = float(statistics["gamma"])


class KLDAHead(ClosedFormHead):
    """Kernel discriminant analysis on z-scored features, as an ensemble of kernel widths and draws.

    Mean, spread and median distance of the features are fixed on the first task. `combine` either keeps the
    width that is best on the first validation data, or averages the probabilities of all widths.
    """

    kind: ClassVar[str] = "klda"

    def __init__(
        self,
        width: int,
        *,
        seed: int = 0,
        features: int = 2000,
        widths: Sequence[float] = WIDTHS,
        draws: int = 1,
        combine: Combine = "best",
        shrinkage: float | None = None,
        weighting: Weighting = "equal",
    ) -> None:
        super().__init__(width, seed=seed)
        if not all(width_ > 0 for width_ in widths):
            raise HoldfastError(f"widths must all be above 0, not {tuple(widths)}")
        self.widths = tuple(widths)
        self.combine = combine
        self.draws = draws
        self.centre, self.spread = torch.zeros(0), torch.ones(0)
        self.members = nn.ModuleList(
            FourierLDA(width, features, number=draw, seed=seed, shrinkage=shrinkage, weighting=weighting)
            for _ in self.widths
            for draw in range(draws)
        )

    @override
    def forward(self, features: Tensor) -> Tensor:
        """Return the log of the members' mean probability."""
        z, visible = self._standard(features), self.visible_rows()
        each = torch.stack([member(z)[:, visible].log_softmax(1) for member in self.members])
        scores = features.new_full((len(features), len(self.labels)), -math.inf)
        scores[:, visible] = each.logsumexp(0) - math.log(len(self.members))
        return scores

    @override
    def visible_rows(self) -> list[int]:
        return self._each()[0].visible_rows()

    @property
    @override
    def bytes_per_label(self) -> int:
        return sum(member.bytes_per_label for member in self._each())

    @override
    def grow(self, classes: int) -> None:
        for member in self._each():
            member.labels = self.labels
            member.grow(classes)

    @override
    def become(self, labels: Sequence[str], seen: Sequence[str]) -> None:
        super().become(labels, seen)
        for member in self._each():
            member.become(labels, seen)
            member.labels = self.labels

    @override
    def misfit(self, statistics: Params) -> str:
        """Validation may have dropped members; before the first task there is no scale."""
        own, found = (
            {name: value for name, value in one.items() if "." not in name}
            for one in (self.statistics(), statistics)
        )
        if len(statistics.get("centre", ())) or statistics.get("0.counts", torch.ones(1)).any():
            own |= {"centre": torch.zeros(self.width), "spread": torch.zeros(self.width)}
        kept = {name.partition(".")[0] for name in statistics if "." in name}
        if not kept or kept != {str(number) for number in range(min(len(kept), len(self.members)))}:
            return "members"
        if wrong := misfit(own, found):
            return wrong
        for number, member in enumerate(self._each()[: len(kept)]):
            prefix = f"{number}."
            part = {n.removeprefix(prefix): v for n, v in statistics.items() if n.startswith(prefix)}
            if wrong := member.misfit(part) or ("gamma" if (part["gamma"] < 0).any() else ""):
                return prefix + wrong
        return ""

    @override
    def statistics(self) -> Params:
        """Return the head's own state and that of every member, prefixed by the member's number."""
        own = {"centre": self.centre, "spread": self.spread, "heat": self.heat}
        parts = {
            f"{number}.{name}": value
            for number, member in enumerate(self._each())
            for name, value in member.statistics().items()
        }
        return own | parts

    @override
    def load_statistics(self, statistics: Params) -> None:
        self.centre, self.spread, self.heat = (
            statistics[name].cpu() for name in ("centre", "spread", "heat")
        )
        kept = {name.partition(".")[0] for name in statistics if "." in name}
        # A trial may have dropped widths: restore the members, each with its own γ.
        while len(self.members) < len(kept):
            self.members.append(self._spare(len(self.members)))
        del self.members[len(kept) :]
        for number, member in enumerate(self._each()):
            prefix = f"{number}."
            own = {n.removeprefix(prefix): v for n, v in statistics.items() if n.startswith(prefix)}
            member.labels = self.labels
            member.load_statistics(own)

    def _spare(self, number: int) -> FourierLDA:
        first = self._each()[0]
        spare = FourierLDA(self.width, first.past.width, number=number, seed=self.seed)
        spare.options, spare.evidence = first.options, first.evidence
        return spare

    @override
    def take_in(self, data: Taught, sign: int = 1) -> None:
        """Standardise features, then add or remove them; the first call measures mean and spread."""
        if not len(self.centre):
            self._measure(data.features)
        for member in self._each():
            member.take_in(Taught(self._standard(data.features), data.labels), sign)

    @override
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """Let every member choose its option; with `combine="best"`, first keep only the best width.

        Only validation data is used: cross-validation would take minutes with thousands of features.
        """
        if self.combine == "best" and len(self.members) > self.draws and len(valid.labels):
            every, ranked = list(self.members), []
            for start in range(0, len(every), self.draws):
                self.members = nn.ModuleList(every[start : start + self.draws])
                ranked.append(((self.score(valid), self.likelihood(valid)), start))
            best = max(ranked, key=lambda pair: pair[0])[1]
            self.members = nn.ModuleList(every[best : best + self.draws])
        standard = Taught(self._standard(valid.features), valid.labels)
        notes = [member.settle(standard) for member in self._each()]
        return notes[0] | {"gamma": self._each()[0].gamma}

    @override
    def carry(self, move: Tensor) -> None:
        """Kernel features do not move linearly; no method trains the encoder under this head."""
        raise NotImplementedError("random features cannot be carried along")

    @override
    def drop(self, row: int) -> str:
        for member in self._each():
            member.drop(row)
        traces = ["the pooled sums of all labels", "the feature scale of the first task", self.decided]
        return " and ".join(filter(None, traces))

    @property
    @override
    def decided(self) -> str:
        chosen = "settings chosen on held-out sentences (kernel width, shrinkage, temperature, distances)"
        return chosen if self.heat.any() else ""

    @property
    @override
    def counts(self) -> Tensor:
        return self._each()[0].counts

    @override
    def total(self, row: int) -> Tensor:
        return self._each()[0].total(row)

    @override
    def fold(self, places: Sequence[int]) -> None:
        for member in self._each():
            member.fold(places)

    @override
    def size(self) -> float:
        return max(member.size() for member in self._each())

    @override
    def sound(self, size: float) -> bool:
        return all(member.sound(size) for member in self._each())

    @override
    def distances(self, features: Tensor) -> Tensor:
        """Return the members' mean distance."""
        z = self._standard(features)
        return torch.stack([member.distances(z) for member in self._each()]).mean(0)

    @override
    def threshold(self, keep: float) -> float:
        """Return the members' mean threshold."""
        return sum(member.threshold(keep) for member in self._each()) / len(self.members)

    def _each(self) -> list[FourierLDA]:
        return list(self.members)  # type: ignore[arg-type]

    def _standard(self, features: Tensor) -> Tensor:
        return (features - self.centre.to(features)) / self.spread.to(features)

    def _measure(self, features: Tensor) -> None:
        """Measure mean and spread on the first task; set γ from the median squared distance."""
        spread, self.centre = torch.std_mean(features.float().cpu(), dim=0, correction=0)
        self.spread = torch.where(spread > 0, spread, torch.ones_like(spread))
        some = torch.randperm(len(features), generator=_drawn(self.seed, -1))[:PAIRS]
        apart = torch.pdist(self._standard(features.float().cpu())[some]).square()
        median = float(apart.median()) if len(apart) else 0.0
        for number, member in enumerate(self._each()):
            member.gamma = self.widths[number // self.draws] / (median or 2.0 * self.width)


class RanPACHead(SumsHead):
    """Ridge regression on h = relu(Wᵀz) with random W: W_out = (G + ρI)⁻¹ C, G = Σ h hᵀ, C = Σ h yᵀ.

    The class sums of h are the columns of C, and the pooled scatter of h is G.
    """

    kind: ClassVar[str] = "ranpac"
    _gram: Tensor | None = None

    def __init__(
        self, width: int, *, seed: int = 0, features: int = 2000, ridge: float | None = None
    ) -> None:
        options = [(one,) for one in (RIDGES if ridge is None else (ridge,))]
        super().__init__(width, options, seed=seed, lifted=features, scatter="pooled")
        self.projection = torch.randn(width, features, generator=_drawn(seed, 0))

    @override
    def lift(self, features: Tensor) -> Tensor:
        """Return h."""
        return (features @ self.projection.to(features)).relu()

    @override
    def solve(self, option: Option) -> tuple[Tensor, Tensor]:
        if self._gram is None:
            self._gram = self.past.moments()
        ridge = option[0] * torch.eye(len(self._gram), dtype=self._gram.dtype)
        weight = torch.cholesky_solve(self.past.sums.T, factored(self._gram + ridge)).T
        return weight, weight.new_zeros(len(weight))

    @override
    def fitness(self, option: Option) -> float:
        """Prefer ridges near the mean eigenvalue of G: neither too strong nor without effect."""
        if self._gram is None:
            self._gram = self.past.moments()
        return -abs(math.log(option[0] / max(float(self._gram.trace()) / len(self._gram), 1e-12)))

    @override
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """Choose the ridge on validation data alone: each candidate takes a factorisation."""
        super().settle(valid)
        return {"ridge": self.chosen[0]}

    @override
    def carry(self, move: Tensor) -> None:
        """Rectified features do not move linearly; no method trains the encoder under this head."""
        raise NotImplementedError("random features cannot be carried along")

    @override
    def merge(self, other: SumsHead) -> None:
        assert isinstance(other, RanPACHead)
        if not torch.equal(self.projection, other.projection):
            raise HoldfastError("learners with other random features cannot be merged")
        super().merge(other)

    @override
    def statistics(self) -> Params:
        """Include the projection: another release of torch may draw other values."""
        return {**super().statistics(), "projection": self.projection}

    @override
    def load_statistics(self, statistics: Params) -> None:
        super().load_statistics(statistics)
        self.projection = statistics["projection"].cpu()

    @override
    def changed(self) -> None:
        super().changed()
        self._gram = None

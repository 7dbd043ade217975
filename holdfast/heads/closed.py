"""Heads that are computed from running statistics instead of trained."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from holdfast.heads.base import Head, Taught, Vectors
from holdfast.heads.drift import relative_drift, ridge_map
from holdfast.heads.linear import ProbeHead
from holdfast.heads.sums import ClassSums, Scatter
from holdfast.maths.params import Params, misfit

Option = tuple[float, ...]
PIECE = 4096  # sentences
UNLIKELY = -50.0  # lower limit of a log-likelihood, so that one hopeless sentence does not dominate
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
UNTOLD = 10.0  # the temperature without validation data


class ClosedFormHead(Head):
    """A head that computes its scores from running statistics; it has no trained weights."""

    trained: ClassVar[bool] = False
    has_past: ClassVar[bool] = False

    def __init__(self, width: int, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.width = width
        # For each temperature, the log-likelihood of validation sentences, summed over tasks.
        self.heat = torch.zeros(len(TEMPERATURES), dtype=torch.float64)

    @override
    def add(self, labels: Sequence[str]) -> Params:
        new = [label for label in dict.fromkeys(labels) if label not in self.labels]
        self.labels += new
        self.grow(len(new))
        return {}

    @override
    def become(self, labels: Sequence[str], seen: Sequence[str]) -> None:
        self.labels, self.seen = list(labels), list(seen)

    @override
    def probe(self, labels: Sequence[str]) -> Head:
        """Return a temporary linear head over these labels."""
        probe = ProbeHead(self.width, seed=self.seed)
        probe.add(labels)
        probe.teach(labels)
        return probe

    @override
    def answers(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the features themselves: there are no trained logits."""
        return features

    # ---- statistics ---------------------------------------------------------------------------------------

    @abstractmethod
    def grow(self, classes: int) -> None:
        """Add rows for new labels to the statistics."""

    @override
    def forget(self, label: str) -> str:
        row = self.labels.index(label)
        self.labels.remove(label)
        self.seen = [name for name in self.seen if name != label]
        return self.drop(row)

    @abstractmethod
    def drop(self, row: int) -> str:
        """Drop a row of the statistics; return what still carries traces of it, or an empty string."""

    # ---- corrections --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def counts(self) -> Tensor:
        """Number of sentences of each row."""

    @abstractmethod
    def total(self, row: int) -> Tensor:
        """Return the sum of the features of a row's sentences."""

    @abstractmethod
    def fold(self, places: Sequence[int]) -> None:
        """Move each row of the statistics to a new place; rows with the same place are added up."""

    @abstractmethod
    def size(self) -> float:
        """Return the sum of the squared norms of all features."""

    @abstractmethod
    def sound(self, size: float) -> bool:
        """Return whether the statistics can be those of real sentences, up to rounding errors of `size`."""

    @property
    @abstractmethod
    def decided(self) -> str:
        """What held-out sentences have decided, which no correction undoes; empty if they decided nothing."""

    def resettle(self) -> None:
        """Choose and calibrate again after a correction, from the statistics and the evidence so far."""
        self.settle(Taught(torch.zeros(0, self.width), []))

    # ---- learning -----------------------------------------------------------------------------------------

    @override
    def absorb(self, vectors: Vectors) -> dict[str, float]:
        """Adjust the statistics if the encoder moved, add the sentences, and choose settings left open."""
        new, notes = vectors.after("train"), {"drift": 0.0}
        if vectors.moved:
            old = vectors.before("train")
            notes["drift"] = relative_drift(old.features, new.features)
            self.carry(ridge_map(old.features, new.features))
        self.take_in(new)
        # Sentences that the encoder was trained on cannot serve for validation.
        valid = vectors.after("valid")
        notes |= self.settle(valid, None if vectors.moved else new)
        self.warm(valid)
        return notes

    def warm(self, valid: Taught) -> None:
        """Add the likelihood of validation sentences at each temperature."""
        if len(valid.labels):
            self.heat = self.heat + torch.tensor([self.likelihood(valid, t) for t in TEMPERATURES]).double()

    @override
    def absorb_valid(self, vectors: Vectors) -> None:
        self.take_in(vectors.after("valid"))

    @abstractmethod
    def take_in(self, data: Taught, sign: int = 1) -> None:
        """Add sentences to the statistics, or remove them (sign = -1)."""

    @abstractmethod
    def carry(self, move: Tensor) -> None:
        """Update the statistics after the features moved from z to z (I + move)."""

    @abstractmethod
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """Use validation data to choose settings left open; return the choices by name.

        `learnt` are the sentences just added, if they may serve for validation too (by cross-validation).
        """

    # ---- using it -----------------------------------------------------------------------------------------

    def rows(self, labels: Sequence[str]) -> Tensor:
        """Return the row of each label."""
        index = {label: row for row, label in enumerate(self.labels)}
        return torch.tensor([index[label] for label in labels], dtype=torch.long)

    @property
    @override
    def temperature(self) -> float:
        """The temperature with the highest likelihood of all validation sentences so far; 10 without any.

        In hundreds of dimensions distances are large: without it, most probabilities are close to 0 or 1.
        """
        return TEMPERATURES[int(self.heat.argmax())] if self.heat.any() else UNTOLD

    @torch.no_grad()
    def likelihood(self, data: Taught, temperature: float = 1.0) -> float:
        """Return the log-likelihood of the sentences whose labels are known.

        As in Platt scaling, each of the n labels is assumed correct only with probability (n+1)/(n+2): a few
        correct predictions do not prove that the head is never wrong.
        """
        visible = self.visible_rows()
        known = {self.labels[row]: column for column, row in enumerate(visible)}
        inside = [i for i, label in enumerate(data.labels) if label in known]
        gold = [known[data.labels[i]] for i in inside]
        if len(visible) < 2 or not inside:
            return 0.0
        likely = (self(data.features)[inside][:, visible].double() / temperature).log_softmax(1)
        likely = likely.clamp(min=UNLIKELY)
        doubt = 1 / (len(inside) + 2)
        right = likely[range(len(inside)), gold]
        wrong = (likely.sum(1) - right) / (len(visible) - 1)
        return float(((1 - doubt) * right + doubt * wrong).sum())

    def left_out(self, data: Taught, folds: int = 5) -> Iterator[Taught]:
        """Yield learnt sentences fold by fold, each removed from the statistics while it is in use."""
        statistics = self.statistics()
        for part in _folds(data, folds):
            self.take_in(part, sign=-1)
            yield part
            self.load_statistics(statistics)

    def cross_validated(self, data: Taught) -> tuple[float, float]:
        """Return the cross-validated macro-F1 on learnt sentences: the mean and its standard error."""
        scores = [self.score(part) if self.visible_rows() else 0.0 for part in self.left_out(data)]
        found = torch.tensor(scores, dtype=torch.float64)
        return float(found.mean()), float(found.std(correction=0)) / max(len(scores) - 1, 1) ** 0.5


class SumsHead(ClosedFormHead):
    """A head that is linear in (lifted) features, with weights solved from the class sums on demand."""

    chooses: ClassVar[str] = "shrinkage"
    """What `options` are options of."""
    _solved: tuple[Option, Tensor, Tensor] | None = None

    def __init__(
        self, width: int, options: Sequence[Option], *, seed: int = 0, lifted: int = 0, scatter: Scatter
    ) -> None:
        super().__init__(width, seed=seed)
        self.past = ClassSums(lifted or width, scatter)
        self.options = tuple(options)
        """The options to choose from on validation data."""
        # For each option, its score on n validation sentences times n, summed over tasks: a few sentences of
        # the latest task must not outweigh many earlier ones.
        self.evidence = torch.zeros(len(self.options), dtype=torch.float64)
        self.chosen = self.options[0]
        self.changed()

    def lift(self, features: Tensor) -> Tensor:
        """Return what the sums are computed from: the features, or a function of them."""
        return features

    @abstractmethod
    def solve(self, option: Option) -> tuple[Tensor, Tensor]:
        """Return the weight and bias of the scores, one row per label."""

    @override
    def forward(self, features: Tensor) -> Tensor:
        if self._solved is None or self._solved[0] != self.chosen:
            self._solved = (self.chosen, *self.solve(self.chosen))
        _, weight, bias = self._solved
        return functional.linear(self.lift(features), weight.to(features), bias.to(features))

    @override
    def visible_rows(self) -> list[int]:
        """Return the rows of labels with at least one sentence."""
        rows: list[int] = (self.past.counts > 0).nonzero().squeeze(1).tolist()
        return rows

    @property
    @override
    def bytes_per_label(self) -> int:
        return self.past.bytes_per_label

    @override
    def grow(self, classes: int) -> None:
        self.past.grow(classes)
        self.changed()

    @override
    def become(self, labels: Sequence[str], seen: Sequence[str]) -> None:
        super().become(labels, seen)
        self.past = ClassSums(self.past.width, self.past.scatter)
        self.grow(len(labels))

    @override
    def misfit(self, statistics: Params) -> str:
        """Other versions may have had other options, for which the evidence is dropped."""
        own = self.statistics()
        if "evidence" in statistics and statistics["evidence"].dim() == 1:
            own["evidence"] = statistics["evidence"]
        mine, rest = (
            {name: tensor for name, tensor in tensors.items() if name not in self.past.names}
            for tensors in (own, statistics)
        )
        if wrong := self.past.misfit(statistics) or misfit(mine, rest):
            return wrong
        return "counts" if (statistics["counts"] < 0).any() else ""

    @override
    def statistics(self) -> Params:
        """Return the sums, the chosen option, and the evidence for options and temperatures."""
        chosen = torch.tensor(self.chosen, dtype=torch.float64)
        return {**self.past.state(), "chosen": chosen, "evidence": self.evidence, "heat": self.heat}

    @override
    def load_statistics(self, statistics: Params) -> None:
        self.past.load(statistics)
        self.heat = statistics["heat"].cpu()
        self.chosen = tuple(statistics["chosen"].tolist())
        if statistics["evidence"].shape == self.evidence.shape:  # otherwise the options have changed
            self.evidence = statistics["evidence"].cpu()
        if self.chosen not in self.options:
            self.chosen = self.options[0]
        self.changed()

    @override
    def take_in(self, data: Taught, sign: int = 1) -> None:
        """Add to the sums, or subtract, in pieces: lifted features take a lot of memory."""
        rows = self.rows(data.labels)
        for start in range(0, len(rows), PIECE):
            piece = slice(start, start + PIECE)
            self.past.add(self.lift(data.features[piece]), rows[piece], sign)
        self.changed()

    @override
    def left_out(self, data: Taught, folds: int = 5) -> Iterator[Taught]:
        """Yield learnt sentences fold by fold, while the sums do without them."""
        past = self.past
        for part in _folds(data, folds):
            rows = self.rows(part.labels)
            for start in range(0, len(rows), PIECE):
                piece = slice(start, start + PIECE)
                self.past = self.past.left_out(self.lift(part.features[piece]), rows[piece])
            self.changed()
            try:
                yield part
            finally:
                self.past = past
                self.changed()

    @override
    def carry(self, move: Tensor) -> None:
        self.past.carry(move)
        self.changed()

    @override
    def drop(self, row: int) -> str:
        """Remove a label's sums. Pooled sums keep its share, and choices made on validation data stay."""
        self.past.remove(row)
        self.changed()
        pooled = "the pooled sums of all labels" if self.past.scatter == "pooled" else ""
        return " and ".join(filter(None, [pooled, self.decided]))

    @property
    @override
    def decided(self) -> str:
        if not (self.heat.any() or self.evidence.any() or self.calibrated):
            return ""
        chosen = f"{self.chooses}, " if len(self.options) > 1 else ""
        return f"settings chosen on held-out sentences ({chosen}temperature, distances of --reject)"

    @property
    @override
    def counts(self) -> Tensor:
        return self.past.counts

    @override
    def total(self, row: int) -> Tensor:
        return self.past.sums[row]

    @override
    def fold(self, places: Sequence[int]) -> None:
        folded = ClassSums(self.past.width, self.past.scatter)
        folded.grow(max(places, default=-1) + 1)
        folded.merge(self.past, places)
        self.past = folded
        self.changed()

    @override
    def size(self) -> float:
        return self.past.size()

    @override
    def sound(self, size: float) -> bool:
        return self.past.sound(size)

    def merge(self, other: SumsHead) -> None:
        """Add the statistics of another head of this kind, learnt on the same frozen features."""
        self.add(other.labels)
        self.teach(other.seen)
        self.past.merge(other.past, self.rows(other.labels).tolist())
        self.heat = self.heat + other.heat
        if self.options == other.options:
            self.evidence = self.evidence + other.evidence
        self.changed()
        self.resettle()

    @property
    def calibrated(self) -> bool:
        """Whether validation sentences have calibrated `threshold`."""
        return False

    @abstractmethod
    def fitness(self, option: Option) -> float:
        """Return how well an option fits the sums alone, to break ties in the validation score."""

    @override
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """Choose the option with the best score over all tasks so far; `fitness` breaks ties."""
        if len(self.options) > 1:
            evidence = self.evidence + self._scores(valid)
            if learnt is not None:
                for part in self.left_out(learnt):
                    evidence = evidence + self._scores(part)
            self.evidence = evidence
            ranked = zip(evidence.tolist(), map(self.fitness, self.options), self.options, strict=True)
            self.chosen = max(ranked, key=lambda one: (round(one[0], 9), one[1]))[2]
        return {}

    def _scores(self, data: Taught) -> Tensor:
        """Return n times the score of each option on these n sentences."""
        found = torch.zeros(len(self.options), dtype=torch.float64)
        if len(data.labels) and self.visible_rows():
            for number, option in enumerate(self.options):
                self.chosen = option
                found[number] = len(data.labels) * self.score(data)
        return found

    def changed(self) -> None:
        """Invalidate the cached solution."""
        self._solved = None


def _folds(data: Taught, folds: int) -> Iterator[Taught]:
    """Yield parts of the sentences over which their labels are spread."""
    order = sorted(range(len(data.labels)), key=lambda i: data.labels[i])
    for fold in range(min(folds, len(order))):
        places = order[fold::folds]
        yield Taught(data.features[places], [data.labels[i] for i in places])

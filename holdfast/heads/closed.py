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
from holdfast.maths.params import Params

Option = tuple[float, ...]
PIECE = 4096  # sentences
UNLIKELY = -50.0  # the least a log-likelihood counts: one hopeless sentence shall not decide
TEMPERATURES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500)
UNTOLD = 10.0  # the temperature where no validation data has told one


class ClosedFormHead(Head):
    """Scores per label from running statistics; nothing in it is trained, and nothing is overwritten."""

    trained: ClassVar[bool] = False
    has_past: ClassVar[bool] = False

    def __init__(self, width: int, *, seed: int = 0) -> None:
        super().__init__(seed)
        self.width = width
        # Per temperature, the log-likelihood of validation sentences, over all tasks.
        self.heat = torch.zeros(len(TEMPERATURES), dtype=torch.float64)

    @override
    def add(self, labels: Sequence[str]) -> Params:
        """Make room for new labels. No weights come with them."""
        new = [label for label in dict.fromkeys(labels) if label not in self.labels]
        self.labels += new
        self.grow(len(new))
        return {}

    @override
    def become(self, labels: Sequence[str], seen: Sequence[str]) -> None:
        """Take these labels, in this order, for statistics that are about to be loaded."""
        self.labels, self.seen = list(labels), list(seen)

    @override
    def probe(self, labels: Sequence[str]) -> Head:
        """Return a throw-away linear head over these labels."""
        probe = ProbeHead(self.width, seed=self.seed)
        probe.add(labels)
        probe.teach(labels)
        return probe

    @override
    def answers(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the features themselves: importance without a trained head."""
        return features

    # ---- what it remembers --------------------------------------------------------------------------------

    @abstractmethod
    def grow(self, classes: int) -> None:
        """Make room for new labels in the statistics."""

    @override
    def forget(self, label: str) -> str:
        """Drop a label; what still carries traces of it, or nothing if nothing does."""
        row = self.labels.index(label)
        self.labels.remove(label)
        self.seen = [name for name in self.seen if name != label]
        return self.drop(row)

    @abstractmethod
    def drop(self, row: int) -> str:
        """Drop a row of the statistics; what still carries traces of it."""

    # ---- learning -----------------------------------------------------------------------------------------

    @override
    def absorb(self, vectors: Vectors) -> dict[str, float]:
        """Carry the past along with the encoder, add the new sums, choose what is left open."""
        new, notes = vectors.after("train"), {"drift": 0.0}
        if vectors.moved:
            old = vectors.before("train")
            notes["drift"] = relative_drift(old.features, new.features)
            self.carry(ridge_map(old.features, new.features))
        self.take_in(new)
        # An encoder that was trained on these sentences says nothing by them about others.
        valid = vectors.after("valid")
        notes |= self.settle(valid, None if vectors.moved else new)
        if len(valid.labels):
            self.heat = self.heat + torch.tensor([self.likelihood(valid, t) for t in TEMPERATURES]).double()
        return notes

    @override
    def absorb_valid(self, vectors: Vectors) -> None:
        """Add the validation sentences to the sums."""
        self.take_in(vectors.after("valid"))

    @abstractmethod
    def take_in(self, data: Taught, sign: int = 1) -> None:
        """Add sentences to the statistics, or take them out again (sign = -1)."""

    @abstractmethod
    def carry(self, move: Tensor) -> None:
        """The features moved by z -> z (I + move): the statistics follow."""

    @abstractmethod
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """Choose what is left open on validation data; what was chosen, by name.

        `learnt` are sentences it has just taken in that may serve for validation too, each left out in turn.
        """

    # ---- using it -----------------------------------------------------------------------------------------

    def rows(self, labels: Sequence[str]) -> Tensor:
        """The row of each label."""
        index = {label: row for row, label in enumerate(self.labels)}
        return torch.tensor([index[label] for label in labels], dtype=torch.long)

    @property
    @override
    def temperature(self) -> float:
        """What scores are divided by to be probabilities: as likely as validation sentences have been so far.

        In hundreds of dimensions distances are large, and the softmax of the bare scores is always 0 or 1.
        """
        return TEMPERATURES[int(self.heat.argmax())] if self.heat.any() else UNTOLD

    @torch.no_grad()
    def likelihood(self, data: Taught, temperature: float = 1.0) -> float:
        """The log-likelihood of labels it knows.

        As in Platt's scaling the n sentences are taken for right with probability (n+1)/(n+2) only: a few
        that are all right are no proof that none will ever be wrong.
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
        """Sentences it has learnt, fold by fold; while one is looked at, the head has not learnt it."""
        statistics = self.statistics()
        order = sorted(range(len(data.labels)), key=lambda i: data.labels[i])  # every fold has every label
        for fold in range(min(folds, len(order))):
            places = order[fold::folds]
            part = Taught(data.features[places], [data.labels[i] for i in places])
            self.take_in(part, sign=-1)
            yield part
            self.load_statistics(statistics)

    def cross_validated(self, data: Taught) -> tuple[float, float]:
        """Macro-F1 of sentences it has learnt, each left out in turn; the mean of the folds and its error."""
        scores = [self.score(part) if self.visible_rows() else 0.0 for part in self.left_out(data)]
        found = torch.tensor(scores, dtype=torch.float64)
        return float(found.mean()), float(found.std(correction=0)) / max(len(scores) - 1, 1) ** 0.5


class SumsHead(ClosedFormHead):
    """A head that is linear in (lifted) features, its weights solved from class sums whenever they change."""

    _solved: tuple[Option, Tensor, Tensor] | None = None

    def __init__(
        self, width: int, options: Sequence[Option], *, seed: int = 0, lifted: int = 0, scatter: Scatter
    ) -> None:
        super().__init__(width, seed=seed)
        self.past = ClassSums(lifted or width, scatter)
        self.options = tuple(options)
        """What validation data may choose from."""
        # Per option, n times its validation score, over all tasks: eleven sentences of the latest task do not
        # overrule what hundreds have said before.
        self.evidence = torch.zeros(len(self.options), dtype=torch.float64)
        self.chosen = self.options[0]
        self.changed()

    def lift(self, features: Tensor) -> Tensor:
        """What the sums are taken of: the features, or a function of them."""
        return features

    @abstractmethod
    def solve(self, option: Option) -> tuple[Tensor, Tensor]:
        """Weight and bias of the scores, one row per label."""

    @override
    def forward(self, features: Tensor) -> Tensor:
        """The scores of every row."""
        if self._solved is None or self._solved[0] != self.chosen:
            self._solved = (self.chosen, *self.solve(self.chosen))
        _, weight, bias = self._solved
        return functional.linear(self.lift(features), weight.to(features), bias.to(features))

    @override
    def visible_rows(self) -> list[int]:
        """The labels that have a sentence."""
        rows: list[int] = (self.past.counts > 0).nonzero().squeeze(1).tolist()
        return rows

    @override
    def grow(self, classes: int) -> None:
        """Zeros for new labels."""
        self.past.grow(classes)
        self.changed()

    @override
    def statistics(self) -> Params:
        """The sums, what was chosen, and the evidence it rests on."""
        chosen = torch.tensor(self.chosen, dtype=torch.float64)
        return {**self.past.state(), "chosen": chosen, "evidence": self.evidence, "heat": self.heat}

    @override
    def load_statistics(self, statistics: Params) -> None:
        """Put the sums back."""
        self.past.load(statistics)
        self.heat = statistics["heat"].cpu()
        self.chosen = tuple(statistics["chosen"].tolist())
        if statistics["evidence"].shape == self.evidence.shape:  # otherwise other options are open now
            self.evidence = statistics["evidence"].cpu()
        if self.chosen not in self.options:
            self.chosen = self.options[0]
        self.changed()

    @override
    def take_in(self, data: Taught, sign: int = 1) -> None:
        """Add to the sums, or subtract; piece by piece, for lifted features take much room."""
        rows = self.rows(data.labels)
        for start in range(0, len(rows), PIECE):
            piece = slice(start, start + PIECE)
            self.past.add(self.lift(data.features[piece]), rows[piece], sign)
        self.changed()

    @override
    def carry(self, move: Tensor) -> None:
        """The sums follow the features."""
        self.past.carry(move)
        self.changed()

    @override
    def drop(self, row: int) -> str:
        """Take a label's sums out; pooled sums keep its share, and numbers that were chosen stay chosen."""
        self.past.remove(row)
        self.changed()
        if self.past.scatter == "pooled":
            return "the pooled sums of all labels"
        chosen = "shrinkage, " if len(self.options) > 1 else ""
        told = f"what held-out sentences have set ({chosen}temperature, distances of --reject)"
        return told if self.heat.any() or self.evidence.any() or self.calibrated else ""

    @property
    def calibrated(self) -> bool:
        """Whether validation sentences have shown how far known inputs lie."""
        return False

    @abstractmethod
    def fitness(self, option: Option) -> float:
        """How well an option suits the sums by themselves, where validation scores cannot tell."""

    @override
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """The option with the best score over all tasks so far; ties go to the fittest."""
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
        """n times the score of every option."""
        found = torch.zeros(len(self.options), dtype=torch.float64)
        if len(data.labels) and self.visible_rows():
            for number, option in enumerate(self.options):
                self.chosen = option
                found[number] = len(data.labels) * self.score(data)
        return found

    def changed(self) -> None:
        """The sums are others now: whatever was solved from them is not theirs."""
        self._solved = None

"""Say whether texts have changed since a learner was taught: by label and as a whole, from sums only.

A text counts for each label with the label's probability, so that the mean of a label's texts agrees with
the taught mean as long as the probabilities are right and nothing has changed. The whole is compared with the
taught means in the proportions of the traffic: another mix of labels alone does not move it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from typing_extensions import override

from holdfast.data.tasks import check_texts
from holdfast.errors import HoldfastError
from holdfast.heads import SLDAHead
from holdfast.learning.learner import Learner
from holdfast.maths.shift import at_least, holm, mixing, shift, spread
from holdfast.runtime.answers import chunks

REJECT = 0.95  # share of known sentences that are not unknown
SURE = 0.01  # adjusted p-value below which a difference is no accident
NOTABLE = 0.5  # standard deviations from which the difference of a label matters
NOTABLE_UNKNOWN = 2.0  # times as many unknown texts as expected
FEW = 5.0  # texts of a label from which its features are compared


@dataclass(frozen=True)
class LabelDrift:
    """What has changed in the texts of one label."""

    label: str
    taught: int
    """Sentences that were taught."""
    texts: float
    """Texts of the traffic: the sum of the label's probabilities."""
    taught_share: float
    share: float
    shift: float | None
    """Distance of the means beyond chance, in standard deviations of taught sentences; None for few texts."""
    p: float | None
    """Probability of such a distance without any change, adjusted for the number of labels (Holm)."""

    @property
    def changed(self) -> bool:
        """Whether the features of the label differ by half a standard deviation or more, not by accident.

        Sentences of one label vary less freely than those of all labels on average, by which p is judged.
        Without the first condition, one label in seven would be named where nothing has changed.
        """
        return self.p is not None and self.shift is not None and self.p < SURE and self.shift >= NOTABLE


@dataclass(frozen=True)
class Drift:
    """What has changed since the learner was taught."""

    texts: int
    shift: float
    """Distance of all texts from what was taught beyond chance, in the traffic's mix of labels."""
    p: float
    notable: float
    """Distance from which `shift` matters: half a standard deviation over √ of the number of labels.

    Labels of which few texts have come count less.
    """
    unknown: float | None
    """Share of unknown texts; None if the learner cannot tell."""
    unknown_expected: float
    unknown_p: float | None
    mix: float
    """Half the sum of the differences between the labels' shares in the traffic and in what was taught."""
    mix_chance: float
    """The same if only chance makes them differ."""
    labels: list[LabelDrift]

    @property
    def changed(self) -> bool:
        """Whether features or the share of unknown texts have changed; the mix of labels does not count."""
        return self.moved or self.stranger or any(one.changed for one in self.labels)

    @property
    def moved(self) -> bool:
        """Whether the features of all texts have moved by `notable` or more, not by accident."""
        return self.p < SURE and self.shift >= self.notable

    @property
    def stranger(self) -> bool:
        """Whether at least twice as many texts are unknown as expected, not by accident."""
        if self.unknown is None or self.unknown_p is None:
            return False
        return self.unknown_p < SURE and self.unknown >= NOTABLE_UNKNOWN * self.unknown_expected

    @override
    def __repr__(self) -> str:
        what = "changed" if self.changed else "as taught"
        return f"Drift({self.texts} texts, {len(self.labels)} labels, shift {self.shift:.2f}, {what})"


@dataclass
class Traffic:
    """Sums over texts that a learner has seen: no text, and no vector of a single one."""

    learner: Learner
    texts: int = 0
    far: int | None = 0
    """Number of unknown texts; None if the learner cannot tell."""
    weights: Tensor = field(init=False)
    squares: Tensor = field(init=False)
    sums: Tensor = field(init=False)
    """Per label, the sums of the probabilities w, of w² and of w z."""
    total: Tensor = field(init=False)

    @override
    def __repr__(self) -> str:
        return f"Traffic({self.learner!r}, {self.texts} texts)"

    def __post_init__(self) -> None:
        head, classes = _sums_of(self.learner), len(self.learner.classes_)
        self._labels = self.learner.classes_
        self.weights, self.squares = torch.zeros(2, classes, dtype=torch.float64)
        self.sums = torch.zeros(classes, head.width, dtype=torch.float64)
        self.total = torch.zeros(head.width, dtype=torch.float64)

    def add(self, texts: Sequence[str]) -> None:
        """Add texts to the sums."""
        check_texts(texts)
        self._check_labels()
        for piece in chunks(texts):
            features = self.learner.model.embed(piece)
            likely = self.learner.probabilities(features)
            z = features.double()
            self.weights = self.weights + likely.sum(0)
            self.squares = self.squares + likely.square().sum(0)
            self.sums = self.sums + likely.T @ z
            self.total = self.total + z.sum(0)
            self.texts += len(piece)
            if self.far is not None:
                self.far = self._far(self.far, features)

    def _check_labels(self) -> None:
        if self.learner.classes_ != self._labels:
            raise HoldfastError("the learner's labels have changed since these sums were begun; start again")

    def _far(self, before: int, features: Tensor) -> int | None:
        try:
            return before + sum(self.learner.far_out(features, REJECT))
        except HoldfastError:  # not calibrated yet
            return None

    def drift(self) -> Drift:
        """Compare the sums with those of what was taught."""
        self._check_labels()
        head, rows = _sums_of(self.learner), torch.tensor(self.learner.model.head.visible_rows())
        if not self.texts:
            raise HoldfastError("there are no texts to compare; give some lines")
        counts = head.past.counts[rows]
        means = head.past.means()[rows, : head.width] / head.scale
        within = head.spread_within()
        if within is None:
            raise HoldfastError(
                "every label was taught one sentence: how they vary is not known; teach some more"
            )
        own = spread(within, head.free)
        shares, taught = self.weights / self.texts, counts / counts.sum()
        apart = self.total / self.texts - shares @ means
        found = shift(apart, 1 / self.texts + float((shares.square() / counts).sum()), own)
        enough = [k for k, weight in enumerate(self.weights.tolist()) if weight >= FEW]
        each = {
            k: shift(
                self.sums[k] / self.weights[k] - means[k],
                float(self.squares[k] / self.weights[k].square() + 1 / counts[k]),
                own,
            )
            for k in enough
        }
        adjusted = dict(zip(enough, holm([each[k].p for k in enough]), strict=True))
        distance, chance = mixing(taught.tolist(), shares.tolist(), self.texts)
        return Drift(
            texts=self.texts,
            shift=found.size,
            p=found.p,
            notable=NOTABLE * float(shares.square().sum().sqrt()),
            unknown=None if self.far is None else self.far / self.texts,
            unknown_expected=1 - REJECT,
            unknown_p=None if self.far is None else at_least(self.far, self.texts, 1 - REJECT),
            mix=distance,
            mix_chance=chance,
            labels=[
                LabelDrift(
                    label=label,
                    taught=int(counts[k]),
                    texts=float(self.weights[k]),
                    taught_share=float(taught[k]),
                    share=float(shares[k]),
                    shift=each[k].size if k in each else None,
                    p=adjusted.get(k),
                )
                for k, label in enumerate(self._labels)
            ],
        )


def drift(learner: Learner, texts: Sequence[str]) -> Drift:
    """Compare texts with what a learner was taught; only sums of them are made.

    To compare texts as they arrive, `add` them to a `holdfast.everyday.drift.Traffic`.

    >>> from holdfast import Learner, drift
    >>> learner = Learner.create("encoder")
    >>> _ = learner.learn(["wake me at six", "wake me at nine"], ["alarm", "alarm"])
    >>> _ = learner.learn(["play some jazz", "play a song"], ["music", "music"])
    >>> found = drift(learner, ["wake me at nine", "play some jazz"])
    >>> found.changed, [one.label for one in found.labels]
    (False, ['alarm', 'music'])
    """
    traffic = Traffic(learner)
    traffic.add(texts)
    return traffic.drift()


def _sums_of(learner: Learner) -> SLDAHead:
    """Return the head of a learner, whose sums say what was taught."""
    head = learner.model.head
    if not learner.classes_:
        raise HoldfastError("this learner has no labels yet; teach it some")
    if not isinstance(head, SLDAHead):
        raise HoldfastError(
            "drift compares class sums, which this head does not keep; use the method auto, slda or rda"
        )
    return head

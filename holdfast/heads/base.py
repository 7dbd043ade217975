"""The base class of heads, which turn a sentence vector into one score per label."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.errors import HoldfastError
from holdfast.maths.metrics import macro_f1
from holdfast.maths.params import Params, misfit

NO_DISTANCE = "this head cannot detect unknown inputs; use the method auto, slda, rda or klda"
NO_SETS = "this head has no prediction sets; use the method auto"


class Taught(NamedTuple):
    """Sentence vectors and their labels."""

    features: Tensor
    labels: Sequence[str]


class Vectors(Protocol):
    """The sentence vectors of the current task, computed on request."""

    @property
    def moved(self) -> bool:
        """Whether training has changed the encoder."""

    def before(self, part: Literal["train", "valid"]) -> Taught:
        """Return the vectors of a split with the weights at the start of the task."""

    def after(self, part: Literal["train", "valid"]) -> Taught:
        """Return the vectors of a split with the current weights."""


class Head(nn.Module, ABC):
    """Base class of heads. Rows are keyed by label strings; there is no task id."""

    trained: ClassVar[bool]
    """Whether the head has weights trained by gradient; otherwise it absorbs vectors."""
    kind: ClassVar[str]
    """Name of the section that holds the head's statistics in a saved state."""
    has_past: ClassVar[bool]
    """Whether training sees rows of earlier tasks, which the loss must balance against."""

    blocks: int = 1
    """Number of layers whose vectors are concatenated in a sentence vector; set where the model is built."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.labels: list[str] = []
        self.seen: list[str] = []
        self.seed = seed

    # ---- labels -----------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def bytes_per_label(self) -> int:
        """Memory that one more label takes."""

    @abstractmethod
    def add(self, labels: Sequence[str]) -> Params:
        """Add rows for new labels; return the initial values of new weights, by name."""

    @abstractmethod
    def become(self, labels: Sequence[str], seen: Sequence[str]) -> None:
        """Reset the head to these labels, before weights or statistics are loaded."""

    def teach(self, labels: Sequence[str]) -> None:
        """Mark labels as seen."""
        self.seen += [label for label in dict.fromkeys(labels) if label not in self.seen]

    @abstractmethod
    def forget(self, label: str) -> str:
        """Drop a label; return what still carries traces of it, or an empty string."""

    @abstractmethod
    def visible_rows(self) -> list[int]:
        """Return the rows that importance and prediction look at."""

    # ---- learning ---------------------------------------------------------------------------------------

    def admit(self, task: Task) -> None:
        """Raise an error if this head cannot learn the task, before anything is trained."""
        if not len(task.train):
            raise HoldfastError(f"task {task.name!r} has no training sentences; add some")

    @abstractmethod
    def probe(self, labels: Sequence[str]) -> Head:
        """Return the head that the encoder is trained with: this one, or a temporary one."""

    def absorb(self, vectors: Vectors) -> dict[str, float]:
        """Learn the task's training sentences without gradients; return values for the record."""
        return {}

    def absorb_valid(self, vectors: Vectors) -> None:
        """Learn the validation sentences too, once they are no longer needed for validation."""

    def statistics(self) -> Params:
        """Return the state apart from the weights, by name."""
        return {}

    def load_statistics(self, statistics: Params) -> None:
        """Restore the result of `statistics`."""

    def misfit(self, statistics: Params) -> str:
        """Return the name of the first entry that cannot belong to a head with these labels, or ''."""
        return misfit(self.statistics(), statistics)

    # ---- use --------------------------------------------------------------------------------------------

    @abstractmethod
    @override
    def forward(self, features: Tensor) -> Tensor:
        """Return one score per row and sentence."""

    @abstractmethod
    def answers(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the outputs whose sensitivity to the weights is measured by MAS."""

    @property
    @abstractmethod
    def temperature(self) -> float:
        """The number that scores are divided by to become probabilities."""

    @torch.no_grad()
    def predict(self, features: Tensor, rows: Sequence[int] | None = None) -> list[str]:
        """Return the best label for each sentence vector, among `rows` or all visible rows."""
        visible = self.visible_rows() if rows is None else list(rows)
        best = self(features)[:, visible].argmax(1)
        return [self.labels[visible[i]] for i in best.tolist()]

    def score(self, data: Taught, rows: Sequence[int] | None = None) -> float:
        """Return the macro-F1 on sentence vectors; NaN if there are none."""
        return macro_f1(data.labels, self.predict(data.features, rows)) if len(data.labels) else math.nan

    def distances(self, features: Tensor) -> Tensor:
        """Return the distance of each sentence from the nearest known class."""
        raise HoldfastError(NO_DISTANCE)

    def threshold(self, keep: float) -> float:
        """Return the distance within which about a share `keep` of known sentences lies."""
        raise HoldfastError(NO_DISTANCE)

    def set_threshold(self, cover: float) -> float:
        """Return the set score up to which labels belong to sets that cover a share of known sentences."""
        raise HoldfastError(NO_SETS)

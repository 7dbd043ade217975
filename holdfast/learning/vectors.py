"""Sentence vectors of the task at hand. Those with its start weights are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from holdfast.data.tasks import Split, Task
from holdfast.heads import Taught
from holdfast.learning.passes import Ledger
from holdfast.learning.snapshot import Snapshot
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.models import Network

SplitName = Literal["train", "valid"]


class TaskVectors:
    """Vectors of the training and validation sentences, before and after training changes the encoder.

    Passes over the training sentences are counted, in batches; those over the validation sentences are not.
    """

    def __init__(
        self,
        task: Task,
        model: Network,
        ledger: Ledger,
        *,
        batches: int,
        on_batch: Callable[[int, int], None],
    ) -> None:
        self.splits: dict[SplitName, Split] = {"train": task.train, "valid": task.valid}
        self.model = model
        self.ledger = ledger
        self.batches = batches
        """Number of batches in one pass over the training sentences."""
        self.on_batch = on_batch
        self.start: Snapshot
        """The model that the training runs of the task start from."""
        self.moved = False
        self._after: dict[SplitName, Taught] = {}
        self._valid: Params = {}

    def before(self, part: SplitName) -> Taught:
        """Return the vectors of a split with the weights of the task's start."""
        return Taught(self._at_start(part), self.splits[part].labels)

    def after(self, part: SplitName) -> Taught:
        """Return the vectors of a split with the current weights."""
        if not self.moved:
            return self.before(part)
        if part not in self._after:
            if part == "train":
                self.ledger.count("moved features", forward=self.batches, backward=0)
            self._after[part] = Taught(self._embed(part), self.splits[part].labels)
        return self._after[part]

    def move(self, moved: bool) -> None:
        """Set whether the weights differ from those of the start, and drop the vectors of earlier weights."""
        self.moved = moved
        self._after = {}

    def _at_start(self, part: SplitName) -> Tensor:
        def compute() -> Params:
            if part == "train":
                self.ledger.count("features", forward=self.batches, backward=0)
            own, adapted = P.snapshot(self.model), self.model.adapted
            P.restore(self.model, self.start.weights)
            self.model.adapted = bool(self.start.memory.get("adapted", adapted))
            try:
                return {part: self._embed(part)}
            finally:
                P.restore(self.model, own)
                self.model.adapted = adapted

        if part == "train":
            return self.ledger.once("features", compute)[part]
        if part not in self._valid:
            self._valid = compute()
        return self._valid[part]

    def _embed(self, part: SplitName) -> Tensor:
        return self.model.embed(self.splits[part].texts, on_batch=self.on_batch)

"""Sentence vectors of the current task. Those with its start weights are computed once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from holdfast.data.tasks import Task
from holdfast.heads import Taught

Embed = Callable[[tuple[str, ...]], Tensor]
AtStart = Callable[[Literal["train", "valid"]], Tensor]


class TaskVectors:
    """Vectors of the training and validation sentences, before and after training changes the encoder."""

    def __init__(self, task: Task, embed: Embed, at_start: AtStart, on_pass: Callable[[], None]):
        self.splits = {"train": task.train, "valid": task.valid}
        self.embed = embed
        self.at_start = at_start
        self.on_pass = on_pass
        """Called when the training sentences are embedded again; validation passes are not counted."""
        self.moved = False
        self._after: dict[str, Taught] = {}

    def before(self, part: Literal["train", "valid"]) -> Taught:
        """Return the vectors of a split with the weights of the task's start."""
        return Taught(self.at_start(part), self.splits[part].labels)

    def after(self, part: Literal["train", "valid"]) -> Taught:
        """Return the vectors of a split with the current weights."""
        if not self.moved:
            return self.before(part)
        if part not in self._after:
            if part == "train":
                self.on_pass()
            self._after[part] = Taught(self.embed(self.splits[part].texts), self.splits[part].labels)
        return self._after[part]

    def move(self, moved: bool) -> None:
        """Set whether the weights differ from those of the start, and drop the vectors of earlier weights."""
        self.moved = moved
        self._after = {}

"""What a learner does with sentence vectors, where its head is computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.heads import ClosedFormHead, Taught

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner
    from holdfast.maths.equations import Params


class Features:
    """The sentence vectors of the task at hand; at its start they are computed once for all trials."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner

    def at(self, task: Task, *, moved: bool = False) -> dict[str, Taught]:
        """Vectors of both splits: at the task's start, or where the weights have gone."""
        learner, parts = self.learner, {"train": task.train, "valid": task.valid}

        def compute() -> Params:
            # As everywhere, validation is not counted.
            learner.count("moved features" if moved else "features", forward=learner.batches, backward=0)
            return {
                part: learner.model.embed(split.texts, on_batch=learner.progress.looked)
                for part, split in parts.items()
            }

        found = compute() if moved else learner.once("features", compute, each_rate=False)
        return {part: Taught(found[part], split.labels) for part, split in parts.items()}

    def take_in(self, task: Task) -> tuple[float, dict[str, float]]:
        """Let the head take the task in with the weights as they are; its validation score, what it noted."""
        old = self.at(task)
        new = self.at(task, moved=True) if self.learner.method.moves else old
        notes = self.head.learn(old["train"], new["train"], new["valid"])
        return self.head.score(new["valid"]), notes

    def take_in_valid(self, task: Task, *, moved: bool) -> None:
        """Validation sentences that have served are learnt as well, as the trunk sees them now."""
        features = self.learner.model.embed(task.valid.texts) if moved else self.at(task)["valid"].features
        self.head.take_in(Taught(features, task.valid.labels))

    def cross_validated(self, task: Task) -> tuple[float, float]:
        """The head's score on the task's training sentences, left out in turn, and its error."""
        return self.head.cross_validated(self.at(task)["train"])

    def score_of(self, labels: Sequence[str], task: Task, *, moved: bool = False) -> float | None:
        """The score on those validation sentences that have one of these labels, if there are any."""
        places = [i for i, label in enumerate(task.valid.labels) if label in labels]
        if not places:
            return None
        texts = [task.valid.texts[i] for i in places]
        features = self.learner.model.embed(texts) if moved else self.at(task)["valid"].features[places]
        return self.head.score(Taught(features, [task.valid.labels[i] for i in places]))

    @property
    def head(self) -> ClosedFormHead:
        """The closed-form head."""
        head = self.learner.model.head
        assert isinstance(head, ClosedFormHead)
        return head

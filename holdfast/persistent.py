"""A learner that outlives its process: made by name, saved, loaded; labels taken out, learners merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from holdfast.errors import HoldfastError
from holdfast.heads import SLDAHead
from holdfast.method import Method
from holdfast.predictor import Predictor
from holdfast.settings import unknown

if TYPE_CHECKING:
    from holdfast.learner import Learner


class Persistent(Predictor):
    """What a learner can do between lessons."""

    def start_over(self) -> None:
        """Forget what belongs to a task that was not finished."""

    def _features(self) -> tuple[Any, ...]:
        """What sentence vectors depend on, and how their sums are kept."""
        settings, head = self.origin.settings, self.model.head
        kept = head.past.scatter if isinstance(head, SLDAHead) else None
        return self.origin.fingerprint, settings["vector"], settings["max_length"], kept

    method: Method
    origin: Any
    history: list[dict[str, Any]]
    tasks_seen: int

    @classmethod
    def create(cls, model: str = "minilm", method: str = "auto", **options: Any) -> Self:
        """A new learner by the names of its encoder and method; `options` are hyper-parameters."""
        from holdfast import state

        return cast(Self, state.create(model, method, **options))

    @classmethod
    def load(cls, path: str | Path, generation: int | None = None) -> Self:
        """The learner saved in a directory."""
        from holdfast import state

        return cast(Self, state.load(Path(path), generation))

    def save(self, path: str | Path) -> int:
        """Commit what was learnt as the directory's next generation, whole or not at all; its number."""
        from holdfast import state

        return state.save(cast("Learner", self), Path(path))

    def forget(self, label: str) -> str:
        """Drop a label; what still carries traces of it, or nothing if nothing does."""
        if label not in self.classes_:
            raise HoldfastError(unknown(label, self.classes_, "label"))
        row = self.model.head.labels.index(label)
        traces = [self.model.head.forget(label)]
        if self.model.head.trained:
            self.method.shrink(row)
        elif self.model.adapted:
            traces.append("the encoder, which has learnt while it was known")
        if getattr(self.method, "alpha", None):
            traces.append("the importances of the weights")
        self.start_over()
        return ", ".join(filter(None, traces))

    def merge(self, other: Persistent) -> None:
        """Add what another learner has learnt with slda on the same frozen encoder, exactly."""
        mine, its = self.model.head, other.model.head
        same = self._features() == other._features()
        if not (isinstance(mine, SLDAHead) and isinstance(its, SLDAHead) and same) or any(
            one.model.adapted for one in (self, other)
        ):
            raise HoldfastError("only learners with slda on the same frozen encoder can be merged")
        mine.merge(its)
        self.start_over()
        self.history += other.history
        self.tasks_seen += other.tasks_seen

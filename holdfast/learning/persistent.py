"""A learner that outlives its process: made by name, saved, loaded; labels taken out, learners merged."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from accelerate import Accelerator

from holdfast.errors import HoldfastError
from holdfast.heads import SLDAHead
from holdfast.learning.lesson import split_state
from holdfast.learning.predictor import Predictor
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods.base import Method
from holdfast.settings import unknown

if TYPE_CHECKING:
    from holdfast.learning.learner import Learner


class Persistent(Predictor):
    """What a learner can do between lessons."""

    method: Method
    accelerator: Accelerator
    origin: Any
    history: list[dict[str, Any]]
    tasks_seen: int

    def start_over(self) -> None:
        """Forget what belongs to a task that was not finished."""

    def _sums_of(self) -> tuple[Any, ...] | None:
        """Which vectors its sums are of, and how they are kept; None if it knows more than sums."""
        head = self.model.head
        more = self.model.adapted or getattr(self.method, "alpha", None)
        if self.origin is None or not isinstance(head, SLDAHead) or more:
            return None
        settings = self.origin.settings
        return self.origin.fingerprint, settings["vector"], settings["max_length"], head.past.scatter

    @classmethod
    def create(cls, model: str = "minilm", method: str = "auto", **options: Any) -> Self:
        """A new learner by the names of its encoder and method; `options` are hyper-parameters."""
        from holdfast.learning import directory as state

        return cast(Self, state.create(model, method, **options))

    @classmethod
    def load(cls, path: str | Path, generation: int | None = None) -> Self:
        """The learner saved in a directory."""
        from holdfast.learning import directory as state

        return cast(Self, state.load(Path(path), generation))

    def save(self, path: str | Path) -> int:
        """Commit what was learnt as the directory's next generation, whole or not at all; its number."""
        from holdfast.learning import directory as state

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
        mine, its, summed = self.model.head, other.model.head, self._sums_of()
        if summed is None or summed != other._sums_of():
            raise HoldfastError("only learners with slda on the same frozen encoder can be merged")
        cast(SLDAHead, mine).merge(cast(SLDAHead, its))
        self.start_over()
        self.history += other.history
        self.tasks_seen += other.tasks_seen

    # ---- state ------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Params], dict[str, Any]]:
        """Everything that survives: weights, the method's state, labels, hyper-parameters."""
        tensors, numbers = split_state(self.method.state_dict())
        meta = {
            "labels": list(self.model.head.labels),
            "seen": list(self.model.head.seen),
            "tasks_seen": self.tasks_seen,
            "history": list(self.history),
            "hparams": self.method.hparams(),
            "numbers": numbers,
        }
        return self._tensors() | tensors, meta

    def _tensors(self) -> dict[str, Params]:
        """The model's own: weights, and what a closed-form head remembers."""
        memory = self.model.memory()
        return {"weights": P.snapshot(self.model)} | ({"memory": memory} if memory else {})

    def load_state(self, tensors: dict[str, Params], meta: dict[str, Any]) -> None:
        """Put back what `state` gave."""
        self.model.head.become(meta["labels"], meta["seen"])
        self.model.to(self.accelerator.device)
        device = self.accelerator.device
        moved = {group: {n: t.to(device) for n, t in params.items()} for group, params in tensors.items()}
        self.method.set(**meta["hparams"])
        self._become(moved.pop("weights"), moved | meta["numbers"], moved.pop("memory", {}))
        self.tasks_seen, self.history = meta["tasks_seen"], list(meta.get("history", ()))

    def _become(self, weights: Params, state: dict[str, Any], memory: Params) -> None:
        P.restore(self.model, weights)
        self.method.load_state_dict(state)
        self.model.load_memory(memory)

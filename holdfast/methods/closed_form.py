"""What methods share whose head is computed, not trained: see `heads/` and docs/method.md."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.errors import HoldfastError
from holdfast.heads import Head, SLDAHead
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.methods.base import Method
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.models import Adapters
from holdfast.settings import Settings, setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass
class ClosedForm(Method):
    """Under a head made of sums: whatever it learns, nothing in the head is overwritten.

    Cost: b, one look at each sentence
    Two tasks: b1 + b2
    Extras: none
    """

    retains: ClassVar[bool] = True
    cannot: ClassVar[dict[str, str]] = {
        "domain-incremental": "the encoder stays as it came: where its features do not tell labels apart, no "
        "amount of data helps; la+slda lets it learn"
    }
    reduces_to_seq: ClassVar[bool | str] = "its head is computed, not trained"

    def admit(self, task: Task) -> None:
        """Sums can take in anything: one label, one example, no validation sentences."""
        if not len(task.train):
            raise HoldfastError(f"task {task.name!r} has no training sentences")

    @property
    def moves(self) -> bool:
        """At a learning rate of 0 nothing does."""
        return self.lr > 0


@dataclass
class FrozenTrunk(ClosedForm):
    """A frozen encoder: one look at each sentence, nothing is trained, nothing can be forgotten."""

    adapters: ClassVar[Adapters] = "never"

    lr: float = setting(0.0, "nothing is trained", least=0)

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """Nothing to search for: the head chooses what it leaves open by itself."""
        return Decision((yield {"lr": 0.0}))


@dataclass
class Discriminant(Method):
    """The fields of streaming discriminant analysis."""

    shrinkage: float | None = setting(
        None, "of the covariance, in (0, 1]; none: chosen on validation data", least=1e-6, most=1
    )
    weighting: Weighting = setting(
        "equal", "classes of unequal size: equal, covariance (in Σ too), counts (a prior) or choose"
    )
    scatter: Scatter = setting("per-class", "one S per class (exact removal), or one for all (less disk)")

    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        """Discriminant analysis."""
        return SLDAHead(
            width, seed=seed, shrinkage=self.shrinkage, weighting=self.weighting, scatter=self.scatter
        )

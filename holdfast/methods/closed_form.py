"""What methods share whose head is computed, not trained: see `heads/` and docs/method.md."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from holdfast import search
from holdfast.errors import HoldfastError
from holdfast.heads import Head, SLDAHead
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.method import Method
from holdfast.methods.quadratic import Penalty, Quadratic
from holdfast.models import Adapters
from holdfast.params import Params
from holdfast.search import Choice, Decision, Trial
from holdfast.settings import Settings, setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learner import Learner

STILL = 2  # of the points of λ: as a proximal step 100/(lr max α) moves no feature by a thousandth


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
        None, "of the covariance, in (0, 1]; none: chosen on validation data", least=1e-6
    )
    weighting: Weighting = setting(
        "choose", "classes of unequal size: equal, covariance (in Σ too), counts (a prior) or choose"
    )
    scatter: Scatter = setting("per-class", "one S per class (exact removal), or one for all (less disk)")

    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        """Discriminant analysis."""
        return SLDAHead(
            width, seed=seed, shrinkage=self.shrinkage, weighting=self.weighting, scatter=self.scatter
        )


@dataclass
class UnderSLDA(Discriminant, ClosedForm, Quadratic):
    """The trunk keeps learning under a quadratic penalty; the head's sums are carried along with it.

    λ = ∞ is a trunk that does not move, and is free to try. If that keeps thr of what training can reach
    (`gold`), the trunk stays as it is, on the first task too: where features are good enough nothing drifts.
    """

    cannot: ClassVar[dict[str, str]] = {}

    # Inside Adam's loss weights jitter however strong the pull is; as a proximal step λ really ends in ∞.
    penalty: Penalty = setting(
        "proximal", "a proximal step after the optimiser's, or in the loss (the paper)"
    )

    @property
    def moves(self) -> bool:
        """Not with λ = ∞: under a head that is not trained nothing is left to move."""
        return super().moves and math.isfinite(self.lam)

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """Stay if staying is good enough; otherwise the search of the penalty."""
        if "lam" in learner.fixed:
            return (yield from self.moving(learner, task))
        still: Trial = yield self.still
        if len(task.labels) < 2 or not len(task.valid):
            return Decision(still, {"flags": ["nothing to train on"]})
        # No training can score more than 1: a still trunk that reaches thr itself need not be compared.
        if still.score >= self.share(learner):
            return Decision(still, {"flags": ["saturated"]})
        gold = yield from search.best_rate(learner.rates(), {"lam": 0.0})
        if still.score >= self.enough(learner, gold):
            return Decision(still, {"gold": gold.score, "flags": ["saturated"]})
        return (yield from self.moving(learner, task))

    def strongest_lam(self, learner: Learner, gold: Trial) -> Generator[Choice, Trial, Decision]:
        """Down from the previous λ, or from where nothing moves, which is known to hold too fast.

        λ_max is the weakest λ known to be too strong: no training has to be spent on finding where it begins.
        """
        still = yield self.still
        enough, grid = self.enough(learner, gold), search.lam_grid(learner.settings)
        strongest = self.points(gold)[STILL]
        previous = min(self.lam, strongest) if self.tasks_pooled > 1 and self.lam > 0 else strongest
        found = yield from search.strongest(
            previous,
            partial(self.plain, gold),
            lambda trial: trial.score >= enough,
            gold,
            known={strongest: still},
            **grid,
        )
        lam_max = previous if found.value in (0.0, previous) else search.rounded(found.value / grid["decay"])
        return Decision(found.trial, {"gold": gold.score, "lam_max": lam_max, "flags": list(found.flags)})

    def moving(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """How much the trunk may move: the method's own search."""
        return super().search(learner, task)

    @property
    def still(self) -> Choice:
        """The hyper-parameters of a trunk that does not move."""
        return {"lr": 0.0, "lam": math.inf}

    def measure(self, learner: Learner) -> Params:
        """Adapters that have not acted yet matter as well: the next task may train them."""
        acting = learner.model.adapted
        learner.model.adapted = True
        try:
            return super().measure(learner)
        finally:
            learner.model.adapted = acting

"""What methods share that train the trunk under discriminant analysis: when to move it, and how far."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.methods.closed_form import ClosedForm, Discriminant
from holdfast.methods.quadratic import Penalty, Quadratic
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner

STILL = 2  # of the points of λ: as a proximal step 100/(lr max α) moves no feature by a thousandth


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
            self.stand_in(learner)
            return (yield from self.moving(learner, task))
        still: Trial = yield self.still
        if len(task.labels) < 2 or not len(task.valid):
            return Decision(still, {"flags": ["nothing to train on"]})
        # No training can score more than 1: a still trunk that reaches thr itself need not be compared.
        if still.score >= self.share(learner):
            return Decision(still, {"flags": ["saturated"]})
        self.stand_in(learner)
        gold = yield from search.best_rate(learner.rates(), {"lam": 0.0})
        if still.score >= self.enough(learner, gold):
            return Decision(still, {"gold": gold.score, "flags": ["saturated"]})
        return (yield from self.moving(learner, task))

    def stand_in(self, learner: Learner) -> None:
        """Where nothing was measured while the trunk stood still, sentences at hand stand in for the past.

        That needs an importance without labels. Trainings start from here then.
        """
        if learner.tasks_seen and not self.alpha:
            self.alpha = learner.once("importance", lambda: self.measure(learner), each_rate=False)
            self.tasks_pooled = learner.tasks_seen
            learner.start_here()

    def strongest_lam(self, learner: Learner, gold: Trial) -> Generator[Choice, Trial, Decision]:
        """Down from the previous λ, or from where nothing moves, which is known to hold too fast.

        λ_max is the next stronger point of the grid, or a previous λ that is kept at once itself: no training
        has to be spent on finding where too strong begins.
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

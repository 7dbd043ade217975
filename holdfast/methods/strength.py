"""What methods with one strength λ share: the strongest λ that keeps enough of the new task."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from holdfast.methods import search
from holdfast.methods.base import Method
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner

THRESHOLDS = {"class-incremental": 0.90, "domain-incremental": 0.95}
START = 10.0  # of λ, where no importance says what is strong


@dataclass
class Regulariser(Method):
    """Holds weights or answers to the past in some way, and leaves the head a trained one."""

    retains: ClassVar[bool] = True
    cannot: ClassVar[dict[str, str]] = {
        "class-incremental": "a regulariser alone does not keep classes of different tasks apart, for they "
        "never meet in training: expect far less than mtl; the cure is a closed-form head, not a larger λ"
    }


@dataclass
class Strength(Regulariser):
    """Task loss + λ times a term that holds on to the past."""

    strengths: ClassVar[tuple[str, ...]] = ("lam",)

    lam: float = setting(0.0, "strength of the hold on the past; 0 is none", least=0)
    thr: float | None = setting(
        None, "share of the gold score to keep; none: 0.90 class-, 0.95 domain-incremental", least=0, most=1
    )

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """Learning rate without a hold (the gold score), then the strongest λ within thr of it."""
        gold: Trial = yield from search.best_rate(learner.rates(), dict.fromkeys(self.strengths, 0.0))
        if not learner.tasks_seen:
            return Decision(gold, {"gold": gold.score})
        if "lam" in learner.fixed:
            return Decision((yield self.plain(gold, self.lam)), {"gold": gold.score})
        return (yield from self.strongest_lam(learner, gold))

    def plain(self, gold: Trial, lam: float) -> Choice:
        """The gold trial's hyper-parameters with a hold of this strength and nothing else."""
        return gold.choice | {"lam": float(lam)}

    def enough(self, learner: Learner, gold: Trial) -> float:
        """The score that keeps enough of the new task."""
        return self.share(learner) * gold.score

    def share(self, learner: Learner) -> float:
        """The share of the gold score to keep."""
        return THRESHOLDS.get(learner.scenario, 0.90) if self.thr is None else self.thr

    def strongest_lam(self, learner: Learner, gold: Trial) -> Generator[Choice, Trial, Decision]:
        """Down from the previous task's λ, or from 10: see docs/conventions.md."""
        enough = self.enough(learner, gold)
        found = yield from search.strongest(
            self.lam or START,
            partial(self.plain, gold),
            lambda trial: trial.score >= enough,
            gold,
            **search.lam_grid(learner.settings),
        )
        return Decision(found.trial, {"gold": gold.score, "flags": list(found.flags)})

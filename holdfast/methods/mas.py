"""MAS and its limit: plain importance-weighted regularisation."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast import search
from holdfast.methods.quadratic import Quadratic
from holdfast.search import Choice, Decision, Trial
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learner import Learner


@dataclass
class MAS(Quadratic):
    """Memory Aware Synapses: hold each weight as strongly as the model's answers have depended on it."""

    paper: ClassVar[str] = "Aljundi et al., ECCV 2018"


@dataclass
class Frozen(Quadratic):
    """MAS with λ = ∞: only weights the past never used, such as rows of new labels, are trained."""

    paper: ClassVar[str] = "the limit of MAS; a yardstick for every method that claims to balance"
    strengths: ClassVar[tuple[str, ...]] = ("lam",)

    lam: float = setting(math.inf, "fixed at infinity")

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """The learning rate, found without a penalty as for every method; then one training with all held."""
        gold = yield from search.best_rate(learner.rates(), {"lam": 0.0})
        if not self.importance:
            return Decision(gold, {"gold": gold.score})
        held = yield {"lr": gold.choice["lr"], "lam": math.inf}
        return Decision(held, {"gold": gold.score})

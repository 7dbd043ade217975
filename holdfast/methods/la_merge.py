"""The look-ahead merge: relative importance as a merging weight, without a second training."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from holdfast.maths import params as P
from holdfast.maths.equations import relative_importance
from holdfast.methods import search
from holdfast.methods.consolidating import AnyImportance
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.methods.strength import Regulariser
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass
class LAMerge(Regulariser, AnyImportance):
    """Look ahead, then keep of each weight the past's share ρ of the old value and the rest of the new one.

    The search sees the look-ahead itself: the merge comes after it and costs no training of its own.

    Equation: θ_k = θ_la + m ρ (θ_{k-1} - θ_la), ρ = α_{k-1}/(α_{k-1} + α_la + ε)
    Paper: the paper's ρ as the weight of Fisher merging (Matena, Raffel, NeurIPS 2022)
    Cost: E·b + b to measure α_la + b to measure the importance
    Two tasks: E1·b1 + b1 + E2·b2 + b2
    """

    strengths: ClassVar[tuple[str, ...]] = ("merge",)

    merge: float = setting(
        1.0, "m, how much of the past's share is given back: 0 is none, 1 all", least=0, most=1
    )

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """The learning rate; the training it chooses is the look-ahead."""
        gold = yield from search.best_rate(learner.rates(), {})
        return Decision(gold, {"gold": gold.score})

    def after_task(self, learner: Learner, task: Task) -> None:
        """Merge, then measure what matters to the merged model."""
        if self.alpha and self.merge:
            ahead, there = self.measure(learner), P.snapshot(learner.model)
            merged = {}
            for name, here in learner.start.items():
                share = self.merge * relative_importance(self.alpha[name], ahead[name])
                merged[name] = torch.lerp(there[name], here, share)
            P.restore(learner.model, merged)
        super().after_task(learner, task)

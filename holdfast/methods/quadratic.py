"""What the quadratic-penalty methods share: the pull, its three forms, and the search for λ below λ_max."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.importance.estimators import Estimator
from holdfast.maths import params as P
from holdfast.maths.equations import quadratic_penalty
from holdfast.methods import search
from holdfast.methods.consolidating import Consolidating
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.methods.strength import Strength
from holdfast.settings import setting, to_json
from holdfast.steps import proximal
from holdfast.steps.proximal import Pull

if TYPE_CHECKING:
    from holdfast.data.batches import Batch
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner

Penalty = Literal["loss", "proximal"]


@dataclass
class Quadratic(Strength, Consolidating):
    """Task loss + (λ/2) Σ α (θ - θ_{k-1})²: weights that mattered for the past are pulled back to it.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})²
    """

    penalty: Penalty = setting("loss", "in the loss (the paper), or a proximal step after it")

    # ---- the pull -------------------------------------------------------------------------------------

    def before_task(self, learner: Learner, task: Task) -> None:
        """The anchor is θ_{k-1}, where every trial starts; the past's importance weighs the pull."""
        super().before_task(learner, task)
        self.live = P.trainable(learner.model)
        active = self.alpha and self.lam > 0
        self.pulls = {"penalty": Pull(learner.start, self.alpha, self.lam)} if active else {}

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """λ = 0 leaves the term out altogether: 0 times something is still something."""
        terms = super().losses(model, batch)
        for name, pull in self._finite("loss").items():
            terms[name] = quadratic_penalty(dict(self.live), pull.anchor, pull.weights, pull.lam)
        return terms

    def constrain(self, optimizer: Optimizer, params: dict[str, nn.Parameter]) -> None:
        """The proximal or the holding step, where that is the form of the penalty."""
        proximal.pull_after_step(optimizer, params, list(self._finite("proximal").values()))
        held = [pull for pull in self.pulls.values() if math.isinf(pull.lam)]
        proximal.hold_after_step(optimizer, params, held)

    def _finite(self, form: str) -> dict[str, Pull]:
        """The pulls that take this form; an infinite one is not a term but a hold."""
        if form != self.penalty:
            return {}
        return {name: pull for name, pull in self.pulls.items() if math.isfinite(pull.lam)}

    def added_gradient(self, name: str, weight: Tensor) -> Tensor | float:
        """What the pulls add to the gradient while they are part of the loss."""
        return sum((pull.gradient(name, weight) for pull in self._finite("loss").values()), start=0.0)

    def trains_as(self) -> dict[str, Any] | None:
        """A plain pull is the same training under every method, unless an estimator watches it."""
        watched = type(self.estimator()).observe is not Estimator.observe
        pull = {"lam": to_json(self.lam), "penalty": self.penalty} if self.lam > 0 else {}
        return None if watched else {"lr": self.lr, **pull}

    # ---- the search -----------------------------------------------------------------------------------

    def strongest_lam(self, learner: Learner, gold: Trial) -> Generator[Choice, Trial, Decision]:
        """The strongest λ that keeps thr of the gold score, below λ_max: see docs/conventions.md."""
        # With all of a preallocated head held, as printed, a task can be kept from being learnt at all.
        held = learner.settings.head == "preallocated" and learner.settings.logits == "all"
        printed = held and learner.scenario == "class-incremental"
        return search.strongest_lam(
            self.points(gold),
            partial(self.plain, gold),
            gold,
            enough=self.enough(learner, gold),
            previous=self.lam if self.tasks_pooled > 1 else 0.0,
            movement=None if printed else partial(self.movement, learner),
            settings=learner.settings,
        )

    def points(self, gold: Trial) -> list[float]:
        """Where λ_max is looked for: (1/(lr max α)) 10^i, i = 0..8."""
        largest = max(float(alpha.max()) for alpha in self.alpha.values() if alpha.numel())
        return [search.rounded(10**i / (gold.choice["lr"] * largest or 1.0)) for i in range(9)]

    def movement(self, learner: Learner, trial: Trial) -> float:
        """Σ α (θ - θ_{k-1})²: how far a training moved what the past needs."""
        return 2 * float(quadratic_penalty(trial.params, learner.start, self.alpha, 1.0))

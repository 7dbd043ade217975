"""What the quadratic-penalty methods share: the penalty, its three forms, and the search for λ."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast import importance, proximal, search
from holdfast import params as P
from holdfast.equations import Pooling, pool, quadratic_penalty
from holdfast.importance import Convention
from holdfast.method import Kind, Method
from holdfast.params import Params
from holdfast.search import Choice, Decision, Trial
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.batches import Batch
    from holdfast.data.tasks import Task
    from holdfast.learner import Learner

THRESHOLDS = {"class-incremental": 0.90, "domain-incremental": 0.95}


@dataclass
class Quadratic(Method):
    """Task loss + (λ/2) Σ α (θ - θ_{k-1})²: weights that mattered for the past are pulled back to it."""

    state: ClassVar[dict[str, Kind]] = {"importance": "zeros", "tasks_pooled": "number"}
    strengths: ClassVar[tuple[str, ...]] = ("lam",)

    lam: float = setting(0.0, "strength of the penalty; inf holds every weight the past needs", least=0)
    thr: float | None = setting(
        None, "share of the gold score to keep; none: 0.90 class-, 0.95 domain-incremental", least=0
    )
    penalty: Literal["loss", "proximal"] = setting(
        "loss", "in the loss (the paper), or a proximal step after it"
    )
    pooling: Pooling = setting("mean", "how importances of several tasks are pooled")
    convention: Convention = setting(
        "per-sample", "importance per sample, or as in the authors' released code"
    )

    importance: Params = field(default_factory=dict, init=False, repr=False)
    tasks_pooled: int = field(default=0, init=False, repr=False)

    # ---- the penalty ----------------------------------------------------------------------------------

    def before_task(self, learner: Learner, task: Task) -> None:
        """The anchor is θ_{k-1}, where every trial starts; the past's importance weighs the penalty."""
        self.live = P.trainable(learner.model)
        self.anchor = P.snapshot(learner.model)
        self.weights = self.importance

    @property
    def _active(self) -> bool:
        return bool(self.importance) and self.lam > 0

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """λ = 0 leaves the term out altogether: 0 times something is still something."""
        terms = super().losses(model, batch)
        if self._active and self.penalty == "loss" and math.isfinite(self.lam):
            terms["penalty"] = quadratic_penalty(dict(self.live), self.anchor, self.weights, self.lam)
        return terms

    def optimizer(self, params: dict[str, nn.Parameter]) -> Optimizer:
        """AdamW, with the proximal or the holding step behind it where that is the form of the penalty."""
        optimizer = super().optimizer(params)
        if self._active and math.isinf(self.lam):
            proximal.hold_after_step(optimizer, params, self.anchor, self.weights)
        elif self._active and self.penalty == "proximal":
            proximal.pull_after_step(optimizer, params, self.anchor, self.weights, self.lam)
        return optimizer

    # ---- the importance -------------------------------------------------------------------------------

    def measure(self, learner: Learner) -> Params:
        """The importance of the model's weights as they are, on the current task's training data."""
        batches = math.ceil(len(learner.train) / learner.settings.batch_size)
        learner.count("importance", forward=batches, backward=batches)
        torch.manual_seed(learner.task_seed)  # for the convention that measures with dropout on
        return importance.mas(
            learner.model, learner.train, convention=self.convention, batch_size=learner.settings.batch_size
        )

    def after_task(self, learner: Learner, task: Task) -> None:
        """α_k: the true importances pooled over the tasks, never the modified ones."""
        past = self.importance or P.zeros(P.snapshot(learner.model))
        self.importance = pool(past, self.measure(learner), self.tasks_pooled, self.pooling)
        self.tasks_pooled += 1

    # ---- the search -----------------------------------------------------------------------------------

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """Learning rate without a penalty (the gold score), then the strongest λ within thr of it."""
        gold: Trial = yield from search.best_rate(learner.rates(), {"lam": 0.0})
        if not self.importance:
            return Decision(gold, {"gold": gold.score})
        if "lam" in learner.fixed:
            trial = yield self.plain(gold, self.lam)
            return Decision(trial, {"gold": gold.score})
        return (yield from self.strongest_lam(learner, gold))

    def plain(self, gold: Trial, lam: float) -> Choice:
        """The gold trial's hyper-parameters with a penalty of this strength, weighed by plain importance."""
        return {"lr": gold.choice["lr"], "lam": lam}

    def strongest_lam(self, learner: Learner, gold: Trial) -> Generator[Choice, Trial, Decision]:
        """The strongest λ that keeps thr of the gold score: see docs/conventions.md."""
        largest = max(float(alpha.max()) for alpha in self.importance.values() if alpha.numel())
        points = [search.rounded(10**i / (gold.choice["lr"] * largest or 1.0)) for i in range(9)]
        # With all of a preallocated head held, as printed, a task can be kept from being learnt at all.
        printed = learner.settings.logits == "all" and learner.scenario == "class-incremental"
        return search.strongest_lam(
            points,
            partial(self.plain, gold),
            gold,
            enough=(THRESHOLDS.get(learner.scenario, 0.90) if self.thr is None else self.thr) * gold.score,
            previous=self.lam if self.tasks_pooled > 1 else 0.0,
            movement=None if printed else partial(self.movement, learner),
            settings=learner.settings,
        )

    def movement(self, learner: Learner, trial: Trial) -> float:
        """Σ α (θ - θ_{k-1})²: how far a training moved what the past needs."""
        start = P.snapshot(learner.model)
        return 2 * float(quadratic_penalty(trial.params, start, self.importance, 1.0))

"""What methods share that know how much each weight has mattered: the importance, pooled over tasks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.importance.estimators import ESTIMATORS, MAS, Estimator, Importance, Training
from holdfast.importance.per_sample import Convention
from holdfast.maths import params as P
from holdfast.maths.equations import Pooling, pool
from holdfast.maths.params import Params
from holdfast.methods.base import Kind, Method
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass
class Consolidating(Method):
    """Measures, when a task is learnt, what mattered to it, and pools that with what mattered before.

    Cost: E·b + b to measure the importance
    Two tasks: E1·b1 + b1 + E2·b2
    Extras: b2, the last consolidation
    Keeps: α, the pooled importance (one number per trainable weight)
    """

    state: ClassVar[dict[str, Kind]] = {"alpha": "zeros", "tasks_pooled": "number", "trace": "zeros"}

    pooling: Pooling = setting("mean", "how importances of several tasks are pooled")
    keep: float = setting(0.5, "share of the past in pooling=ema", least=0, below=1)

    alpha: Params = field(default_factory=dict, init=False, repr=False)
    tasks_pooled: int = field(default=0, init=False, repr=False)
    trace: Params = field(default_factory=dict, init=False, repr=False)
    """What the estimator has noted on the way; empty between tasks."""

    def estimator(self) -> Estimator:
        """Who says what matters."""
        raise NotImplementedError

    def before_task(self, learner: Learner, task: Task) -> None:
        """Every training is watched from its own beginning."""
        self.trace = {}

    def optimizer(self, params: dict[str, nn.Parameter]) -> Optimizer:
        """AdamW, constrained, then watched: what the constraint does is part of the way a weight goes."""
        optimizer = super().optimizer(params)
        self.constrain(optimizer, params)
        self.estimator().observe(optimizer, params, self.trace, self.added_gradient)
        return optimizer

    def constrain(self, optimizer: Optimizer, params: dict[str, nn.Parameter]) -> None:
        """Put step hooks on the optimiser that hold weights back."""

    def added_gradient(self, name: str, weight: Tensor) -> Tensor | float:
        """What other terms than the task loss have added to a gradient."""
        return 0.0

    def measure(self, learner: Learner) -> Params:
        """The importance of the model's weights as they are, on the current task's training data."""
        estimator, size = self.estimator(), learner.settings.batch_size
        passes = learner.batches * estimator.passes(learner.model)
        learner.count("importance", forward=passes, backward=passes)
        return estimator.finish(
            Training(learner.model, learner.train, learner.start, self.trace, size, learner.task_seed)
        )

    def after_task(self, learner: Learner, task: Task) -> None:
        """α_k: the true importances pooled over the tasks, never the modified ones."""
        past = self.alpha or P.zeros(learner.start)
        self.alpha = pool(past, self.measure(learner), self.tasks_pooled, self.pooling, self.keep)
        self.tasks_pooled += 1
        self.trace = {}


@dataclass
class AnyImportance(Consolidating):
    """Works over any estimator, and can measure what would matter to a task before it is learnt."""

    importance: Importance = setting("mas", "who measures: mas, fisher, si or rwalk")
    convention: Convention = setting(
        "per-sample", "mas per sample, or as in the authors' released code (lacl)"
    )

    def estimator(self) -> Estimator:
        """The one that was chosen."""
        return MAS(self.convention) if self.importance == "mas" else ESTIMATORS[self.importance]()

    def ahead(self, learner: Learner, task: Task) -> Params:
        """α_la: what matters for the new task where it alone would take the weights."""

        def compute() -> Params:
            with learner.using(learner.look_ahead(task)):
                return self.measure(learner)

        return learner.once("look-ahead importance", compute)

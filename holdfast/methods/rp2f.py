"""RP2F: train freely, deploy the precision-weighted mean of old and new weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

from torch import Tensor
from typing_extensions import override

from holdfast import importance
from holdfast.data.batches import Batch
from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.maths import params as P
from holdfast.maths.equations import fuse
from holdfast.maths.losses import decorrelation
from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.methods.base import REGULARISER, LearnerView, Method, Plan, StateKind, Training
from holdfast.methods.search import Decision
from holdfast.models import Output

GRID = (1e-5, 1e-6, 1e-7)  # values of λ that its authors suggest
LIMIT = 2000  # samples, or a little more, for perturbation importance


@dataclass
class RP2F(Method):
    """Robust Parameter Posterior Fusion: train freely, deploy a weighted mean of old and learnt weights.

    The precision (importance) of a weight decides how much either side counts. A robustness term makes the
    learner tolerate the fusion. Early stopping judges the fused weights; the learner's own weights are kept
    in the state, and by default the next task continues from them.

    Equation: L = L_task(θ_L) + λ R(features), θ_k = (Π θ_{k-1} + π θ_L)/(Π + π), Π ← Π + π
    Paper: Sun et al., ACM MM 2024
    Cost: E·(b + b): the importance is measured after every epoch (perturbation: once per matrix)
    Two tasks: E1·b1 + b1 + E2·(b2 + b2)
    Extras: none; importance=perturbation of N matrices is E1·b1 + b1 + E2·(b2 + N·b2) in the paper, and
        (N-1)·b1 more here
    Keeps: the free learner's weights and the summed precision (two numbers per trainable weight)
    """

    cannot: ClassVar[dict[str, str]] = REGULARISER
    reduces_to_seq: ClassVar[bool | str] = "with λ = 0 the deployed weights are still fused with the past's"
    state: ClassVar[dict[str, StateKind]] = {"free": "weights", "precision": "zeros", "current": "zeros"}

    lam: float = setting(1e-6, "strength of the robustness term; 0: none", least=0)
    importance: Literal["fisher", "perturbation"] = setting(
        "fisher", "precision from squared gradients (the paper) or shifted weights (its authors' code)"
    )
    shift: float = setting(1e-3, "shift of every entry of a matrix with importance=perturbation")
    floor: float = setting(1e-6, "minimum importance with importance=perturbation", least=0)
    continues: bool = setting(True, "continue from the learner's own weights; false: from the deployed ones")

    free: Params = field(default_factory=dict, init=False, repr=False)
    precision: Params = field(default_factory=dict, init=False, repr=False)
    current: Params = field(default_factory=dict, init=False, repr=False)

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Start from the learner's own weights if `continues`; if λ > 0, decorrelate a batch's features."""

        def robustness(batch: Batch, output: Output) -> Tensor:
            return self.lam * decorrelation(output.features)

        return Training(
            self.lr,
            terms={"robustness": robustness} if self.lam > 0 else {},
            begin=self.free if self.free and self.continues else None,
            carried={"free": self.free, "current": {}},
        )

    @override
    def deployed(self, learner: LearnerView, training: Training, epoch: int) -> Params:
        """Return the fused weights, and store the learner's own with their precision.

        Before the first epoch these are the start weights, and on the first task the learner's own.
        """
        if epoch == 0:
            return {name: value.clone() for name, value in learner.start.items()}
        live = P.snapshot(learner.model)
        if not self.precision:
            return live
        current = self.measure(learner)
        training.carried.update(free=live, current=current)
        return fuse(learner.start, live, self.precision, current)

    @override
    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Add this task's precision to the past's; the first task's is measured now."""
        if not self.precision:
            self.free, self.precision = P.snapshot(learner.model), self.measure(learner)
        elif self.current:
            self.precision = {name: value + self.current[name] for name, value in self.precision.items()}
        self.current = {}

    def measure(self, learner: LearnerView) -> Params:
        """Return π, the importance of the learner's weights on the current task."""
        model, data, size = learner.model, learner.train, learner.settings.batch_size
        if self.importance == "fisher":
            learner.count("importance", forward=learner.batches, backward=learner.batches)
            return importance.fisher(model, data, batch_size=size)
        matrices = sum(weight.dim() > 1 for weight in P.trainable(model).values())
        passes = matrices * min(learner.batches, LIMIT // size + 1)
        learner.count("importance", forward=passes, backward=passes)
        return importance.perturbation(
            model,
            data,
            shift=self.shift,
            floor=self.floor,
            limit=LIMIT,
            batch_size=size,
            seed=learner.task_seed,
        )

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search a grid of learning rates and λ for the best score, because λ does not control stability."""
        grid = search.unfixed([{"lam": lam} for lam in GRID], learner.fixed)
        product = learner.settings.grids == "product"
        return Decision((yield from search.best_of_grid(learner.rates(), grid, product=product)))

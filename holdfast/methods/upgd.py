"""UPGD: an optimiser that protects useful weights; no task boundaries, no anchor, no extra loss."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer

from holdfast import distributed
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.methods.base import Kind
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.methods.strength import Regulariser
from holdfast.settings import Settings, setting
from holdfast.steps import upgd as optim
from holdfast.steps.upgd import Maximum, Scaling

if TYPE_CHECKING:
    from holdfast.data.batches import Batch
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass
class UPGD(Regulariser):
    """Utility-based Perturbed Gradient Descent: useful weights move little, useless ones freely, with noise.

    The second-order utility takes the head's curvature as it is (HesScale is exact there) and estimates that
    of the rest by Hutchinson's random signs. The running utility survives task boundaries: it is all memory.

    Equation: θ ← θ - c η (g + ξ)(1 - s), s = σ(û / max û), u ← β u + (1-β)(-g θ + ½ h θ²), û = u/(1-β^t)
    Paper: Elsayed, Mahmood, ICLR 2024
    Cost: E·b, and two more backward passes per batch with curvature=hutchinson
    Extras: 2·(E1·b1 + E2·b2) backward passes with curvature=hutchinson
    Keeps: the running utility (one number per trainable weight) and its step counts
    """

    reduces_to_seq: ClassVar[bool | str] = "its optimiser is a gated, noisy SGD from the first step on"
    state: ClassVar[dict[str, Kind]] = {"utility": "zeros", "steps": "fixed"}

    order: Literal["first", "second"] = setting(
        "second", "order of the utility in the weight (paper: second)"
    )
    curvature: Literal["hutchinson", "head"] = setting(
        "hutchinson", "of the second order: estimated for all weights but the head, or the exact head's alone"
    )
    every: int = setting(1, "steps between two measurements of the curvature", least=1)
    beta: float = setting(0.999, "memory of the running utility", least=0, below=1)
    sigma: float = setting(1e-3, "standard deviation of the noise", least=0)
    weight_decay: float = setting(0.0, "decay of weights towards 0 per step, times the rate", least=0)
    factor: float = setting(
        2.0, "c: 2 lets a weight of utility 0 move as in SGD; 1 in the authors' experiments"
    )
    maximum: Maximum = setting(
        "corrected", "largest utility after bias correction, or raw (the authors' code)"
    )
    scaling: Scaling = setting(
        "global", "utility beside the network's largest, or beside its row's norm (local)"
    )
    protecting: bool = setting(True, "gate the gradient too, not only the noise")

    utility: Params = field(default_factory=dict, init=False, repr=False)
    steps: Params = field(default_factory=dict, init=False, repr=False)

    def rates(self, settings: Settings) -> tuple[float, ...]:
        """Its steps have SGD's geometry."""
        return settings.sgd_rates

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """The learning rate only."""
        return Decision((yield from search.best_rate(learner.rates(), {})))

    def before_task(self, learner: Learner, task: Task) -> None:
        """Go on with the utilities of the past."""
        for name, start in learner.start.items():
            self.utility.setdefault(name, P.precise(torch.zeros_like(start)))
            self.steps.setdefault(name, torch.zeros(()))
        self.model, self.count = learner.model, learner.count
        self.measured: Params = {}
        self.batches = 0
        self.signs = torch.Generator().manual_seed(learner.task_seed)

    def optimizer(self, params: dict[str, nn.Parameter]) -> Optimizer:
        """The method itself."""
        return optim.UPGD(
            params,
            self.lr,
            utility=self.utility,
            steps=self.steps,
            curvature=self.measured,
            beta=self.beta,
            sigma=self.sigma,
            weight_decay=self.weight_decay,
            factor=self.factor,
            maximum=self.maximum,
            scaling=self.scaling,
            protecting=self.protecting,
        )

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The task loss; on the way, where it is time, its curvature."""
        due = self.order == "second" and self.batches % self.every == 0
        self.batches += 1
        if not due:
            return super().losses(model, batch)
        seen: list[tuple[Tensor, Tensor]] = []
        head = self.model.get_submodule("head.linear")
        handle = head.register_forward_hook(lambda _, given, logits: seen.append((given[0], logits)))
        with handle, sdpa_kernel(SDPBackend.MATH):  # fused attention has no double backward
            terms = super().losses(model, batch)
        if self.curvature == "hutchinson":
            self.count("curvature", forward=0, backward=2)
            trunk = {n: w for n, w in P.trainable(self.model).items() if not n.startswith("head.")}
            found = optim.hutchinson(terms["task"], trunk, self.signs) if trunk else {}
            mean = {n: distributed.total(P.precise(h)) / distributed.processes() for n, h in found.items()}
            self.measured.update(mean)
        self.measured.update(self.head_curvature(batch, *seen[-1]))
        return terms

    @torch.no_grad()
    def head_curvature(self, batch: Batch, given: Tensor, logits: Tensor) -> Params:
        """∂²L/∂W_ij² = Σ_n ∂²L/∂z_ni² a_nj², exact because the logits are linear in the head."""
        assert batch.objective is not None
        second = batch.objective.curvature(logits, batch.labels)
        given = given.to(second.dtype)
        return {
            "head.linear.weight": distributed.total(second.T @ given.square()),
            "head.linear.bias": distributed.total(second.sum(0)),
        }

"""UPGD: an optimiser that protects useful weights; it needs no task boundaries, anchor or extra loss."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.optim import Optimizer
from typing_extensions import override

from holdfast import distributed
from holdfast.data.batches import Batch
from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.methods.base import REGULARISER, LearnerView, Method, Plan, StateKind, Training, Weights
from holdfast.methods.search import Decision
from holdfast.models import Network, Output
from holdfast.steps.upgd import Maximum, Scaling, UPGDOptimizer, hutchinson


@dataclass
class UPGD(Method):
    """Utility-based Perturbed Gradient Descent: useful weights move little, useless ones freely, with noise.

    The second-order utility uses the exact curvature of the head (HesScale is exact there) and by
    default Hutchinson's estimate, with random signs, elsewhere. Only the running utility and its step counts
    survive task boundaries.

    Equation: θ ← θ - c η (g + ξ)(1 - s), s = σ(û / max û), u ← β u + (1-β)(-g θ + ½ h θ²), û = u/(1-β^t)
    Paper: Elsayed, Mahmood, ICLR 2024
    Cost: E·b, and two more backward passes per measured batch with order=second, curvature=hutchinson
    Extras: 2·(E1·b1 + E2·b2) backward passes with order=second, curvature=hutchinson, every=1
    Keeps: the running utility (one number per trainable weight) and its step counts
    """

    cannot: ClassVar[dict[str, str]] = REGULARISER
    reduces_to_seq: ClassVar[bool | str] = "its optimiser is a gated, noisy SGD from the first step on"
    state: ClassVar[dict[str, StateKind]] = {"utility": "zeros", "steps": "fixed"}

    order: Literal["first", "second"] = setting(
        "second", "order of the utility in the weight (paper: second)"
    )
    curvature: Literal["hutchinson", "head"] = setting(
        "hutchinson", "second derivatives: the head's (exact) and estimates of the rest, or only the head's"
    )
    every: int = setting(1, "steps between two measurements of the curvature", least=1)
    beta: float = setting(0.999, "decay rate of the running utility", least=0, below=1)
    sigma: float = setting(1e-3, "standard deviation of the noise", least=0)
    weight_decay: float = setting(0.0, "weight decay per step, multiplied by the learning rate", least=0)
    factor: float = setting(
        2.0, "c: 2 lets a weight of utility 0 move as in SGD; 1 in the authors' experiments"
    )
    maximum: Maximum = setting(
        "corrected", "largest utility after bias correction, or raw (the authors' code)"
    )
    scaling: Scaling = setting(
        "global", "utility relative to the network's largest, or to its row's norm (local)"
    )
    protecting: bool = setting(True, "gate the gradient too, not only the noise")

    utility: Params = field(default_factory=dict, init=False, repr=False)
    steps: Params = field(default_factory=dict, init=False, repr=False)

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Train with UPGD, continuing with the utilities of the past."""
        utility = {n: P.precise(torch.zeros_like(start)) for n, start in learner.start.items()}
        steps = {name: torch.zeros(()) for name in learner.start}
        carried = {
            "utility": utility | {name: value.clone() for name, value in self.utility.items()},
            "steps": steps | {name: value.clone() for name, value in self.steps.items()},
        }
        curvature: Params = {}

        def optimizer(weights: Weights) -> Optimizer:
            return UPGDOptimizer(
                weights,
                self.lr,
                utility=carried["utility"],
                steps=carried["steps"],
                curvature=curvature,
                beta=self.beta,
                sigma=self.sigma,
                weight_decay=self.weight_decay,
                factor=self.factor,
                maximum=self.maximum,
                scaling=self.scaling,
                protecting=self.protecting,
            )

        forward = self.measuring(learner, curvature) if self.order == "second" else Training.forward
        return Training(self.lr, optimizer=optimizer, forward=forward, carried=carried)

    def measuring(self, learner: LearnerView, curvature: Params) -> Callable[[nn.Module, Batch], Output]:
        """Return a forward pass that measures the curvature of the task loss on every `every`-th batch."""
        signs = torch.Generator().manual_seed(learner.task_seed)
        batches = itertools.count()

        def forward(model: nn.Module, batch: Batch) -> Output:
            if next(batches) % self.every:
                return Training.forward(model, batch)
            seen: list[tuple[Tensor, Tensor]] = []
            head = learner.model.get_submodule("head.linear")
            handle = head.register_forward_hook(lambda _, given, logits: seen.append((given[0], logits)))
            with handle, sdpa_kernel(SDPBackend.MATH):  # fused attention has no double backward
                output = Training.forward(model, batch)
            if self.curvature == "hutchinson":
                assert output.loss is not None
                learner.count("curvature", forward=0, backward=2)
                trunk = {n: w for n, w in P.trainable(learner.model).items() if not n.startswith("head.")}
                found = hutchinson(output.loss, trunk, signs) if trunk else {}
                total = {n: distributed.total(P.precise(h)) for n, h in found.items()}
                curvature.update({n: h / distributed.processes() for n, h in total.items()})
            curvature.update(head_curvature(batch, *seen[-1]))
            return output

        return forward

    @override
    def misfit(self, model: Network, tensors: Mapping[str, Params]) -> str:
        steps, weights = tensors.get("steps", {}), P.trainable(model)
        if wrong := [
            name
            for name, value in steps.items()
            if name not in weights or value.dim() or not value.is_floating_point()
        ]:
            return f"steps/{wrong[0]}"
        return super().misfit(model, tensors)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate only, on the grid for SGD-type steps."""
        return Decision((yield from search.chosen_rate(learner, {}, own=True)))


@torch.no_grad()
def head_curvature(batch: Batch, given: Tensor, logits: Tensor) -> Params:
    """Return ∂²L/∂W_ij² = Σ_n ∂²L/∂z_ni² a_nj², exact because the logits are linear in the head."""
    assert batch.objective is not None
    second = batch.objective.curvature(logits, batch.labels)
    given = given.to(second.dtype)
    return {
        "head.linear.weight": distributed.total(second.T @ given.square()),
        "head.linear.bias": distributed.total(second.sum(0)),
    }

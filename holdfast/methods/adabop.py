"""AdaBOP: updates orthogonal to old inputs, stricter where the new task is unrelated to the old."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import ClassVar, Literal

import torch
from typing_extensions import override

from holdfast import importance
from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.methods.base import REGULARISER, LearnerView, Method, Plan, StateKind, Training
from holdfast.methods.search import Decision
from holdfast.models import Network
from holdfast.steps import projection
from holdfast.steps.projection import Selection

PAIRS = ((0.1, 0.3), (0.03, 0.08), (0.005, 0.01))  # values of (λ_s, λ_l) from the paper's appendix
KINDS = (torch.float32, torch.float64)  # of moments and of numbers of tokens
EPSILONS = (0.002, 0.004)
GRID = [{"lam_s": small, "lam_l": large, "eps": eps} for (small, large), eps in product(PAIRS, EPSILONS)]


@dataclass
class AdaBOP(Method):
    """Adaptive orthogonal projection: each layer's update is projected away from the inputs of earlier tasks.

    A layer whose gradient correlates with the previous task's gets the loose λ_s, the others the strict λ_l.
    Biases are projected with their matrix. Norm layers act on each entry separately, so no projector
    applies; they are frozen after the first task. Head rows of new labels are free: no old output needs them.

    Equation: [W b] ← [W b] + u P, P = VVᵀ/‖VVᵀ‖ with V the eigenvectors of λnF + I with σ ≤ τ σ_min
    Paper: Cheng, Hu, Wang, Zhang, Gao, IEEE TCSVT 2025
    Cost: b for the gradients at its start + E·b + b (forward) for the inputs at its end
    Two tasks: b1 + E1·b1 + b2 + E2·b2
    Extras: b1 + b2 forward passes for the second moments
    Keeps: a matrix of second moments per linear layer, and the previous task's gradients
    """

    cannot: ClassVar[dict[str, str]] = REGULARISER
    strengths: ClassVar[tuple[str, ...]] = ("lam_s", "lam_l")
    state: ClassVar[dict[str, StateKind]] = {"moments": "fixed", "tokens": "fixed", "gradients": "zeros"}

    lam_s: float = setting(0.03, "strength for layers related to the previous task", least=0, below=math.inf)
    lam_l: float = setting(0.08, "strength for the others; both 0: no projection", least=0, below=math.inf)
    eps: float = setting(0.002, "correlation above which a layer counts as related", least=0)
    mass: float = setting(
        4000.0,
        "weight of the mean moment relative to I, in tokens; at 1 the paper's strengths let everything pass",
        least=0,
    )
    tau: float = setting(10.0, "largest kept eigenvalue, in multiples of the smallest", least=1)
    selection: Selection = setting(
        "ratio", "kept vectors: ratio (tau), fraction (the paper) or soft (all, scaled)"
    )
    fraction: float = setting(0.01, "share of vectors kept by selection=fraction, at least one", least=0)
    scale: Literal["plain", "free"] = setting(
        "plain", "correlation as published, or independent of the gradients' scale"
    )
    normalize: bool = setting(
        True, "divide the projector by its norm, as published (not with selection=soft)"
    )

    moments: Params = field(default_factory=dict, init=False, repr=False)
    tokens: Params = field(default_factory=dict, init=False, repr=False)
    gradients: Params = field(default_factory=dict, init=False, repr=False)

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Choose each layer's λ and project every update; train freely without a past or with both λ at 0."""
        now = self.starting_gradients(learner)
        if not self.moments or (self.lam_s == 0 and self.lam_l == 0):
            return Training(self.lr)
        projectors = {place: self.projector(place, now) for place in self.moments}
        past = set(learner.past_rows)
        new = [row for row in range(len(learner.model.head.labels)) if row not in past]
        step = partial(projection.project_after_step, projectors=projectors, free={"head.linear": new})
        return Training(self.lr, around_step=(step,))

    def projector(self, place: str, now: Params) -> torch.Tensor:
        """Return one layer's projector."""
        new, old = projection.joined(now, place), projection.joined(self.gradients, place)
        related = projection.correlation(new, old, scale_free=self.scale == "free") > self.eps
        P = projection.projector(
            self.mass * self.moments[place].double(),
            self.lam_s if related else self.lam_l,
            selection=self.selection,
            tau=self.tau,
            fraction=self.fraction,
        )
        return P / torch.linalg.norm(P) if self.normalize and self.selection != "soft" else P

    def starting_gradients(self, learner: LearnerView) -> Params:
        """Return the mean gradient of the task loss at the start weights: one pass, shared by all trials."""
        size = learner.settings.batch_size

        def compute() -> Params:
            learner.count("gradients", forward=learner.batches, backward=learner.batches)
            with P.using(learner.model, learner.start):
                return importance.mean_gradients(learner.model, learner.train, batch_size=size)

        return learner.once("gradients", compute)

    @override
    def misfit(self, model: Network, tensors: Mapping[str, Params]) -> str:
        layers: Mapping[str, object] = projection.linear_layers(model)
        moments, tokens = tensors.get("moments", {}), tensors.get("tokens", {})
        if moments.keys() != tokens.keys():
            return "tokens"
        for place, moment in moments.items():
            width = getattr(layers.get(place), "in_features", -2) + 1  # with the bias
            kinds = (moment.dtype, tokens[place].dtype)
            if moment.shape != (width, width) or tokens[place].shape != () or kinds != KINDS:
                return f"moments/{place}"
        return super().misfit(model, tensors)

    @override
    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Store the task's gradients; pool the second moments of all inputs, weighting tokens equally."""
        self.gradients = self.starting_gradients(learner)
        size = learner.settings.batch_size
        learner.count("moments", forward=learner.batches, backward=0)
        moments, tokens = projection.second_moments(learner.model, learner.train, batch_size=size)
        for place, past in self.moments.items():
            share = float(tokens[place] / (tokens[place] + self.tokens[place]))
            moments[place] = torch.lerp(past, moments[place], share)
            tokens[place] = tokens[place] + self.tokens[place]
        self.moments, self.tokens = moments, tokens

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate and, where they have an effect, for (λ_s, λ_l) and ε."""
        searched = self.moments and self.selection != "fraction"
        grid = search.unfixed(GRID if searched else [{}], learner.fixed)
        every = learner.settings.grids == "product"
        return Decision((yield from search.best_of_grid(learner.rates(), grid, product=every)))

    @override
    def cautions(self, scenario: str) -> list[str]:
        """Add a warning for selection=fraction: λ changes neither the eigenvectors nor their order."""
        inert = (
            "with selection=fraction, lam_s, lam_l and eps have no effect: only the learning rate is searched"
        )
        return super().cautions(scenario) + ([inert] if self.selection == "fraction" else [])

"""Importance estimators as objects: they may observe training, and measure importance at its end.

MAS and Fisher measure the finished model. SI (Zenke et al. 2017) and RWalk (Chaudhry et al. 2018) add up,
during training, how much each weight's path has lowered the task loss. Their record, the trace, belongs to
the method's state: it is restored to the best epoch together with the weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from typing_extensions import override

from holdfast.data.batches import Examples
from holdfast.importance import per_sample
from holdfast.importance.per_sample import Convention, FisherLabels, Norm
from holdfast.maths.equations import normalised
from holdfast.maths.params import Params, precise, trainable
from holdfast.models import Network

EstimatorName = Literal["mas", "fisher", "si", "rwalk"]
Trace = Params  # "what/weight name" -> tensor
Extra = Callable[[str, Tensor], Tensor | float]


@dataclass(frozen=True)
class EndedTraining:
    """A finished training run: its start weights, the model at its end, the trace recorded on the way."""

    model: Network
    data: Examples
    start: Params
    trace: Trace
    batch_size: int = 32
    seed: int = 0


class Estimator:
    """An importance estimator. By default it observes nothing and measures in one pass over the data."""

    def passes(self, model: Network) -> int:
        """Return the number of passes over the data, forward and backward, that `finish` makes."""
        return 1

    def observe(
        self, optimizer: Optimizer, params: dict[str, nn.Parameter], trace: Trace, extra: Extra
    ) -> None:
        """Observe training through step hooks; `extra` is what regularisers add to a gradient.

        Estimators that do so derive from `Observer`: training runs that they observe are not shared.
        """

    def finish(self, over: EndedTraining) -> Params:
        """Return the importance of the final weights of a training run."""
        raise NotImplementedError


@dataclass(frozen=True)
class MASEstimator(Estimator):
    """MAS: how much the answers depend on a weight."""

    convention: Convention = "per-sample"
    norm: Norm = "squared"

    @override
    def finish(self, over: EndedTraining) -> Params:
        """Measure in one pass over the data; labels are not used."""
        torch.manual_seed(over.seed)  # for the convention that measures with dropout on
        return per_sample.mas(
            over.model, over.data, convention=self.convention, norm=self.norm, batch_size=over.batch_size
        )


@dataclass(frozen=True)
class FisherEstimator(Estimator):
    """Fisher: how much the log-likelihood of labels depends on a weight."""

    labels: FisherLabels = "true"

    @override
    def passes(self, model: Network) -> int:
        """Return one pass, or one per label for the expectation over labels."""
        return len(model.head.visible_rows()) if self.labels == "expected" else 1

    @override
    def finish(self, over: EndedTraining) -> Params:
        return per_sample.fisher(
            over.model, over.data, labels=self.labels, batch_size=over.batch_size, seed=over.seed
        )


class Observer(Estimator):
    """An estimator that observes every step: the gradient of the task loss, and the actual displacement."""

    @override
    def passes(self, model: Network) -> int:
        """Return 0: the training itself was the measurement."""
        return 0

    def step(self, trace: Trace, name: str, gradient: Tensor, before: Tensor, after: Tensor) -> None:
        """Record one step of one weight."""
        raise NotImplementedError

    @override
    def observe(
        self, optimizer: Optimizer, params: dict[str, nn.Parameter], trace: Trace, extra: Extra
    ) -> None:
        """Add hooks around the step; being last, they include proximal and holding steps in the path."""
        seen: dict[str, tuple[Tensor, Tensor]] = {}

        @torch.no_grad()
        def leave(own: Optimizer, args: Any, kwargs: Any) -> None:
            for name, weight in params.items():
                if weight.grad is not None:
                    gradient = precise(weight.grad) - extra(name, weight)
                    seen[name] = (gradient, precise(weight.detach().clone()))

        @torch.no_grad()
        def arrive(own: Optimizer, args: Any, kwargs: Any) -> None:
            for name, (gradient, before) in seen.items():
                self.step(trace, name, gradient, before, precise(params[name].detach()))
            seen.clear()

        optimizer.register_step_pre_hook(leave)
        optimizer.register_step_post_hook(arrive)


@dataclass(frozen=True)
class SIEstimator(Observer):
    """Synaptic intelligence: the loss saved along a weight's path, per squared distance."""

    damping: float = 0.1

    @override
    def step(self, trace: Trace, name: str, gradient: Tensor, before: Tensor, after: Tensor) -> None:
        """Add -g Δθ to ω."""
        _add(trace, f"path/{name}", -gradient * (after - before))

    @override
    def finish(self, over: EndedTraining) -> Params:
        """Return Ω = max(0, ω) / ((θ - θ_start)² + ξ)."""
        found = {}
        for name, weight in trainable(over.model).items():
            moved = precise(weight.detach()) - precise(over.start[name])
            path = over.trace.get(f"path/{name}", torch.zeros_like(moved))
            found[name] = (path.clamp(min=0) / (moved.square() + self.damping)).to(weight.dtype)
        return found


@dataclass(frozen=True)
class RWalkEstimator(Observer):
    """Riemannian walk: Fisher information plus the loss saved per unit of KL divergence."""

    damping: float = 1e-3
    interval: int = 10
    rate: float = 0.9  # share of the latest interval in the running Fisher

    @override
    def step(self, trace: Trace, name: str, gradient: Tensor, before: Tensor, after: Tensor) -> None:
        """Add to the open interval, and close it when it is long enough."""
        trace.setdefault(f"fisher/{name}", gradient.square())
        trace.setdefault(f"origin/{name}", before.clone())
        _add(trace, f"path/{name}", -gradient * (after - before))
        _add(trace, f"squares/{name}", gradient.square())
        _add(trace, f"steps/{name}", torch.ones(()))
        if int(trace[f"steps/{name}"]) >= self.interval:
            self._close(trace, name, after)

    def _close(self, trace: Trace, name: str, here: Tensor) -> None:
        """Add max(0, ΔL / (½ F Δθ² + ε)) to s, then move F towards this interval's mean squared gradient."""
        path, squares, steps, origin = (
            trace.pop(f"{part}/{name}") for part in ("path", "squares", "steps", "origin")
        )
        fisher = trace[f"fisher/{name}"]
        walked = 0.5 * fisher * (here - origin).square() + self.damping
        _add(trace, f"score/{name}", (path / walked).clamp(min=0))
        trace[f"fisher/{name}"] = self.rate * squares / steps + (1 - self.rate) * fisher

    def parts(self, model: nn.Module, trace: Trace) -> tuple[Params, Params]:
        """Return Fisher and score of every weight, including the interval that is still open."""
        trace, fisher, score = dict(trace), {}, {}
        for name, weight in trainable(model).items():
            here = precise(weight.detach())
            if f"path/{name}" in trace:
                self._close(trace, name, here)
            fisher[name] = trace.get(f"fisher/{name}", torch.zeros_like(here))
            score[name] = trace.get(f"score/{name}", torch.zeros_like(here))
        return fisher, score

    @override
    def finish(self, over: EndedTraining) -> Params:
        """Return Ω = F + s, both normalised to [0, 1]."""
        return self.combined(over.model, *self.parts(over.model, over.trace))

    def combined(self, model: nn.Module, fisher: Params, score: Params) -> Params:
        """Add Fisher and score. They have no common unit: each is first normalised over all weights."""
        fisher, score = normalised(fisher), normalised(score)
        return {name: (fisher[name] + score[name]).to(w.dtype) for name, w in trainable(model).items()}


def _add(trace: Trace, key: str, value: Tensor) -> None:
    """Add to an entry that may not exist yet; never in place, because a snapshot may share it."""
    trace[key] = trace[key] + value if key in trace else value


ESTIMATORS: dict[EstimatorName, Callable[[], Estimator]] = {
    "mas": MASEstimator,
    "fisher": FisherEstimator,
    "si": SIEstimator,
    "rwalk": RWalkEstimator,
}


def estimator_named(
    name: EstimatorName, convention: Convention = "per-sample", norm: Norm = "squared"
) -> Estimator:
    """Return an estimator by name; the convention and the norm apply to MAS."""
    return MASEstimator(convention, norm) if name == "mas" else ESTIMATORS[name]()

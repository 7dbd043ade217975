"""Look-Ahead continual learning with relative parameter importance: the paper's method."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from holdfast.maths.equations import Strategy, cutoff, modulate, relative_importance, up_bounds
from holdfast.maths.params import Params, layer_of
from holdfast.methods import search
from holdfast.methods.consolidating import AnyImportance
from holdfast.methods.quadratic import Quadratic
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass
class LA(AnyImportance, Quadratic):
    """LA-MAS: look ahead at what a task would change, then hold only what the past needs more than it does.

    Before task k, a throw-away training finds α_la, the importance for the new task. Where the past's share
    ρ = α_{k-1}/(α_{k-1} + α_la) is high the penalty is raised (λ_up), elsewhere lowered (λ_down).

    Equation: L = L_task(θ) + (λ/2) Σ_j α'_j (θ_j - θ_{k-1,j})², ρ = α_{k-1}/(α_{k-1} + α_la + ε), α' =
        λ_up ρ α_{k-1} where ρ > τ, λ_down ρ α_{k-1} elsewhere
    Paper: Suresh, Nkisi-Orji, Wiratunga: relative parameter importance (algorithm 1)
    Cost: E_la·b to look ahead + b to measure + E·b + b to measure the importance
    Two tasks: E1·b1 + b1 + E2_la·b2 + b2 + E2·b2
    """

    down: float | None = setting(
        None, "lambda_down, from 0 to 1; none: the plain importance", least=0, most=1
    )
    up: float = setting(
        1.0, "where lambda_up lies between its bounds 1/tau (0) and lambda_max/lambda (1)", least=0, most=1
    )
    lam_max: float = setting(
        0.0, "lambda beyond which the task cannot be learnt; found by the search", least=0
    )
    fraction: float = setting(
        0.8, "cut-off tau as a fraction of the mean relative importance of a tensor", least=0
    )
    tau: float | None = setting(None, "a fixed cut-off instead", least=0)
    strategy: Strategy = setting("balance", "balance, cf (only hold faster) or kt (only let go)")
    modulate_head: bool = setting(False, "re-weight the head too")
    budget: int = setting(40, "trials of lambda_down and lambda_up", least=1)

    def before_task(self, learner: Learner, task: Task) -> None:
        """Phase 1: look ahead, unless this training has no penalty or a plain one."""
        weights = self.modulated(self.ahead(learner, task)) if self.modulates else self.alpha
        super().before_task(learner, task)
        self.pulls = {name: replace(pull, weights=weights) for name, pull in self.pulls.items()}

    @property
    def modulates(self) -> bool:
        """Whether a training with these hyper-parameters weighs the past anew."""
        return bool(self.alpha) and 0 < self.lam < math.inf and self.down is not None

    def trains_as(self) -> dict[str, Any] | None:
        """The λ search is plain MAS."""
        return None if self.modulates else super().trains_as()

    def modulated(self, ahead: Params) -> Params:
        """α', tensor by tensor: equation 5. What is not modulated is held by α_{k-1} as it is."""
        weights = dict(self.alpha)
        for name, rho, tau in self.relative(ahead):
            lowest, highest = up_bounds(tau, self.lam, self.lam_max or self.lam)
            up = lowest + self.up * (highest - lowest)
            weights[name] = modulate(self.alpha[name], rho, tau, up, self.down or 0.0, self.strategy)
        return weights

    def relative(self, ahead: Params) -> Iterator[tuple[str, Tensor, float]]:
        """ρ and τ of every tensor that is modulated: equation 4. The head is left out by default."""
        for name, past in self.alpha.items():
            if self.modulate_head or not name.startswith("head."):
                rho = relative_importance(past, ahead[name])
                yield name, rho, cutoff(rho, self.fraction) if self.tau is None else self.tau

    def by_layer(self, ahead: Params) -> dict[str, float]:
        """The mean ρ of each layer: what the past needs more than the task at hand, at a glance."""
        layers: dict[str, list[Tensor]] = {}
        for name, rho, _ in self.relative(ahead):
            layers.setdefault(layer_of(name), []).append(rho.flatten())
        return {layer: round(float(torch.cat(parts).mean()), 4) for layer, parts in layers.items()}

    def spread(self, ahead: Params) -> dict[str, dict[str, Any]]:
        """How ρ is spread in each tensor, in twentieths from 0 to 1, and where τ cuts: for the report."""
        return {
            name: {
                "bins": torch.histc(rho.float(), bins=20, min=0, max=1).int().tolist(),
                "mean": round(float(rho.mean()), 4),
                "tau": round(float(tau), 4),
            }
            for name, rho, tau in self.relative(ahead)
        }

    def plain(self, gold: Trial, lam: float) -> Choice:
        """λ is searched with the plain importance, whatever the previous task ended with."""
        return super().plain(gold, lam) | {"down": None}

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """Algorithm 1: learning rate, λ with the plain importance, then λ_down and λ_up to match it."""
        plain = yield from super().search(learner, task)
        lr, lam = plain.trial.choice["lr"], plain.trial.choice["lam"]
        if not self.alpha or lam == 0 or math.isinf(lam):
            return plain  # no penalty to modulate: the main phase is the plain training
        # What a strategy does not look at is not searched: a trial with the same choice is not made again.
        unused: Choice = {"cf": {"down": 1.0}, "kt": {"up": 1.0}}.get(self.strategy, {})
        own = {name: getattr(self, name) for name in ("down", "up", "lam_max") if name in learner.fixed}
        fixed = unused | own
        lam_max: float = fixed.get("lam_max") or plain.notes.get("lam_max") or self.lam_max or lam

        def at(down: float, up: float) -> Choice:
            return {"lr": lr, "lam": lam, "lam_max": lam_max, "down": down, "up": up} | fixed

        with self.trying({"lr": lr}):
            ahead = self.ahead(learner, task)
        notes = plain.notes | {"plain": plain.trial.score, "lam_max": lam_max, "rho": self.by_layer(ahead)}
        notes["spread"] = self.spread(ahead)
        room = self.strategy != "kt" and any(
            up_bounds(tau, lam, lam_max)[0] < lam_max / lam for _, _, tau in self.relative(ahead)
        )
        path: search.Path = partial(search.paper_path, budget=self.budget, up_matters=room)
        if learner.settings.loosening == "short":
            path = partial(search.short_path, up_matters=room)
        trial, matched = yield from search.loosen(path, at, plain.trial.score)
        return Decision(trial, notes | {"matched": matched})

"""Look-Ahead continual learning with relative parameter importance: the paper's method, algorithm 1."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.importance.estimators import Estimator, EstimatorName, estimator_named
from holdfast.importance.per_sample import Convention, Norm
from holdfast.importance.relative import Relative, histograms, mean_by_layer, modified, moved_about, relative
from holdfast.maths.equations import Pooling, Strategy, up_bounds
from holdfast.maths.params import Params
from holdfast.methods import knobs, quadratic, search
from holdfast.methods.base import REGULARISER, LearnerView, Method, Plan, StateKind, Training
from holdfast.methods.search import Choice, Decision
from holdfast.steps.proximal import Pull

RAISES = 2  # values of λ_up above 1/τ that plan=stable tries


@dataclass
class LA(Method):
    """LA-MAS: look ahead at what a task needs, then hold the weights that the past needs more.

    Before task k, a throw-away training run finds α_la, the importance for the new task. Where the past's
    share ρ = α_{k-1}/(α_{k-1} + α_la) is high the penalty is raised (λ_up), elsewhere it is lowered (λ_down).

    Equation: L = L_task(θ) + (λ/2) Σ_j α'_j (θ_j - θ_{k-1,j})², ρ = α_{k-1}/(α_{k-1} + α_la + ε), α' =
        λ_up ρ α_{k-1} where ρ > τ, λ_down ρ α_{k-1} elsewhere
    Paper: Suresh, Nkisi-Orji, Wiratunga: relative parameter importance (algorithm 1)
    Cost: E_la·b to look ahead + b to measure + E·b + b to measure the importance
    Two tasks: E1·b1 + b1 + E2_la·b2 + b2 + E2·b2
    Extras: b2, the last consolidation
    Keeps: α, the pooled importance (one number per trainable weight)
    """

    state: ClassVar[dict[str, StateKind]] = quadratic.STATE
    strengths: ClassVar[tuple[str, ...]] = ("lam",)
    cannot: ClassVar[dict[str, str]] = REGULARISER

    lam: float = knobs.lam()
    thr: float | None = knobs.thr()
    penalty: quadratic.PullForm = knobs.penalty()
    pooling: Pooling = knobs.pooling()
    keep: float = knobs.keep()
    importance: EstimatorName = knobs.importance()
    convention: Convention = knobs.convention()
    norm: Norm = knobs.norm()
    down: float | None = setting(None, "lambda_down, from 0 to 1; none: plain importance", least=0, most=1)
    up: float = setting(
        1.0, "m: lambda_up as a share of lambda_max/lambda, never below 1/tau", least=0, most=1
    )
    lam_max: float = setting(
        0.0,
        "lambda_max, from which the upper bound of lambda_up follows; 0: found by the search",
        least=0,
    )
    fraction: float = setting(
        0.8, "cut-off tau as a fraction of the mean relative importance of a tensor", least=0
    )
    tau: float | None = setting(None, "fixed cut-off tau, instead of a fraction", least=0)
    strategy: Strategy = setting("balance", "balance, cf (only raise the penalty) or kt (only lower it)")
    modulate_head: bool = setting(False, "modify the importance of the head too")
    budget: int = setting(
        40, "maximum number of trials of lambda_down and lambda_up (loosening=paper)", least=1
    )

    alpha: Params = field(default_factory=dict, init=False, repr=False)
    tasks_pooled: int = field(default=0, init=False, repr=False)
    trace: Params = field(default_factory=dict, init=False, repr=False)

    # ---- algorithm 1 ------------------------------------------------------------------------------------

    # The learner runs the plan and trains every choice that it yields as `prepare` says. The look-ahead is
    # the plan's own trial without a penalty, so it is trained and measured only once.

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate, for λ with the plain importance, then for λ_down and λ_up.

        The last search ends at the first trial that matches the score of the plain λ. If none does, the
        result is the training run with the plain λ.
        """
        if learner.settings.plan == "stable":
            return (yield from self.stable_plan(learner, task))
        plain = yield from self.plain_plan(learner)
        lr, lam = plain.trial.choice["lr"], plain.trial.choice["lam"]
        if not self.alpha or lam == 0 or math.isinf(lam):
            return plain  # no penalty to modulate: the plain training run is the result
        unused: Choice = {"cf": {"down": 1.0}, "kt": {"up": 1.0}}.get(self.strategy, {})
        own = {name: getattr(self, name) for name in ("down", "up", "lam_max") if name in learner.fixed}
        fixed = unused | own
        # Use λ_max as set, else from this task's search, else (if λ is fixed) from an earlier task's, else λ.
        lam_max: float = fixed.get("lam_max") or plain.notes.get("lam_max") or self.lam_max or lam

        def at(down: float, up: float) -> Choice:
            return {"lr": lr, "lam": lam, "lam_max": lam_max, "down": down, "up": up} | fixed

        among = self.relative_to(quadratic.measured_ahead(learner, task, self.estimator(), lr))
        bounds = [up_bounds(tau, lam, lam_max) for _, tau in among.values()]
        room = self.strategy != "kt" and any(lowest < highest for lowest, highest in bounds)
        path: search.LooseningPath = partial(search.paper_path, budget=self.budget, up_matters=room)
        if learner.settings.loosening == "short":
            path = partial(search.short_path, up_matters=room)
        trial, matched = yield from search.loosen(path, at, plain.trial.score)
        trial = trial if matched else plain.trial
        notes = {"plain": plain.trial.score, "lam_max": lam_max, "rho": mean_by_layer(among)}
        return Decision(trial, plain.notes | notes | {"spread": histograms(among), "matched": matched})

    def stable_plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for λ under α' with λ_down = 1 and λ_up = 1/τ, then raise λ_up as long as thr holds.

        Where no λ holds under α', the plain λ is searched for instead.
        """
        own = {name: getattr(self, name) for name in ("down", "up", "lam_max") if name in learner.fixed}
        ahead = {"down": 1.0, "up": 0.0} | own

        def weights(lr: float) -> Params:
            importance = quadratic.measured_ahead(learner, task, self.estimator(), lr)
            return self.modified_by(importance, lam=1.0, lam_max=1.0, up=0.0, down=1.0)

        found, target = yield from quadratic.stable_plan(self, learner, {"lam": 0.0}, ahead, weights)
        lr, lam = found.trial.choice["lr"], found.trial.choice["lam"]
        if not self.alpha or math.isinf(lam) or "lam" in learner.fixed:
            return found
        if lam == 0:
            return (yield from self.plain_plan(learner))
        importance = quadratic.measured_ahead(learner, task, self.estimator(), lr)
        among = self.relative_to(importance)
        notes = found.notes | {"rho": mean_by_layer(among), "spread": histograms(among)}
        taus = [tau for _, tau in among.values()]
        if not taus or own or self.strategy == "kt":
            return Decision(found.trial, notes)
        lowest = min(up_bounds(tau, lam, lam)[0] for tau in taus)
        ups = [lowest * search.RAISE**j for j in range(1, RAISES + 1)]

        def raised(lam_up: float) -> Choice:  # the largest of them is λ_max/λ
            return {"up": lam_up / ups[-1], "lam_max": search.rounded(lam * ups[-1])}

        merged = quadratic.Merged.of(learner, learner.look_ahead(task, lr))

        def predicted(**factors: float) -> float:
            alpha = self.modified_by(importance, lam=lam, down=1.0, **factors)
            return merged.score(alpha, lam) or 0.0

        base = predicted(lam_max=lam, up=0.0)
        trial = yield from search.raised(
            ups,
            lambda lam_up: found.trial.choice | raised(lam_up),
            target,
            found.trial,
            lambda lam_up: base - predicted(**raised(lam_up)),
        )
        return Decision(trial, notes)

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Phase 1, if `modulates`: look ahead and modify α. Phase 2: train with a pull towards θ_{k-1}."""
        alpha = self.alpha
        if self.modulates:
            assert self.down is not None
            ahead = quadratic.measured_ahead(learner, task, self.estimator(), self.lr)
            lam_max = self.lam_max or self.lam
            alpha = self.modified_by(ahead, lam=self.lam, lam_max=lam_max, up=self.up, down=self.down)
        return quadratic.pulling(self, learner, {"penalty": Pull(learner.start, alpha, self.lam)})

    def modified_by(self, ahead: Params, **factors: float) -> Params:
        """Return α', given α_la, λ, λ_max, m and λ_down."""
        return modified(self.alpha, self.relative_to(ahead), strategy=self.strategy, **factors)

    def relative_to(self, ahead: Params) -> dict[str, Relative]:
        """Return ρ and τ of every modulated tensor; by default the head is not modulated."""
        past = {n: a for n, a in self.alpha.items() if self.modulate_head or not n.startswith("head.")}
        return relative(past, ahead, fraction=self.fraction, tau=self.tau)

    @override
    def evidence(self, learner: LearnerView, task: Task, trained: Params) -> dict[str, float]:
        """Return how far the weights moved that the past needs, and those on both sides of the cut-off."""
        if not self.alpha:
            return {}
        found = {"moved": quadratic.moved(learner.start, self.alpha, trained)}
        if self.modulates:
            ahead = quadratic.measured_ahead(learner, task, self.estimator(), self.lr)
            found |= moved_about(self.relative_to(ahead), learner.start, trained)
        return found

    @override
    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Pool the importance of the new weights with the past's."""
        quadratic.consolidate(self, learner)

    # ---- parts ------------------------------------------------------------------------------------------

    def estimator(self) -> Estimator:
        """Return the importance estimator."""
        return estimator_named(self.importance, self.convention, self.norm)

    def plain_plan(self, learner: LearnerView) -> Plan:
        """Search for λ with the plain importance, even if the previous task ended with a modified one."""
        return quadratic.hold_plan(self, learner, {"lam": 0.0}, {"down": None})

    @property
    def modulates(self) -> bool:
        """Whether a training run with these hyper-parameters modifies the importance."""
        return bool(self.alpha) and 0 < self.lam < math.inf and self.down is not None

    @override
    def shared_as(self) -> dict[str, Any] | None:
        """Share plain pulls, as in the search for λ, unless the estimator observes training."""
        pull = None if self.modulates else quadratic.plain_pull(self)
        return None if pull is None else quadratic.shared_pull(self, LA, pull)

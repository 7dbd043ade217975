"""The quadratic pull towards the previous weights: its training, its importance, its search for λ.

Methods with a pull call these functions. `Quadratic` is the parent of those that differ mainly in the
importance estimator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal, Protocol, Self

from torch import Tensor
from typing_extensions import override

from holdfast.data.batches import Batch
from holdfast.data.tasks import Task
from holdfast.fields import to_json
from holdfast.importance.estimators import EndedTraining, Estimator, Observer
from holdfast.maths import params as P
from holdfast.maths.equations import Pooling, balance, curvature, held, pool, quadratic_penalty
from holdfast.maths.params import Params
from holdfast.methods import knobs, search
from holdfast.methods.base import REGULARISER, LearnerView, Method, Plan, StateKind, Term, Training
from holdfast.methods.search import Choice, Decision, Hold, Target, Trial
from holdfast.models import Output
from holdfast.steps.proximal import Pull, hold_after_step, pull_after_step

PullForm = Literal["loss", "proximal"]
FIRST = 2  # index in `lam_points` of the first λ of plan=stable: 100/(lr max α)
STATE: dict[str, StateKind] = {"alpha": "zeros", "tasks_pooled": "number", "trace": "zeros"}


class Pools(Protocol):
    """A method that pools an importance α over tasks."""

    lr: float
    pooling: Pooling
    keep: float
    alpha: Params
    tasks_pooled: int
    trace: Params
    """Record that the estimator keeps during training; empty between tasks."""

    def estimator(self) -> Estimator:
        """Return the importance estimator."""


class Holds(Pools, Protocol):
    """A method that pulls with strength λ, weighted by that importance."""

    lam: float
    thr: float | None
    penalty: PullForm


# ---- training -------------------------------------------------------------------------------------------


def pulling(
    method: Holds, learner: LearnerView, pulls: Mapping[str, Pull], trace: Params | None = None
) -> Training:
    """Return a `Training` with quadratic pulls in the loss or as proximal steps.

    λ = ∞ fixes the weights with importance above 0. A pull with λ = 0 or without importances is omitted.
    """
    pulls = {name: pull for name, pull in pulls.items() if pull.weights and pull.lam > 0}
    finite = {name: pull for name, pull in pulls.items() if math.isfinite(pull.lam)}
    held = [pull for pull in pulls.values() if math.isinf(pull.lam)]
    in_loss = finite if method.penalty == "loss" else {}
    after_step = [] if method.penalty == "loss" else list(finite.values())
    live, trace = dict(P.trainable(learner.model)), trace or {}

    def term(pull: Pull) -> Term:
        def penalty(batch: Batch, output: Output) -> Tensor:
            return quadratic_penalty(dict(live), pull.anchor, pull.weights, pull.lam)

        return penalty

    def added_gradient(name: str, weight: Tensor) -> Tensor | float:
        return sum((pull.gradient(name, weight) for pull in in_loss.values()), start=0.0)

    return Training(
        method.lr,
        terms={name: term(pull) for name, pull in in_loss.items()},
        around_step=(
            partial(pull_after_step, pulls=after_step),
            partial(hold_after_step, pulls=held),
            # Last, so that it sees where the pulls have left the weights.
            partial(method.estimator().observe, trace=trace, extra=added_gradient),
        ),
        carried={"trace": trace},
    )


def watched(lr: float, estimator: Estimator) -> Training:
    """Return a `Training` with the task loss only, which an estimator may observe."""
    trace: Params = {}
    observe = partial(estimator.observe, trace=trace, extra=lambda name, weight: 0.0)
    return Training(lr, around_step=(observe,), carried={"trace": trace})


def shared_pull(method: Method, owner: type[Method], pull: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what determines a plain pull; None if the class overrides the hooks of its `owner`."""
    hooks = ("prepare", "deployed", "make_head")
    same = all(getattr(type(method), hook) is getattr(owner, hook) for hook in hooks)
    return {"lr": method.lr, **pull} if same else None


def plain_pull(method: Holds) -> dict[str, Any] | None:
    """Return what determines the pull of a method; None if its estimator observes training."""
    if isinstance(method.estimator(), Observer):
        return None
    return {"lam": to_json(method.lam), "form": method.penalty} if method.lam else {}


# ---- importance -----------------------------------------------------------------------------------------


def measured(learner: LearnerView, estimator: Estimator, trace: Params) -> Params:
    """Return the importance of the current weights on the task's training data."""
    passes = learner.batches * estimator.passes(learner.model)
    learner.count("importance", forward=passes, backward=passes)
    ended = EndedTraining(
        learner.model, learner.train, learner.start, trace, learner.settings.batch_size, learner.task_seed
    )
    with learner.model.adapting():  # adapters that are still off may be trained by the next task
        return estimator.finish(ended)


def measured_ahead(learner: LearnerView, task: Task, estimator: Estimator, lr: float) -> Params:
    """Return α_la: the importance for the new task, measured at the look-ahead's weights."""

    def compute() -> Params:
        with learner.using(learner.look_ahead(task, lr)) as state:
            return measured(learner, estimator, state["trace"])

    return learner.once("look-ahead importance", compute, lr=lr)


def consolidate(method: Pools, learner: LearnerView) -> None:
    """Measure the importance for the task and pool it into α, which never includes modified importances."""
    past = method.alpha or P.zeros(learner.start)
    new = measured(learner, method.estimator(), method.trace)
    method.alpha = pool(past, new, method.tasks_pooled, method.pooling, method.keep)
    method.tasks_pooled += 1
    method.trace = {}


# ---- search ---------------------------------------------------------------------------------------------


def hold_plan(method: Holds, learner: LearnerView, off: Choice, rest: Choice | None = None) -> Plan:
    """Search for the learning rate without a hold (gold score), then for the strongest λ that keeps enough.

    On the first task, or if λ is set, there is no search for λ. `rest` are hyper-parameters to set with λ.
    """
    if learner.settings.plan == "stable":
        return (yield from stable_plan(method, learner, off, rest))[0]
    gold: Trial = yield from search.best_rate(learner.rates(), off)

    def at(lam: float) -> Choice:
        return gold.choice | {"lam": float(lam)} | (rest or {})

    if not learner.tasks_seen:
        return Decision(gold, {"gold": gold.score})
    if "lam" in learner.fixed:
        return Decision((yield at(method.lam)), {"gold": gold.score})
    # In the paper's printed setting the whole head is held, so that a strong λ prevents any learning.
    held = learner.settings.head == "preallocated" and learner.settings.logits == "all"
    printed = held and learner.scenario == "class-incremental"
    return (
        yield from search.strongest_lam(
            lam_points(method.alpha, gold),
            at,
            gold,
            accept=search.keeps_enough(gold, search.share_to_keep(method.thr, learner.scenario)),
            previous=method.lam if method.tasks_pooled > 1 else 0.0,
            movement=None if printed else partial(movement, learner.start, method.alpha),
            settings=learner.settings,
        )
    )


def stable_plan(
    method: Holds,
    learner: LearnerView,
    off: Choice,
    rest: Choice | None = None,
    weights: Callable[[float], Params] | None = None,
) -> Generator[Choice, Trial, tuple[Decision, Target]]:
    """Search as `plan=stable`; pulls are proximal steps unless their form is set.

    In the loss, Adam lets weights jitter at any strength, and SGD diverges at a large one. The search starts
    where a quadratic model of the task loss predicts the edge. `weights` are those of the pull at a learning
    rate, by default the plain importance.
    """
    form: Choice = {} if "penalty" in learner.fixed else {"penalty": "proximal"}

    def hold(gold: Trial, target: Target) -> Hold | Choice:
        def at(lam: float) -> Choice:
            return gold.choice | form | {"lam": float(lam)} | (rest or {})

        if "lam" in learner.fixed:
            return at(method.lam)
        alpha = weights(gold.choice["lr"]) if weights else method.alpha
        merged = Merged.of(learner, gold)
        level = merged.level(alpha)
        if not level:  # nothing has moved that the past needs
            return Hold(at, lam_points(method.alpha, gold)[FIRST], limit=at(math.inf))
        first, still = search.foreseen(level, lambda lam: merged.score(alpha, lam), target.least)
        return Hold(at, first, limit=at(math.inf), limit_first=still)

    return (yield from search.stable(learner, method.thr, off, hold))


@dataclass(frozen=True)
class Merged:
    """Predictions of what a pull would cost, from a training run without one and no further training."""

    learner: LearnerView
    ahead: Params
    """The weights of the training run without a pull."""
    h: Params
    """The curvature of the task loss on the way there."""

    @classmethod
    def of(cls, learner: LearnerView, gold: Trial) -> Self:
        """Return the predictions that follow from a training run without a pull."""
        trained = gold.read()
        ahead = trained["weights"]
        return cls(learner, ahead, curvature(trained.get("squares", {}), learner.start, ahead))

    def level(self, alpha: Params) -> float:
        """Return the λ at which the pull costs what the task gains; 0 if nothing has moved that it holds."""
        return balance(self.h, alpha, self.learner.start, self.ahead)

    def score(self, alpha: Params, lam: float) -> float | None:
        """Return the predicted validation score under a pull; None if the head is not trained."""
        return self.learner.predicted(held(self.learner.start, self.ahead, alpha, self.h, lam))


def lam_points(alpha: Params, gold: Trial) -> list[float]:
    """Return the candidates for λ_max: (1/(lr max α)) 10^i, i = 0..8."""
    largest = max(float(value.max()) for value in alpha.values() if value.numel())
    return [search.rounded(10**i / (gold.choice["lr"] * largest or 1.0)) for i in range(9)]


def movement(start: Params, alpha: Params, trial: Trial) -> float:
    """Return Σ α (θ - θ_{k-1})²: how far training moved the weights that the past needs."""
    return 2 * float(quadratic_penalty(trial.params, start, alpha, 1.0))


def moved(start: Params, alpha: Params, trained: Params) -> float:
    """Return the same for trained weights, in double precision; 0 if there is no past."""
    return sum(
        float((value.double() * (trained[name] - start[name]).double().square()).sum())
        for name, value in alpha.items()
    )


# ---- the shared parent ----------------------------------------------------------------------------------


@dataclass
class Quadratic(Method):
    """Task loss + (λ/2) Σ α (θ - θ_{k-1})²: weights that the past needs are pulled back to their old values.

    Equation: L = L_task(θ) + (λ/2) Σ_j α_j (θ_j - θ_{k-1,j})²
    Cost: E·b + b to measure the importance
    Two tasks: E1·b1 + b1 + E2·b2
    Extras: b2, the last consolidation
    Keeps: α, the pooled importance (one number per trainable weight)
    """

    state: ClassVar[dict[str, StateKind]] = STATE
    strengths: ClassVar[tuple[str, ...]] = ("lam",)
    cannot: ClassVar[dict[str, str]] = REGULARISER

    lam: float = knobs.lam()
    thr: float | None = knobs.thr()
    penalty: PullForm = knobs.penalty()
    pooling: Pooling = knobs.pooling()
    keep: float = knobs.keep()

    alpha: Params = field(default_factory=dict, init=False, repr=False)
    tasks_pooled: int = field(default=0, init=False, repr=False)
    trace: Params = field(default_factory=dict, init=False, repr=False)

    def estimator(self) -> Estimator:
        """Return the importance estimator."""
        raise NotImplementedError

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Pull towards θ_{k-1}, weighted by the past's importance."""
        return pulling(self, learner, {"penalty": Pull(learner.start, self.alpha, self.lam)})

    @override
    def evidence(self, learner: LearnerView, task: Task, trained: Params) -> dict[str, float]:
        """Return how far the weights moved that the past needs."""
        return {"moved": moved(learner.start, self.alpha, trained)} if self.alpha else {}

    @override
    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Measure the importance of the new weights and pool it with the past's."""
        consolidate(self, learner)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate, then for the strongest λ that keeps enough of the new task."""
        return hold_plan(self, learner, dict.fromkeys(self.strengths, 0.0))

    @override
    def shared_as(self) -> dict[str, Any] | None:
        """Share plain pulls, which are the same under every estimator that does not observe training."""
        pull = plain_pull(self)
        return None if pull is None else shared_pull(self, Quadratic, pull)

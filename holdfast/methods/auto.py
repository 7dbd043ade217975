"""Stay frozen unless training clearly pays, within a budget of seconds."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.heads import ClosedFormHead, Head
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.methods import knobs, over_slda, search
from holdfast.methods.base import LearnerView, Plan
from holdfast.methods.closed_form import COMPUTED
from holdfast.methods.la import LA
from holdfast.methods.quadratic import PullForm
from holdfast.methods.search import Decision, Trial
from holdfast.methods.slda import slda_head
from holdfast.models import Adapters
from holdfast.settings import Settings

PROBE = 32  # sentences on which the speed of this machine is measured
TRAINING = 3  # a training step takes about as long as three forward passes


@dataclass
class Auto(LA):
    """slda while the frozen encoder is good enough, la+slda where one look-ahead shows that it is not.

    The trunk moves only if the frozen head's cross-validated score on the task is lower, by more than a
    standard error, than thr times the score of one look-ahead under the same head. Training runs that do not
    fit in the budget of seconds are not tried; the decision then says so.

    Equation: frozen if F_cv + SE >= thr · F_la, otherwise as la+slda
    Paper: the paper's threshold rule, made cheap
    Cost: b, one forward pass over each sentence, if the frozen encoder is good enough; else as la+slda
    Two tasks: b1 + b2
    Extras: none while frozen; otherwise those of la+slda
    Keeps: n_k, s_k and S_k of every label; once the trunk has moved also α
    """

    cannot: ClassVar[dict[str, str]] = {}
    reduces_to_seq: ClassVar[bool | str] = COMPUTED
    adapters: ClassVar[Adapters] = "where possible"

    penalty: PullForm = knobs.penalty("proximal")
    importance: Literal["mas"] = setting("mas", "only mas needs neither labels nor a trained head")
    shrinkage: float | None = knobs.shrinkage()
    weighting: Weighting = knobs.weighting()
    scatter: Scatter = knobs.scatter()
    seconds: float = setting(60.0, "budget in seconds for training runs on one task; 0: stay frozen", least=0)

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        return slda_head(self, width, seed)

    @property
    @override
    def moves(self) -> bool:
        return over_slda.moves(self)

    @override
    def plain_plan(self, learner: LearnerView) -> Plan:
        """Search for λ with the plain importance, as mas+slda does."""
        return over_slda.hold_plan(self, learner, {"down": None})

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Stay frozen or look ahead once; if that gains enough, search as la+slda does while time allows."""
        began = time.monotonic()
        still: Trial = yield over_slda.STILL

        def stay(why: str, **notes: float) -> Decision:
            return Decision(still, {"chose": "frozen", "why": why, **notes})

        if not over_slda.can_train(task):
            return stay("one label or no validation sentences: nothing to train on")
        frozen, error = cross_validated(learner, still)
        share = search.share_to_keep(self.thr, learner.scenario)
        if frozen + error >= share:
            return stay("training could not improve on it enough", frozen=frozen)
        if not learner.model.adaptable:
            return stay("this encoder has no adapters to train", frozen=frozen)
        each = seconds_of_a_training(learner, task)
        if time.monotonic() - began + each > self.seconds:
            return stay(f"a look-ahead would take about {each:.0f} s, over the budget", frozen=frozen)
        over_slda.stand_in(self, learner)
        rates = sorted(learner.rates())
        gold = yield {"lr": rates[len(rates) // 2], "lam": 0.0}
        notes = {"frozen": frozen, "gold": gold.score}
        if frozen + error >= share * gold.score:
            return stay("a look-ahead did not improve on it enough", **notes)
        decision = yield from self.within(began, each, super().plan(learner, task), still, gold)
        why = f"a look-ahead reached {100 * gold.score:.1f} where frozen features reach {100 * frozen:.1f}"
        if math.isfinite(decision.trial.choice["lam"]):
            return Decision(decision.trial, decision.notes | notes | {"chose": "moving features", "why": why})
        late = "budget" in decision.notes.get("flags", ())
        return stay("out of time" if late else "frozen features keep enough of the validation score", **notes)

    def within(self, began: float, longest: float, plan: Plan, still: Trial, gold: Trial) -> Plan:
        """Run a search while a training run as long as the longest so far fits in the budget.

        If time runs out, take the best run that holds the past and beats the unchanged trunk. If there is
        none, take the look-ahead on the first task, the unchanged trunk on later ones.
        """
        made: list[Trial] = []
        try:
            choice = next(plan)
            while True:
                started = time.monotonic()
                if started - began + longest > self.seconds:
                    break
                made.append((yield choice))
                longest = max(longest, time.monotonic() - started)
                choice = plan.send(made[-1])
        except StopIteration as end:
            decision: Decision = end.value
            return decision
        held = [trial for trial in made if trial.choice["lam"] > 0 and trial.score > still.score]
        first = not self.tasks_pooled  # there is no past to lose
        best = max(held, key=lambda trial: trial.score, default=gold if first else still)
        return Decision(best, {"flags": ["budget"]})

    @override
    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Measure importance, which costs as much as an epoch, only if the trunk moves or α exists."""
        if self.moves or self.alpha:
            super().consolidate(learner, task)


def cross_validated(learner: LearnerView, still: Trial) -> tuple[float, float]:
    """Return the frozen head's cross-validated score on the training sentences, and its standard error."""
    with learner.using(still):
        head = learner.model.head
        assert isinstance(head, ClosedFormHead)
        return head.cross_validated(learner.vectors.before("train"))


def seconds_of_a_training(learner: LearnerView, task: Task) -> float:
    """Estimate the seconds of a training run of all epochs from the time to embed a few sentences."""
    texts = task.train.texts[:PROBE]
    started = time.monotonic()
    learner.model.embed(texts)
    each = (time.monotonic() - started) / len(texts)
    return TRAINING * each * len(task.train) * learner.settings.epochs

"""Stay frozen unless it is clear that learning features pays, within a budget of seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from holdfast.methods.la_slda import LASLDA
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.models import Adapters
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner

PROBE = 32  # sentences that tell how fast this machine is
TRAINING = 3  # a training step takes about as long as three looks


@dataclass
class Auto(LASLDA):
    """slda while the frozen encoder is good enough, la+slda where one look-ahead shows that it is not.

    The frozen head's cross-validated score on the task is compared with thr times the score of one look-ahead
    training under the same head. Only if it is lower by more than a standard error does the trunk move. What
    the budget of seconds does not allow is not tried, and it says so.

    Equation: frozen if F_cv + SE >= thr · F_la, otherwise as la+slda
    Paper: the paper's threshold rule, made cheap
    Cost: b, one look at each sentence, where the frozen encoder is good enough; otherwise as la+slda
    Two tasks: b1 + b2
    Extras: none while frozen; otherwise those of la+slda
    Keeps: n_k, s_k and S_k of every label; once the trunk has moved also α
    """

    adapters: ClassVar[Adapters] = "where possible"

    seconds: float = setting(60.0, "budget of seconds for trainings on one task; 0: stay frozen", least=0)

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """Stay, or look ahead once and decide; then the search of la+slda as long as time allows."""
        began = time.monotonic()
        still: Trial = yield self.still

        def stay(why: str, **notes: float) -> Decision:
            return Decision(still, {"chose": "frozen", "why": why, **notes})

        if len(task.labels) < 2 or not len(task.valid):
            return stay("one label or no validation sentences: nothing to train on")
        with learner.using(learner.trial(task, self.still)):
            frozen, error = learner.features.cross_validated(task)
        if frozen + error >= self.share(learner):
            return stay("no training could be better by enough", frozen=frozen)
        if not learner.model.adaptable:
            return stay("this encoder has no adapters to train", frozen=frozen)
        each = self.seconds_of_a_training(learner, task)
        if time.monotonic() - began + each > self.seconds:
            return stay(f"a look-ahead would take about {each:.0f} s, over the budget", frozen=frozen)
        self.stand_in(learner)
        rates = sorted(learner.rates())
        gold = yield {"lr": rates[len(rates) // 2], "lam": 0.0}
        notes = {"frozen": frozen, "gold": gold.score}
        if frozen + error >= self.enough(learner, gold):
            return stay("a look-ahead was not better by enough", **notes)
        decision = yield from self.within(began, each, self.moving(learner, task), still, gold)
        why = f"a look-ahead reached {100 * gold.score:.1f} where frozen features reach {100 * frozen:.1f}"
        if math.isfinite(decision.trial.choice["lam"]):
            return Decision(decision.trial, decision.notes | notes | {"chose": "moving features", "why": why})
        late = "budget" in decision.notes.get("flags", ())
        return stay("out of time" if late else "on validation sentences it does as well", **notes)

    def within(
        self,
        began: float,
        longest: float,
        plan: Generator[Choice, Trial, Decision],
        still: Trial,
        gold: Trial,
    ) -> Generator[Choice, Trial, Decision]:
        """Follow a search while the longest training so far still fits in the budget.

        Then take the best training that holds on to the past, if it beats a trunk that stays.
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

    def seconds_of_a_training(self, learner: Learner, task: Task) -> float:
        """An estimate from the speed of a few sentences."""
        texts = task.train.texts[:PROBE]
        started = time.monotonic()
        learner.model.embed(texts)
        each = (time.monotonic() - started) / len(texts)
        return TRAINING * each * len(task.train) * learner.settings.epochs

    def after_task(self, learner: Learner, task: Task) -> None:
        """Importance costs as much as an epoch: it is measured only if the trunk has ever moved."""
        if self.moves or self.alpha:
            super().after_task(learner, task)

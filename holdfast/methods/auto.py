"""Stay frozen unless training clearly pays, within a budget of sentences to train on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.heads import ClosedFormHead, Head, LiftedHead
from holdfast.heads.discriminant import Weighting
from holdfast.heads.sums import Scatter
from holdfast.methods import knobs, over_slda, search
from holdfast.methods.base import LearnerView, Plan
from holdfast.methods.closed_form import COMPUTED
from holdfast.methods.la import LA
from holdfast.methods.quadratic import PullForm
from holdfast.methods.search import Decision, Trial
from holdfast.methods.slda import slda_head
from holdfast.models import Adapters, Reading
from holdfast.settings import Settings


@dataclass
class Auto(LA):
    """A closed-form head that chooses itself, over an encoder that moves only where a look-ahead pays.

    The head is a discriminant on the last three layers, normalised, and on random features of them. Left-out
    sentences of every lesson choose its columns and its shrinkage. The trunk moves only if the score of
    left-out sentences on the frozen encoder is lower, by more than a standard error, than thr times the score
    of one look-ahead. Training runs beyond the budget are not tried; the decision then says so.

    Once it knows labels, a lesson with new ones does not move the trunk: no validation could see what that
    does to the others.

    Equation: frozen if F_left_out + SE >= thr · F_la - SE_la, otherwise as la+slda
    Paper: the paper's threshold rule, made cheap; the head after Hayes, Kanan 2020 and McDonnell et al. 2023
    Cost: b, one forward pass over each sentence, if the frozen encoder is good enough; else as la+slda
    Two tasks: b1 + b2
    Extras: none while frozen; otherwise those of la+slda
    Keeps: n_k and s_k of every label, one S for all (scatter=per-class: one for each label); once the trunk
        has moved also α
    """

    cannot: ClassVar[dict[str, str]] = {}
    reduces_to_seq: ClassVar[bool | str] = COMPUTED
    adapters: ClassVar[Adapters] = "where possible"

    penalty: PullForm = knobs.penalty("proximal")
    importance: Literal["mas"] = setting("mas", "only mas needs neither labels nor a trained head")
    shrinkage: float | None = knobs.shrinkage()
    weighting: Weighting = knobs.weighting()
    scatter: Scatter = knobs.scatter("pooled")
    layers: int = knobs.layers(3)
    normalise: bool = knobs.normalise(True)
    columns: int = setting(
        2880, "columns of the scatter: the vector and random features of it; 0: no random features", least=0
    )
    sentences: int = setting(
        12_000, "budget: sentences that training runs on one task may read, over all epochs", least=0
    )

    @property
    @override
    def reading(self) -> Reading:
        return Reading(self.layers, self.normalise)

    @override
    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        if not self.columns and not self.normalise:  # states of earlier versions keep the head they had
            return slda_head(self, width, seed)
        return LiftedHead(
            width,
            normalised=self.normalise,
            columns=self.columns,
            seed=seed,
            shrinkage=self.shrinkage,
            weighting=self.weighting,
            scatter=self.scatter,
        )

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
        """Stay frozen or look ahead once; if that gains enough, search as la+slda does within the budget."""
        still: Trial = yield over_slda.STILL

        def stay(why: str, **notes: float) -> Decision:
            return Decision(still, {"chose": "frozen", "why": why, **notes})

        if not over_slda.can_train(task):
            return stay("no sentences were left out" if len(task.labels) > 1 else "this lesson has one label")
        frozen, error = left_out(learner, still)
        share = search.share_to_keep(self.thr, learner.scenario)
        if frozen + error >= share:
            return stay("training could not improve on it enough", frozen=frozen)
        if learner.tasks_seen and learner.scenario == "class-incremental":
            why = "new labels: training for them would move what is known of the others"
            return stay(why, frozen=frozen)
        if not learner.model.adaptable:
            return stay("this encoder has no adapters to train", frozen=frozen)
        each = learner.settings.epochs * len(task.train)
        if each > self.sentences:
            why = f"a look-ahead would read up to {each:,} sentences, over the budget of {self.sentences:,}"
            return stay(why, frozen=frozen)
        over_slda.stand_in(self, learner)
        rates = sorted(learner.rates())
        gold = yield {"lr": rates[len(rates) // 2], "lam": 0.0}
        notes = {"frozen": frozen, "gold": gold.score}
        if frozen + error >= share * gold.score - doubt(gold.score, len(task.valid)):
            return stay("a look-ahead did not improve on it enough", **notes)
        decision = yield from self.within(each, super().plan(learner, task), still, gold)
        why = f"a look-ahead reached {100 * gold.score:.1f} where frozen features reach {100 * frozen:.1f}"
        if math.isfinite(decision.trial.choice["lam"]):
            return Decision(decision.trial, decision.notes | notes | {"chose": "moving features", "why": why})
        late = "budget" in decision.notes.get("flags", ())
        return stay(
            "out of budget" if late else "frozen features keep enough of the validation score", **notes
        )

    def within(self, each: int, plan: Plan, still: Trial, gold: Trial) -> Plan:
        """Run a search while another training run fits in the budget; the look-ahead has used one already.

        At the end of the budget, take the best run that holds the past and beats the unchanged trunk. If
        there is none, take the look-ahead on the first task, the unchanged trunk on later ones.
        """
        made: list[Trial] = []
        try:
            choice = next(plan)
            while (len(made) + 2) * each <= self.sentences:
                made.append((yield choice))
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


def doubt(score: float, n: int) -> float:
    """Return the standard error of a score on n sentences, counting two more that are half right."""
    share = (n * score + 1) / (n + 2)
    return math.sqrt(share * (1 - share) / (n + 2))


def left_out(learner: LearnerView, still: Trial) -> tuple[float, float]:
    """Return the frozen head's score on left-out training sentences, and its standard error."""
    if "left_out" in still.fit:
        return still.fit["left_out"], still.fit["left_out_error"]
    with learner.using(still):
        head = learner.model.head
        assert isinstance(head, ClosedFormHead)
        return head.cross_validated(learner.vectors.before("train"))

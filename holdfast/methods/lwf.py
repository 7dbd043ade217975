"""LwF: distil the answers of the previous model."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor
from typing_extensions import override

from holdfast.data.batches import Batch
from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.maths import params as P
from holdfast.maths.losses import distillation
from holdfast.maths.params import Params, eval_mode
from holdfast.methods import knobs, search
from holdfast.methods.base import REGULARISER, LearnerView, Method, Plan, Training
from holdfast.methods.search import Choice, Decision, Hold, Target, Trial
from holdfast.models import Output

START = 10.0  # start of the search for λ: no importance sets a scale


@dataclass(frozen=True)
class Teacher:
    """A frozen model, the outputs that it teaches, and its strength."""

    params: Params
    rows: list[int]
    lam: float

    @torch.no_grad()
    def answers(self, learner: LearnerView, batch: Batch) -> Tensor:
        """Return the raw logits, without dropout and without the prior of the balanced softmax."""
        learner.count("teacher", forward=1, backward=0)
        with eval_mode(learner.model):
            logits: Tensor = P.predict(learner.model, self.params, batch.without_loss()).logits
        return logits[:, self.rows]


def distilling(
    lr: float, learner: LearnerView, teachers: Mapping[str, Teacher], temperature: float
) -> Training:
    """Return a `Training` with one distillation term for each teacher."""

    def term(teacher: Teacher) -> Callable[[Batch, Output], Tensor]:
        def taught(batch: Batch, output: Output) -> Tensor:
            answers = teacher.answers(learner, batch)
            student = output.logits[:, teacher.rows]
            return teacher.lam * distillation(student, answers, batch.labels, temperature)

        return taught

    return Training(lr, terms={name: term(teacher) for name, teacher in teachers.items()})


def lwf_plan(method: LwF, learner: LearnerView, off: Choice) -> Plan:
    """Search for the learning rate, then, if there is a past and λ is not set, for λ downwards.

    The search for λ starts at the value of the previous task, or at 10 if that is 0. With plan=stable it
    starts at 10 and goes both ways.
    """
    if learner.settings.plan == "stable":
        return (yield from search.stable(learner, method.thr, off, partial(_strengths, method, learner)))[0]
    gold: Trial = yield from search.best_rate(learner.rates(), off)

    def at(lam: float) -> Choice:
        return gold.choice | {"lam": float(lam)}

    if not learner.tasks_seen:
        return Decision(gold, {"gold": gold.score})
    if "lam" in learner.fixed:
        return Decision((yield at(method.lam)), {"gold": gold.score})
    found = yield from search.strongest(
        method.lam or START,
        at,
        search.keeps_enough(gold, search.share_to_keep(method.thr, learner.scenario)),
        gold,
        **search.lam_grid(learner.settings),
    )
    return Decision(found.trial, {"gold": gold.score, "flags": list(found.flags)})


def _strengths(method: LwF, learner: LearnerView, gold: Trial, target: Target) -> Hold | Choice:
    def at(lam: float) -> Choice:
        return gold.choice | {"lam": float(lam)}

    return at(method.lam) if "lam" in learner.fixed else Hold(at, START)


@dataclass
class LwF(Method):
    """Learning without Forgetting: on the new sentences, keep the answers of the previous model.

    The teacher is θ_{k-1}, where every training run starts, so nothing has to be stored.

    Equation: L = L_task(θ) + λ KD(z, z_{k-1}), KD = -Σ_c q_c(z°) log q_c(z), q = softmax(z/T)
    Paper: Li, Hoiem, ECCV 2016
    Cost: E·(b + b), one more forward pass for the teacher
    Two tasks: E1·b1 + E2·(b2 + b2)
    """

    strengths: ClassVar[tuple[str, ...]] = ("lam",)
    cannot: ClassVar[dict[str, str]] = REGULARISER

    lam: float = setting(0.0, "strength of the distillation; 0: none", least=0, below=math.inf)
    thr: float | None = knobs.thr()
    temperature: float = setting(2.0, "temperature T of both softmaxes", least=1e-6)
    outputs: Literal["past", "all"] = setting(
        "past", "distilled outputs: of labels seen before the task, or all (the authors' released code)"
    )

    @override
    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Add the distillation if there is a past and λ > 0."""
        return distilling(self.lr, learner, self.teachers(learner), self.temperature)

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for the learning rate, then for the strongest λ that keeps enough of the new task."""
        return lwf_plan(self, learner, dict.fromkeys(self.strengths, 0.0))

    def teachers(self, learner: LearnerView) -> dict[str, Teacher]:
        """Return the previous model as a teacher, if there is a past and λ > 0."""
        if not learner.past_rows or self.lam == 0:
            return {}
        rows = self.taught(learner, learner.past_rows)
        return {"distillation": Teacher(learner.start, rows, self.lam)}

    def taught(self, learner: LearnerView, rows: list[int]) -> list[int]:
        """Return these rows, or all rows of the head with outputs=all."""
        return rows if self.outputs == "past" else list(range(len(learner.model.head.labels)))

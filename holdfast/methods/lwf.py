"""LwF: the previous model teaches what it would have answered."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from holdfast.importance.per_sample import eval_mode
from holdfast.maths import params as P
from holdfast.maths.losses import distillation
from holdfast.maths.params import Params
from holdfast.methods.strength import Strength
from holdfast.settings import setting

if TYPE_CHECKING:
    from holdfast.data.batches import Batch
    from holdfast.data.tasks import Task
    from holdfast.learning.learner import Learner


@dataclass(frozen=True)
class Teacher:
    """A frozen model, the outputs it teaches, and how strongly."""

    params: Params
    rows: list[int]
    lam: float


@dataclass
class LwF(Strength):
    """Learning without Forgetting: on the new sentences, keep the answers of the previous model.

    The teacher is θ_{k-1}, where every training starts: nothing of it has to be stored.

    Equation: L = L_task(θ) + λ KD(z, z_{k-1}), KD = -Σ_c q_c(z°) log q_c(z), q = softmax(z/T)
    Paper: Li, Hoiem, ECCV 2016
    Cost: E·(b + b), one more forward for the teacher
    Two tasks: E1·b1 + E2·(b2 + b2)
    """

    lam: float = setting(0.0, "strength of the distillation; 0 is none", least=0, below=math.inf)
    temperature: float = setting(2.0, "T, which softens both answers", least=1e-6)
    outputs: Literal["past", "all"] = setting(
        "past", "outputs that are taught: of labels seen before the task, or all (the authors' released code)"
    )

    def before_task(self, learner: Learner, task: Task) -> None:
        """From the second task on there is a teacher."""
        self.model, self.count = learner.model, learner.count
        self.teachers = {}
        if learner.past_rows and self.lam > 0:
            rows = self.taught(learner, learner.past_rows)
            self.teachers["distillation"] = Teacher(learner.start, rows, self.lam)

    def taught(self, learner: Learner, rows: list[int]) -> list[int]:
        """These outputs, or all of the head if so set."""
        return rows if self.outputs == "past" else list(range(len(learner.model.head.labels)))

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Teachers answer without dropout, from raw logits: the balanced softmax's prior is not theirs."""
        answers = {name: self.answer(teacher, batch) for name, teacher in self.teachers.items()}
        output = model(batch)
        terms = {"task": output.loss}
        for name, teacher in self.teachers.items():
            student = output.logits[:, teacher.rows]
            terms[name] = teacher.lam * distillation(student, answers[name], batch.labels, self.temperature)
        return terms

    @torch.no_grad()
    def answer(self, teacher: Teacher, batch: Batch) -> Tensor:
        """The teacher's logits of the outputs it teaches."""
        self.count("teacher", forward=1, backward=0)
        with eval_mode(self.model):
            logits: Tensor = P.predict(self.model, teacher.params, batch.without_loss()).logits
        return logits[:, teacher.rows]

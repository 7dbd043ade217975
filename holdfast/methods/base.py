"""Method: five hooks around one training loop, each with a default.

The base class is sequential fine-tuning (SEQ), so every method whose strengths are 0 has an exact reference.
To write a method, read this file and one example: `mas.py` with its parent in `quadratic.py`, or `la.py`.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from holdfast.data.batches import Batch, Examples
from holdfast.data.tasks import Scenario, Stream, Task
from holdfast.fields import check, check_all, fields_of, from_json, setting, to_json
from holdfast.heads import Head, LinearHead, Vectors
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.models import Adapters, Classifier, Output
from holdfast.settings import Settings

Plan = Generator[Choice, Trial, Decision]
Weights = dict[str, nn.Parameter]
Term = Callable[[Batch, Output], Tensor]
StateKind = Literal["weights", "zeros", "fixed", "number"]
"""How a piece of state grows with new head rows: by their values, by zeros, or not at all."""

FACT = re.compile(r"^(Equation|Paper|Cost|Two tasks|Extras|Keeps): (.*(?:\n +.*)*)", re.MULTILINE)


def _run(model: nn.Module, batch: Batch) -> Output:
    output: Output = model(batch)
    return output


@dataclass(frozen=True)
class Training:
    """One training as a value: what is minimised, by which steps, and the state that comes with it."""

    lr: float
    terms: Mapping[str, Term] = field(default_factory=dict)
    """Terms added to the task loss, by name."""
    around_step: tuple[Callable[[Optimizer, Weights], None], ...] = ()
    """Each puts hooks on the optimiser's step, in this order: pulls, projections, observers."""
    optimizer: Callable[[Weights], Optimizer] | None = None
    """By default AdamW without weight decay."""
    forward: Callable[[nn.Module, Batch], Output] = _run
    """How a batch is run through the model."""
    begin: Params | None = None
    """The weights to begin with, if not those that the task starts from."""
    carried: dict[str, Params] = field(default_factory=dict)
    """State that changes while training goes on. It is restored with the weights of the best epoch."""

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the loss, to be summed; "task" is the task loss."""
        output = self.forward(model, batch)
        assert output.loss is not None
        return {"task": output.loss} | {name: term(batch, output) for name, term in self.terms.items()}

    def make_optimizer(self, weights: Weights) -> Optimizer:
        """Return the optimiser of these weights, with everything that happens around its step."""
        if self.optimizer is not None:
            optimizer = self.optimizer(weights)
        else:
            optimizer = AdamW(weights.values(), self.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        for attach in self.around_step:
            attach(optimizer, weights)
        return optimizer


class LearnerView(Protocol):
    """What a method sees of its learner, which is about to learn, or is learning, a task."""

    model: Classifier
    settings: Settings
    scenario: Scenario
    fixed: frozenset[str]
    """Hyper-parameters the user has set: the search leaves them alone."""
    tasks_seen: int
    past_rows: list[int]
    """Rows of the head whose labels were taught before this task."""

    @property
    def start(self) -> Params:
        """θ_{k-1}: the weights that every training of the task starts from, with rows for new labels."""

    @property
    def train(self) -> Examples:
        """The task's training sentences."""

    @property
    def batches(self) -> int:
        """The number of batches in one pass over them."""

    @property
    def vectors(self) -> Vectors:
        """The task's sentence vectors."""

    @property
    def task_seed(self) -> int:
        """The seed of everything random in this task."""

    def rates(self, grid: tuple[float, ...] | None = None) -> tuple[float, ...]:
        """Return the learning rates to try: a grid, or the one rate that the user has fixed."""

    def look_ahead(self, task: Task, lr: float) -> Trial:
        """Train with the task loss only: where the task alone would take the weights."""

    def using(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        """Run a block with the weights a trial ended with; gives the method's state at its end."""

    def once(self, what: str, compute: Callable[[], Params], *, lr: float | None = None) -> Params:
        """Do work that trials (of one learning rate) share once, and forget it when the task ends."""

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Count passes over the data, in batches."""

    def start_here(self) -> None:
        """Let every training of the task start from what the model and the method are now."""


@dataclass
class Method:
    """Sequential fine-tuning: train on each task as it comes, hold on to nothing.

    Equation: L = L_task(θ)
    Paper: the lower baseline of every continual-learning paper
    Cost: E·b
    Two tasks: E1·b1 + E2·b2
    Extras: none
    Keeps: nothing but the weights
    """

    # docs/methods.md is written from these lines. "Cost" is that of a later task of b batches and E epochs,
    # "Two tasks" is the paper's formula or one like it, "Extras" what is run beyond it.

    state: ClassVar[dict[str, StateKind]] = {}
    """The attributes that survive a task, beside the hyper-parameters; nothing else does."""
    strengths: ClassVar[tuple[str, ...]] = ()
    """The hyper-parameters that, all at 0, switch the method off."""
    reduces_to_seq: ClassVar[bool | str] = True
    """Whether it equals SEQ bit for bit with its strengths at 0; or the reason why not."""
    cannot: ClassVar[dict[str, str]] = {
        "class-incremental": "forgets every earlier task almost at once",
        "domain-incremental": "forgets what the latest domain contradicts",
    }
    """Cautions for users who choose this method, by scenario."""
    adapters: ClassVar[Adapters] = "always"
    """Whether the encoder gets adapters to train."""

    lr: float = setting(3e-4, "learning rate", least=0, below=math.inf)

    def __post_init__(self) -> None:
        check_all(self)

    # ---- the hooks --------------------------------------------------------------------------------------

    def curriculum(self, stream: Stream) -> Stream:
        """Return the data to learn, in its order."""
        return stream

    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Return the training of a task with these hyper-parameters. Changes nothing."""
        return Training(self.lr)

    def deployed(self, learner: LearnerView, training: Training, epoch: int) -> Params:
        """Return the weights that would be shipped after an epoch (0: before the first).

        Early stopping judges these. What belongs to them may be noted in `training.carried`.
        """
        return P.snapshot(learner.model)

    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Update the state with what the next task must know."""

    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search hyper-parameters: yield choices, receive trials, return the decision."""
        best = yield from search.best_rate(learner.rates(), dict.fromkeys(self.strengths, 0.0))
        return Decision(best)

    # ---- the model it works with ------------------------------------------------------------------------

    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        """Return the head of a new model."""
        return LinearHead(width, seed=seed, visible=settings.logits)

    @property
    def moves(self) -> bool:
        """Whether a training with these hyper-parameters changes any weight; if not, it is left out."""
        return True

    # ---- what it says of itself -------------------------------------------------------------------------

    def shared_as(self) -> dict[str, Any] | None:
        """Return what decides this training, if other methods make the same one; None if they do not.

        Runs of one study share such trainings.
        """
        return {"lr": self.lr} if type(self) is Method else None

    def cautions(self, scenario: str) -> list[str]:
        """Return what a user who picks these hyper-parameters for this scenario should know."""
        return [self.cannot[scenario]] if scenario in self.cannot else []

    @classmethod
    def facts(cls) -> dict[str, str]:
        """Return the lines "Paper: ..." and so on of the docstring; the base class has those left out."""
        found: dict[str, str] = {}
        for owner in reversed(cls.__mro__):
            text = inspect.cleandoc(owner.__dict__.get("__doc__") or "")
            found |= {name: " ".join(words.split()) for name, words in FACT.findall(text)}
        return found

    # ---- hyper-parameters and state, as data ------------------------------------------------------------

    @classmethod
    def hyper_parameters(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields that a user or a search may set."""
        return fields_of(cls)

    def hparams(self) -> dict[str, Any]:
        """Return their values as JSON."""
        return {name: to_json(getattr(self, name)) for name in self.hyper_parameters()}

    def set(self, **values: Any) -> None:
        """Set hyper-parameters, from Python values or from JSON."""
        check(type(self), read := from_json(type(self), values))
        for name, value in read.items():
            setattr(self, name, value)

    def choosing(self, choice: Choice) -> Self:
        """Return a copy with other hyper-parameters and the same state."""
        other = copy.copy(self)
        other.set(**choice)
        return other

    def state_dict(self) -> dict[str, Any]:
        """Return the state that survives a task. Tensors in it are copies."""
        return {name: _copied(getattr(self, name)) for name in self.state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        for name in self.state:
            setattr(self, name, _copied(state[name]))

    def grow(self, rows: Params) -> None:
        """Grow every Params of the state with new head rows."""
        for name, kind in self.state.items():
            if kind in ("weights", "zeros"):
                setattr(self, name, P.grow(getattr(self, name), rows, zero=kind == "zeros"))

    def shrink(self, row: int) -> None:
        """Take a head row out of every Params of the state."""
        for name, kind in self.state.items():
            if kind in ("weights", "zeros"):
                setattr(self, name, P.without_row(getattr(self, name), row))


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {name: tensor.clone() for name, tensor in value.items()} if isinstance(value, dict) else value


REGULARISER = {
    "class-incremental": "a regulariser alone does not keep classes of different tasks apart, for they "
    "never meet in training: expect far less than mtl; the cure is a closed-form head, not a larger λ"
}
"""The caution that every method with a trained head shares."""

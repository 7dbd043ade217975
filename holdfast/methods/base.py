"""Method: five hooks around one training loop, each with a default.

The base class is sequential fine-tuning (SEQ). If `reduces_to_seq` is True, strengths of 0 give it exactly.
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
from torch.optim import SGD, AdamW, Optimizer

from holdfast.data.batches import Batch, Examples
from holdfast.data.tasks import Scenario, Stream, Task
from holdfast.fields import check, check_all, fields_of, from_json, setting, to_json
from holdfast.heads import Head, LinearHead, Vectors
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.methods.search import Choice, Decision, Trial
from holdfast.models import Adapters, Network, Output, Reading
from holdfast.settings import Settings, TrainingSettings

Plan = Generator[Choice, Trial, Decision]
Weights = dict[str, nn.Parameter]
Term = Callable[[Batch, Output], Tensor]
StateKind = Literal["weights", "zeros", "fixed", "number"]
"""How an attribute of the state grows with new head rows: by their values, by zeros, or not at all."""

FACT = re.compile(r"^(Equation|Paper|Cost|Two tasks|Extras|Keeps): (.*(?:\n +.*)*)", re.MULTILINE)


def _run(model: nn.Module, batch: Batch) -> Output:
    output: Output = model(batch)
    return output


@dataclass(frozen=True)
class Training:
    """Definition of one training run: the loss, the optimiser steps and the state that comes with them."""

    lr: float
    terms: Mapping[str, Term] = field(default_factory=dict)
    """Terms added to the task loss, by name."""
    around_step: tuple[Callable[[Optimizer, Weights], None], ...] = ()
    """Functions, called in order, that add hooks to the optimiser's step."""
    optimizer: Callable[[Weights], Optimizer] | None = None
    """Factory of a method's own optimiser; without one, the settings say which is used."""
    forward: Callable[[nn.Module, Batch], Output] = _run
    """Function that runs a batch through the model."""
    begin: Params | None = None
    """Initial weights, if not those of the task's start."""
    carried: dict[str, Params] = field(default_factory=dict)
    """State that changes during training. It is restored to the best epoch together with the weights."""

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the terms of the loss, to be summed; "task" is the task loss."""
        output = self.forward(model, batch)
        assert output.loss is not None
        return {"task": output.loss} | {name: term(batch, output) for name, term in self.terms.items()}

    def make_optimizer(self, weights: Weights, settings: TrainingSettings) -> Optimizer:
        """Return the optimiser of these weights with all hooks on its step. Weights do not decay."""
        optimizer: Optimizer
        if self.optimizer is not None:
            optimizer = self.optimizer(weights)
        elif settings.optimizer == "sgd":
            optimizer = SGD(weights.values(), self.lr, momentum=settings.momentum)
        else:
            optimizer = AdamW(weights.values(), self.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
        for attach in self.around_step:
            attach(optimizer, weights)
        return optimizer


class LearnerView(Protocol):
    """What a method sees of its learner and of the task at hand."""

    @property
    def model(self) -> Network:
        """The model that learns."""

    @property
    def settings(self) -> Settings:
        """Settings of every training run."""

    @property
    def scenario(self) -> Scenario:
        """Whether tasks bring labels of their own."""

    @property
    def fixed(self) -> frozenset[str]:
        """Hyper-parameters that the user has set; the search does not change them."""

    @property
    def tasks_seen(self) -> int:
        """Number of tasks that were learnt before this one."""

    @property
    def past_rows(self) -> list[int]:
        """Rows of the head whose labels were taught before this task."""

    @property
    def start(self) -> Params:
        """θ_{k-1}: the weights that every training run of the task starts from, with rows for new labels."""

    @property
    def train(self) -> Examples:
        """Training sentences of the task."""

    @property
    def valid(self) -> Examples:
        """Validation sentences of the task."""

    @property
    def batches(self) -> int:
        """Number of batches in one pass over the training sentences."""

    @property
    def vectors(self) -> Vectors:
        """Sentence vectors of the task."""

    @property
    def task_seed(self) -> int:
        """Seed of everything random in this task."""

    def rates(self, *, own: bool = False) -> tuple[float, ...]:
        """Return the learning rates to try: those of the optimiser, or the one rate that the user has set.

        `own` is for a method with SGD-type steps of its own, whatever the run's optimiser.
        """

    def predicted(self, weights: Params) -> float | None:
        """Return the validation score with these weights; None if the head is not trained with them."""

    def aim_at(self, score: float) -> None:
        """Stop further training runs of the task that cannot reach this validation accuracy any more."""

    def look_ahead(self, task: Task, lr: float) -> Trial:
        """Return a trial with the task loss only, which shows where the task alone takes the weights."""

    def using(self, trial: Trial) -> AbstractContextManager[Mapping[str, Any]]:
        """Run a block with the weights and head memory of a trial; yield the trial's method state."""

    def once(self, what: str, compute: Callable[[], Params], *, lr: float | None = None) -> Params:
        """Compute something that trials share once per task, or once per learning rate if `lr` is given."""

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Count passes over the data, in batches."""

    def start_here(self) -> None:
        """Make every further training run of the task start from the current model and method."""


@dataclass
class Method:
    """Sequential fine-tuning: train on each task in turn, without protecting earlier ones.

    Equation: L = L_task(θ)
    Paper: the lower baseline of every continual-learning paper
    Cost: E·b
    Two tasks: E1·b1 + E2·b2
    Extras: none
    Keeps: nothing but the weights
    """

    # docs/methods.md is written from these lines. "Cost" is that of a later task of b batches and E epochs,
    # "Two tasks" is the paper's formula or an analogous one, "Extras" is what is run beyond it.

    state: ClassVar[dict[str, StateKind]] = {}
    """The only attributes, besides the hyper-parameters, that survive a task."""
    strengths: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters that switch the method off when all are 0."""
    reduces_to_seq: ClassVar[bool | str] = True
    """Whether the method equals SEQ bit for bit with its strengths at 0, or the reason why not."""
    cannot: ClassVar[dict[str, str]] = {
        "class-incremental": "forgets every earlier task almost at once",
        "domain-incremental": "forgets what the latest domain contradicts",
    }
    """Cautions for users who choose this method, by scenario."""
    adapters: ClassVar[Adapters] = "always"
    """Whether the encoder gets trainable adapters."""

    lr: float = setting(3e-4, "learning rate", least=0, below=math.inf)

    def __post_init__(self) -> None:
        check_all(self)

    # ---- the hooks --------------------------------------------------------------------------------------

    def curriculum(self, stream: Stream) -> Stream:
        """Return the stream to learn."""
        return stream

    def prepare(self, learner: LearnerView, task: Task) -> Training:
        """Return the definition of a training run on a task; leave the method's state unchanged."""
        return Training(self.lr)

    def deployed(self, learner: LearnerView, training: Training, epoch: int) -> Params | None:
        """Return the weights that would be deployed after an epoch (0: before the first).

        None stands for the model's own. Early stopping judges these weights. State that belongs to them may
        be stored in `training.carried`.
        """
        return None

    def evidence(self, learner: LearnerView, task: Task, trained: Params) -> dict[str, float]:
        """Return numbers about the weights of a finished training run, for the record of a study."""
        return {}

    def consolidate(self, learner: LearnerView, task: Task) -> None:
        """Update the state, and if necessary the weights, at the end of a task."""

    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search for hyper-parameters: yield choices, receive trials, return the decision."""
        return Decision((yield from search.chosen_rate(learner, dict.fromkeys(self.strengths, 0.0))))

    # ---- the model it works with ------------------------------------------------------------------------

    @property
    def reading(self) -> Reading:
        """How sentence vectors are read from the encoder."""
        return Reading()

    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        """Return the head of a new model."""
        return LinearHead(width, seed=seed, visible=settings.logits)

    @property
    def moves(self) -> bool:
        """Whether a training run with these hyper-parameters changes any weight; if not, it is skipped."""
        return True

    # ---- description ------------------------------------------------------------------------------------

    def shared_as(self) -> dict[str, Any] | None:
        """Return what determines this training run if other methods may make the same one, otherwise None.

        The experiments of one study share it.
        """
        return {"lr": self.lr} if type(self) is Method else None

    def cautions(self, scenario: str) -> list[str]:
        """Return cautions for a user who chooses these hyper-parameters in this scenario."""
        return [self.cannot[scenario]] if scenario in self.cannot else []

    @classmethod
    def facts(cls) -> dict[str, str]:
        """Return the lines "Paper: ..." and so on of the docstring; missing ones are inherited."""
        found: dict[str, str] = {}
        for owner in reversed(cls.__mro__):
            text = inspect.cleandoc(owner.__dict__.get("__doc__") or "")
            found |= {name: " ".join(words.split()) for name, words in FACT.findall(text)}
        return found

    # ---- hyper-parameters and state, as data ------------------------------------------------------------

    @classmethod
    def hyper_parameters(cls) -> dict[str, dataclasses.Field[Any]]:
        """Return the fields that a user or a search may set.

        >>> from holdfast import METHODS
        >>> list(METHODS["seq"].hyper_parameters())
        ['lr']
        """
        return fields_of(cls)

    def hparams(self) -> dict[str, Any]:
        """Return the hyper-parameters as JSON values."""
        return {name: to_json(getattr(self, name)) for name in self.hyper_parameters()}

    def set(self, **values: Any) -> None:
        """Set hyper-parameters from Python or JSON values."""
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
        """Restore what `state_dict` returned."""
        for name in self.state:
            setattr(self, name, _copied(state[name]))

    def misfit(self, model: Network, tensors: Mapping[str, Params]) -> str:
        """Return the name of the first tensor that cannot be part of the state for this model, or ''."""
        weights = P.trainable(model)
        for name, kind in self.state.items():
            group = tensors.get(name)
            if kind in ("weights", "zeros") and group and (wrong := P.misfit(weights, group)):
                return f"{name}/{wrong}"
        return ""

    def grow(self, rows: Params) -> None:
        """Append new head rows to the state of kind "weights" or "zeros"."""
        for name, kind in self.state.items():
            if kind in ("weights", "zeros"):
                setattr(self, name, P.grow(getattr(self, name), rows, zero=kind == "zeros"))

    def shrink(self, row: int) -> None:
        """Remove a head row from the state of kind "weights" or "zeros"."""
        for name, kind in self.state.items():
            if kind in ("weights", "zeros"):
                setattr(self, name, P.without_row(getattr(self, name), row))


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {name: tensor.clone() for name, tensor in value.items()} if isinstance(value, dict) else value


REGULARISER = {
    "class-incremental": "a regulariser alone does not separate classes of different tasks, because they "
    "never meet in training: expect far less than mtl; the cure is a closed-form head, not a larger λ"
}
"""The caution of methods that protect the past under a trained head."""

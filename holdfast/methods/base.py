"""Method: six hooks around one loop, each with a default that does nothing.

The base class *is* sequential fine-tuning (SEQ), so a penalty of strength zero has a free oracle.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from holdfast.errors import HoldfastError
from holdfast.heads import Head
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods import search
from holdfast.models import Adapters, Usual
from holdfast.settings import Settings, check, check_all, fields_of, from_json, setting, to_json

if TYPE_CHECKING:
    from holdfast.data.batches import Batch
    from holdfast.data.tasks import Stream, Task
    from holdfast.learning.learner import Learner
    from holdfast.methods.search import Choice, Decision, Trial

# How a piece of state grows with new head rows: by their values, by zeros, or not at all.
Kind = Literal["weights", "zeros", "fixed", "number"]

FACT = re.compile(r"^(Equation|Paper|Cost|Two tasks|Extras|Keeps): (.*(?:\n +.*)*)", re.MULTILINE)


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

    # "Cost" is of a later task of b batches and E epochs, "Two tasks" the paper's formula or the like of it,
    # "Extras" what is run beyond it: docs/methods.md is written from these lines.
    cannot: ClassVar[dict[str, str]] = {
        "class-incremental": "forgets every earlier task almost at once",
        "domain-incremental": "forgets what the latest domain contradicts",
    }
    """What a user should hear before choosing this method, by scenario."""
    retains: ClassVar[bool] = False
    """Whether it claims to forget less than SEQ."""
    state: ClassVar[dict[str, Kind]] = {}
    """What survives a task, and nothing else does."""
    strengths: ClassVar[tuple[str, ...]] = ()
    """The hyper-parameters that, all at zero, switch the method off."""
    reduces_to_seq: ClassVar[bool | str] = True
    """With its strengths at zero it equals SEQ bit for bit; or the reason why not."""

    adapters: ClassVar[Adapters] = "always"
    """Whether the trunk shall be able to learn."""

    lr: float = setting(3e-4, "learning rate", least=0, below=math.inf)

    def __post_init__(self) -> None:
        check_all(self)

    # ---- the six hooks ----------------------------------------------------------------------------

    def curriculum(self, stream: Stream) -> Stream:
        """Which data, in which order."""
        return stream

    def before_task(self, learner: Learner, task: Task) -> None:
        """Prepare a training of this task: called for every trial, from the same start."""

    def losses(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """The terms of the loss, summed and logged by name; "task" is the task loss."""
        return {"task": model(batch).loss}

    def optimizer(self, params: dict[str, nn.Parameter]) -> Optimizer:
        """Who takes the step; projections and proximal steps are torch's own step hooks on it."""
        return AdamW(params.values(), lr=self.lr, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)

    def deployed(self, learner: Learner, task: Task) -> Params:
        """The weights that would be shipped now: early stopping judges these.

        Changes neither model nor training; what belongs to these weights may be noted in the state.
        """
        return P.snapshot(learner.model)

    def after_task(self, learner: Learner, task: Task) -> None:
        """Consolidate what the next task must know."""

    # ---- beside the hooks: what it can learn, and its search ----------------------------------------

    def admit(self, task: Task) -> None:
        """Refuse a task this method cannot learn, before anything is trained."""
        if not len(task.train):
            raise HoldfastError(f"task {task.name!r} has no training sentences")
        if len(task.labels) < 2:
            raise HoldfastError(
                f"task {task.name!r} has one label, {task.labels[0]!r}; training by gradient needs two"
            )
        if not len(task.valid):
            raise HoldfastError(f"task {task.name!r} has no validation sentences; the search needs some")
        if unknown := sorted(set(task.valid.labels) - set(task.labels)):
            raise HoldfastError(f"task {task.name!r}: label {unknown[0]!r} is in valid but not in train")

    def search(self, learner: Learner, task: Task) -> Generator[Choice, Trial, Decision]:
        """Yield hyper-parameters, receive the trial, return the decision: here, the best learning rate."""
        best = yield from search.best_rate(learner.rates(), dict.fromkeys(self.strengths, 0.0))
        return search.Decision(best)

    def rates(self, settings: Settings) -> tuple[float, ...]:
        """The learning rates worth trying with this method's optimiser."""
        return settings.rates

    def cautions(self, scenario: str) -> list[str]:
        """What a user who picks this method, with these hyper-parameters, for this scenario should hear."""
        return [self.cannot[scenario]] if scenario in self.cannot else []

    # ---- the model it works with ---------------------------------------------------------------------------

    def make_head(self, width: int, settings: Settings, seed: int) -> Head:
        """The head of a new model: by default the trained one."""
        return Usual().make_head(width, settings, seed)

    @property
    def moves(self) -> bool:
        """Whether a training with these hyper-parameters would move any weight; if not, it is left out."""
        return True

    def trains_as(self) -> dict[str, Any] | None:
        """What decides a training besides weights, state and data, if other methods would make the same one.

        Runs of one study share such trainings. None, the safe answer: no other method trains like this.
        """
        return {"lr": self.lr} if type(self) is Method else None

    # ---- what it says of itself ----------------------------------------------------------------------------

    @classmethod
    def facts(cls) -> dict[str, str]:
        """The lines "Paper: …" and so on that end the docstring; what it leaves out is as in its base."""
        found: dict[str, str] = {}
        for owner in reversed(cls.__mro__):
            text = inspect.cleandoc(owner.__dict__.get("__doc__") or "")
            found |= {name: " ".join(words.split()) for name, words in FACT.findall(text)}
        return found

    # ---- hyper-parameters and state, as data --------------------------------------------------------

    @classmethod
    def hyper_parameters(cls) -> dict[str, dataclasses.Field[Any]]:
        """The fields a user or a search may set."""
        return fields_of(cls)

    def hparams(self) -> dict[str, Any]:
        """Their values now, as JSON."""
        return {name: to_json(getattr(self, name)) for name in self.hyper_parameters()}

    def set(self, **values: Any) -> None:
        """Set hyper-parameters, from Python values or from JSON."""
        check(type(self), read := from_json(type(self), values))
        for name, value in read.items():
            setattr(self, name, value)

    @contextmanager
    def trying(self, choice: Choice) -> Iterator[None]:
        """Run the block with other hyper-parameters, then put these back."""
        own = {name: getattr(self, name) for name in choice}
        self.set(**choice)
        try:
            yield
        finally:
            self.set(**own)

    def state_dict(self) -> dict[str, Any]:
        """Exactly the state that survives a task. Tensors in it are copies."""
        return {name: _copied(getattr(self, name)) for name in self.state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back what `state_dict` gave."""
        for name in self.state:
            setattr(self, name, _copied(state[name]))

    def grow(self, rows: Params) -> None:
        """New head rows appeared: every Params of the state grows with them."""
        for name, kind in self.state.items():
            if kind in ("weights", "zeros"):
                setattr(self, name, P.grow(getattr(self, name), rows, zero=kind == "zeros"))

    def shrink(self, row: int) -> None:
        """A head row went: every Params of the state loses it."""
        for name, kind in self.state.items():
            if kind in ("weights", "zeros"):
                setattr(self, name, P.without_row(getattr(self, name), row))


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {name: tensor.clone() for name, tensor in value.items()} if isinstance(value, dict) else value

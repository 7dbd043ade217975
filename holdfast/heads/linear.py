"""The trained linear head, one row per label string."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.errors import HoldfastError
from holdfast.heads.base import Head
from holdfast.maths.params import Params

Visible = Literal["seen", "all"]


class LinearHead(Head):
    """A linear layer with one row per label, added with the label.

    The initial values of a row depend only on (seed, label), not on the order of tasks or on earlier
    learning. `visible` says which rows importance and prediction use: those of labels learnt so far, or all
    of them (with a preallocated head, as in the paper's released code).
    """

    trained: ClassVar[bool] = True
    kind: ClassVar[str] = "linear"
    has_past: ClassVar[bool] = True

    def __init__(self, width: int, *, seed: int = 0, visible: Visible = "seen") -> None:
        super().__init__(seed)
        self.linear = _linear(torch.empty(0, width), torch.empty(0))
        self.visible = visible

    @override
    def forward(self, features: Tensor) -> Tensor:
        logits: Tensor = self.linear(features.to(self.linear.weight))
        return logits

    @property
    @override
    def bytes_per_label(self) -> int:
        return self.linear.weight.element_size() * (self.linear.in_features + 1)

    @override
    def add(self, labels: Sequence[str]) -> Params:
        new = [label for label in dict.fromkeys(labels) if label not in self.labels]
        if not new:
            return {}
        weight, bias = self.linear.weight.detach(), self.linear.bias.detach()
        rows = torch.stack([self._row(label) for label in new]).to(weight)
        added = {"linear.weight": rows[:, :-1].contiguous(), "linear.bias": rows[:, -1].contiguous()}
        self.linear = _linear(
            torch.cat([weight, added["linear.weight"]]), torch.cat([bias, added["linear.bias"]])
        )
        self.labels += new
        return added

    @override
    def become(self, labels: Sequence[str], seen: Sequence[str]) -> None:
        width, weight = self.linear.in_features, self.linear.weight
        self.linear = _linear(weight.new_empty(0, width), weight.new_empty(0))
        self.labels, self.seen = [], []
        self.add(labels)
        self.teach(seen)

    @override
    def forget(self, label: str) -> str:
        kept = [row for row, name in enumerate(self.labels) if name != label]
        self.linear = _linear(self.linear.weight.detach()[kept], self.linear.bias.detach()[kept])
        self.labels.remove(label)
        self.seen = [name for name in self.seen if name != label]
        return "every weight that was trained while the label was known"

    @override
    def visible_rows(self) -> list[int]:
        if self.visible == "all":
            return list(range(len(self.labels)))
        return [row for row, label in enumerate(self.labels) if label in self.seen]

    @override
    def admit(self, task: Task) -> None:
        """Require at least two labels, and validation sentences without other labels."""
        super().admit(task)
        if len(task.labels) < 2:
            raise HoldfastError(
                f"task {task.name!r} has only the label {task.labels[0]!r}; training by gradient needs two"
            )
        if not len(task.valid):
            raise HoldfastError(f"task {task.name!r} has no validation sentences; the search needs some")
        if unknown := sorted(set(task.valid.labels) - set(task.labels)):
            raise HoldfastError(
                f"task {task.name!r}: label {unknown[0]!r} is in valid but not in train; add it to train"
            )

    @override
    def probe(self, labels: Sequence[str]) -> Head:
        """Return this head: it trains with the encoder."""
        return self

    @override
    def answers(self, features: Tensor, logits: Tensor) -> Tensor:
        """Return the logits of visible labels."""
        return logits[:, self.visible_rows()]

    @property
    @override
    def temperature(self) -> float:
        """Always 1: training fits the softmax of the logits."""
        return 1.0

    def _row(self, label: str) -> Tensor:
        """Return weights and bias of a new row: uniform within ±1/sqrt(width), as in torch's nn.Linear."""
        key = hashlib.sha256(f"{self.seed}\0{label}".encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(key[:7], "big"))
        bound = 1 / math.sqrt(self.linear.in_features)
        values = torch.rand(self.linear.in_features + 1, generator=generator, dtype=torch.float32)
        return (2 * values - 1) * bound


class ProbeHead(LinearHead):
    """A temporary head over the labels of one task, to train the encoder under a computed head."""

    has_past: ClassVar[bool] = False


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    """Return a linear layer with these values (torch's constructor would draw its own and warn at 0 rows)."""
    linear = nn.Linear(weight.shape[1], 1, device="meta")
    linear.out_features = weight.shape[0]
    linear.weight, linear.bias = nn.Parameter(weight), nn.Parameter(bias)
    return linear

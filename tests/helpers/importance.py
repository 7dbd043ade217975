"""Small models with known importances, and sentences of very different lengths."""

from __future__ import annotations

import random
from typing import Any

import torch
from helpers.tensors import F64, vector
from helpers.toys import FILLERS, KEYWORDS, TOPICS
from torch import Tensor, nn

from holdfast.data.batches import Batch
from holdfast.data.tasks import Split
from holdfast.heads import LinearHead
from holdfast.importance.estimators import EndedTraining, Estimator
from holdfast.maths.params import snapshot, trainable
from holdfast.models import Network

LENGTHS = (1, 3, 2, 17, 40, 90, 5, 16, 31, 64, 2, 7, 15, 14, 120, 3, 3, 33, 9, 1, 12, 4, 8)


def long_and_short(seed: int = 0) -> Split:
    rng = random.Random(seed)
    words = [*FILLERS, *(word for topic in TOPICS for word in KEYWORDS[topic])]
    texts = tuple(" ".join(rng.choices(words, k=length)) for length in LENGTHS)
    return Split(texts, tuple(rng.choice(TOPICS[:3]) for _ in texts))


class Features(Network):
    """A linear softmax over fixed features, selected by the first token."""

    def __init__(self, table: list[list[float]], weight: list[list[float]]) -> None:
        nn.Module.__init__(self)
        self.register_buffer("table", torch.tensor(table, dtype=torch.float64))
        self.dropout = nn.Dropout(0.0)
        self.head = LinearHead(len(table[0])).double()
        self.head.add(["0", "1"])
        self.head.teach(["0", "1"])
        with torch.no_grad():
            self.head.linear.weight.copy_(torch.tensor(weight))
            self.head.linear.bias.zero_()

    def features(self, batch: Batch) -> Tensor:
        return self.table[batch.input_ids[:, 0]]


def row(values: list[float]) -> Tensor:
    return torch.tensor([values, values], dtype=torch.float64)


def nothing(name: str, weight: Tensor) -> float:
    return 0.0


class Bowl(nn.Module):
    """The loss ½ Σ a (θ - b)², and a weight that the loss does not depend on."""

    def __init__(self, a: Tensor, b: Tensor, start: Tensor) -> None:
        super().__init__()
        self.a, self.b = a, b
        self.theta = nn.Parameter(start.clone())
        self.idle = nn.Parameter(torch.ones(3, dtype=start.dtype))

    def loss(self) -> Tensor:
        return 0.5 * (self.a * (self.theta - self.b).square()).sum()

    def forward(self, batch: Any) -> Any:
        return type("Output", (), {"loss": self.loss()})


def worked_bowl(dtype: torch.dtype = F64) -> Bowl:
    return Bowl(vector(4, 1, dtype=dtype), vector(1, -1, dtype=dtype), vector(0, 0, dtype=dtype))


def watched_descent(model: Bowl, estimator: Estimator, steps: int = 3, lr: float = 0.1) -> EndedTraining:
    """Run plain gradient descent observed by the estimator."""
    start, trace = snapshot(model), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    estimator.observe(optimizer, trainable(model), trace, nothing)
    for _ in range(steps):
        optimizer.zero_grad()
        model.loss().backward()
        optimizer.step()
    return EndedTraining(model, None, start, trace)

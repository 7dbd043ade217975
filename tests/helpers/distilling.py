"""Naive distillation, as single losses and as whole trainings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from helpers.by_hand import LR
from helpers.toys import class_stream, domain_stream
from torch import Tensor, nn

from holdfast.data.batches import Batch
from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.maths.losses import Objective
from holdfast.methods.lwf import Teacher, distilling
from holdfast.models.network import Output

STREAMS = {"classes": class_stream, "domains": domain_stream}
Term = Callable[[nn.Module, Tensor, Batch], Tensor]
Hook = Callable[[torch.optim.Optimizer, dict[str, Any], int], None]


def row(*values: float) -> Tensor:
    return torch.tensor([values])


def some(n: int) -> Tensor:
    """Return the labels of n real samples."""
    return torch.zeros(n, dtype=torch.long)


def softened(logits: Tensor, temperature: float) -> Tensor:
    powers = (logits / temperature).exp()
    return powers / powers.sum(1, keepdim=True)


def naive_kd(student: Tensor, teacher: Tensor, temperature: float = 2.0) -> Tensor:
    """Return the mean over samples of -Σ q(z°) log q(z), term by term."""
    q, p = softened(teacher, temperature), softened(student, temperature)
    return -(q * p.log()).sum(1).mean()


class Table(nn.Module):
    """A model that outputs its only weight for any input."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.z = nn.Parameter(logits.clone())

    def forward(self, batch: Batch) -> Output:
        loss = batch.objective(self.z, batch.labels) if batch.objective is not None else None
        return Output(self.z, self.z, loss)


def question(label: int, outputs: int) -> Batch:
    """Return a batch of one sample with plain cross-entropy."""
    ones = torch.ones(1, 1, dtype=torch.long)
    return Batch(ones, ones, torch.tensor([label]), Objective(torch.zeros(outputs), torch.ones(outputs)))


def losses_under(
    model: nn.Module, teachers: Mapping[str, Teacher], batch: Batch, temperature: float = 2.0
) -> dict[str, Tensor]:
    """Return the loss terms of a batch in a training with these teachers."""
    learner: Any = SimpleNamespace(model=model, count=lambda phase, *, forward, backward: None)
    return distilling(LR, learner, teachers, temperature).losses(model, batch)


def naive_task_loss(hand: AtHand, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the relaxed balanced softmax or class-weighted cross-entropy loss, from the counts."""
    counts, head = hand.task.train.counts(), hand.model.head
    if hand.scenario == "class-incremental":
        prior = torch.tensor([float(counts[name] or name in head.seen) for name in head.labels])
        shifted = logits + prior.log()
        return (shifted.logsumexp(1) - shifted[range(len(labels)), labels]).mean()
    weights = torch.tensor([counts.total() / (len(counts) * counts[name]) for name in head.labels])[labels]
    each = logits.logsumexp(1) - logits[range(len(labels)), labels]
    return (weights * each).sum() / weights.sum()


def naive_epoch(hand: AtHand, *terms: Term, after: Hook | None = None) -> P.Params:
    """Train a copy of the model for one epoch with torch's AdamW; `after` is called after every step."""
    student = copy.deepcopy(hand.model).eval()  # no dropout anyway
    params = {name: weight for name, weight in student.named_parameters() if weight.requires_grad}
    optimizer = torch.optim.AdamW(params.values(), lr=LR, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0)
    shuffle = torch.Generator().manual_seed(hand.task_seed)
    batches = hand.train.order(hand.settings.batch_size, shuffle)
    for t, indices in enumerate(batches, start=1):
        optimizer.param_groups[0]["lr"] = LR * min(1.0, t / len(batches))
        batch = hand.train.collate(indices)
        logits = student(batch.without_loss()).logits.float()
        loss = naive_task_loss(hand, logits, batch.labels)
        for term in terms:
            loss = loss + term(student, logits, batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if after is not None:
            after(optimizer, params, t)
    return {name: weight.detach().clone() for name, weight in params.items()}


def teaching(hand: AtHand, params: P.Params, rows: list[int], lam: float, temperature: float = 2.0) -> Term:
    """Return the loss λ KD with a copy of the model with these weights as teacher."""
    teacher = copy.deepcopy(hand.model).eval()
    with torch.no_grad():
        for name, weight in teacher.named_parameters():
            weight.copy_(params.get(name, weight))

    def term(student: nn.Module, logits: Tensor, batch: Batch) -> Tensor:
        with torch.no_grad():
            answers = teacher(batch.without_loss()).logits.float()
        return lam * naive_kd(logits[:, rows], answers[:, rows], temperature)

    return term

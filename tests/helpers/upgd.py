"""A naive UPGD, and the curvatures measured in trainings."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.toys import small
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast.data.batches import Batch
from holdfast.data.tasks import Task
from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.methods.base import Training
from holdfast.steps.upgd import UPGDOptimizer

LR, SIGMA, DECAY, BETA = 0.05, 0.03, 0.01, 0.9
HEAD = "head.linear.weight"


def upgd(**values: Any) -> Any:
    return METHODS["upgd"](**{"lr": LR, "sigma": SIGMA, "weight_decay": DECAY, "beta": BETA} | values)


def dry_task(path: str, method: Any, stream: Any, **changes: Any) -> AtHand:
    """Begin a second task without dropout, with made-up weights and utilities."""
    learner = make_learner(path, method, stream, small(**{"epochs": 1} | changes), fixed={"lr"})
    learner.model.dropout.p = 0.0
    learner.begin(stream.tasks[0])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # adapters near the identity have hardly any curvature
        for weight in P.trainable(learner.model).values():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    for name, value in P.snapshot(learner.model).items():
        method.utility[name] = 1e-3 * torch.randn(value.shape, generator=generator)
        method.steps[name] = torch.tensor(4.0)
    learner.tasks_seen = 1
    return learner.begin(stream.tasks[1])


def prepared(hand: AtHand, task: Task) -> tuple[Training, P.Params]:
    """Return the training of a task and the curvature that its optimiser reads."""
    training = hand.method.prepare(hand, task)
    optimizer = training.make_optimizer(P.trainable(hand.model), hand.settings)
    assert isinstance(optimizer, UPGDOptimizer)
    return training, optimizer.curvature


def watch_curvatures(monkeypatch: pytest.MonkeyPatch) -> list[P.Params]:
    """Record the curvature at every step from now on."""
    measured: list[P.Params] = []
    step = UPGDOptimizer.step

    def stepped(own: Any, *args: Any) -> Any:
        measured.append({name: value.clone() for name, value in own.curvature.items()})
        return step(own, *args)

    monkeypatch.setattr(UPGDOptimizer, "step", stepped)
    return measured


class Naive:
    """The same training in float64, without the library's optimiser, loss or double backward."""

    def __init__(self, hand: AtHand) -> None:
        self.hand, self.model, self.method = hand, hand.model, hand.method
        counts = hand.task.train.counts()
        self.weight_of = torch.tensor(
            [counts.total() / (len(counts) * counts[label]) for label in self.model.head.labels]
        ).double()

    def loss(self, theta: P.Params, batch: Batch) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            logits = P.predict(self.model, theta, batch.without_loss()).logits
        each = -logits.log_softmax(1)[range(len(batch)), batch.labels]
        weights = self.weight_of[batch.labels]
        return (weights * each).sum() / weights.sum()

    def gradient(self, theta: P.Params, batch: Batch) -> P.Params:
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        found = torch.autograd.grad(self.loss(leaves, batch), list(leaves.values()))
        return dict(zip(theta, found, strict=True))

    def estimate(self, theta: P.Params, batch: Batch, signs: torch.Generator) -> P.Params:
        """Return z ⊙ Hz of everything but the head, with Hz as a difference of two gradients."""
        z = {
            name: 2.0 * torch.randint(0, 2, value.shape, generator=signs) - 1
            for name, value in theta.items()
            if not name.startswith("head.")
        }
        eps = 1e-7
        up = self.gradient({n: t + eps * z[n] if n in z else t for n, t in theta.items()}, batch)
        down = self.gradient({n: t - eps * z[n] if n in z else t for n, t in theta.items()}, batch)
        return {name: z[name] * (up[name] - down[name]) / (2 * eps) for name in z}

    def of_head(self, theta: P.Params, batch: Batch) -> P.Params:
        """Return Σ_n w_n (p - p²) a² / Σ_n w_n, sample by sample."""
        output = P.predict(self.model, theta, batch.without_loss())
        weights = self.weight_of[batch.labels]
        weight, bias = torch.zeros_like(theta[HEAD]), torch.zeros_like(theta["head.linear.bias"])
        for a, logits, w in zip(output.features, output.logits, weights, strict=True):
            p = logits.softmax(0)
            second = (p - p * p) * w / weights.sum()
            weight += torch.outer(second, a * a).detach()
            bias += second.detach()
        return {HEAD: weight, "head.linear.bias": bias}

    def train(self) -> tuple[P.Params, P.Params]:
        """Train one epoch; return the final weights and utilities."""
        method, hand = self.method, self.hand
        self.model.double().eval()
        theta = {name: value.double() for name, value in hand.start.items()}
        utility = {name: value.double() for name, value in method.utility.items()}
        seed = hand.task_seed
        batches = hand.train.order(hand.settings.batch_size, torch.Generator().manual_seed(seed))
        signs, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        h: P.Params = {}
        for number, indices in enumerate(batches):
            batch = hand.train.collate(indices)
            g = self.gradient(theta, batch)
            if method.order == "second" and number % method.every == 0:
                h = self.of_head(theta, batch)
                if method.curvature == "hutchinson":
                    h |= self.estimate(theta, batch, signs)
            t = 4 + number + 1  # pretend that four steps came before
            lr = LR * (number + 1) / len(batches)
            for name, w in theta.items():
                instant = -g[name] * w
                if name in h:
                    instant = instant + h[name] * w * w / 2
                utility[name] = BETA * utility[name] + (1 - BETA) * instant
            corrected = {name: u / (1 - BETA**t) for name, u in utility.items()}
            source = utility if method.maximum == "raw" else corrected
            top = max(float(value.max()) for value in source.values())
            for name, w in theta.items():
                ratio = corrected[name] / top
                if method.scaling == "local":
                    ratio = corrected[name] / corrected[name].square().sum(-1, keepdim=True).sqrt()
                s = 1 / (1 + torch.exp(-ratio))
                xi = SIGMA * torch.randn(w.shape, generator=noise).double()
                step = 2 * (g[name] + xi) * (1 - s) if method.protecting else g[name] + xi * (1 - s)
                theta[name] = w - lr * DECAY * w - lr * step
        self.model.float()
        P.restore(self.model, hand.start)
        return theta, utility

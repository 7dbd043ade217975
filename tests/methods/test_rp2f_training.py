"""A naive training with RP2F, step by step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from helpers.learners import make_learner
from helpers.rp2f import F64, naive_decorrelation
from helpers.toys import lopsided, small
from helpers.weights import assert_same_bits, distance
from torch import Tensor

from holdfast.data.batches import Batch
from holdfast.data.tasks import Stream
from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.models.network import Output

# ---- a naive training ---------------------------------------------------------------------------------

LR, LAM = 1e-3, 1e-3


def dry_task(path: str, method: Any, stream: Stream, **changes: Any) -> AtHand:
    """Begin a second task in float64, without dropout and with a made-up past."""
    own = small(**{"epochs": 2} | changes)
    learner = make_learner(path, method, stream, own, fixed={"lr", "lam"})
    learner.model.double()
    learner.model.dropout.p = 0.0
    learner.begin(stream.tasks[0])
    generator = torch.Generator().manual_seed(0)
    for name, value in P.snapshot(learner.model).items():
        draw = torch.rand(value.shape, generator=generator, dtype=F64)
        method.precision[name] = torch.where(draw < 0.1, 0.0, 10 ** (8 * draw - 8))
        noise = torch.randn(value.shape, generator=generator, dtype=F64)
        method.free[name] = value + 0.02 * noise
    learner.tasks_seen = 1
    return learner.begin(stream.tasks[1])


class Naive:
    """A naive second task: free AdamW, a Fisher sample by sample, fusion, the best epoch."""

    def __init__(self, hand: AtHand) -> None:
        self.hand, self.model = hand, hand.model
        counts = hand.task.train.counts()
        self.weight_of = torch.tensor(
            [counts.total() / (len(counts) * counts[label]) for label in self.model.head.labels]
        ).double()

    def output(self, theta: P.Params, batch: Batch) -> Output:
        self.model.eval()
        found: Output = P.predict(self.model, theta, batch.without_loss())
        return found

    def terms(self, theta: P.Params, batch: Batch, weight_of: Tensor) -> tuple[Tensor, Tensor]:
        each = -self.output(theta, batch).logits.log_softmax(1)[range(len(batch)), batch.labels]
        weights = weight_of[batch.labels]
        return (weights * each).sum(), weights.sum()

    def loss(self, theta: P.Params, batch: Batch, lam: float) -> Tensor:
        losses, weights = self.terms(theta, batch, self.weight_of)
        total = losses / weights
        if lam:
            total = total + lam * naive_decorrelation(self.output(theta, batch).features)
        return total

    def gradient(self, theta: P.Params, loss: Any) -> P.Params:
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        return dict(zip(theta, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))

    def fisher(self, theta: P.Params) -> P.Params:
        data = self.hand.train
        found = {name: torch.zeros_like(value) for name, value in theta.items()}
        for i in range(len(data)):
            batch = data.collate([i])
            g = self.gradient(
                theta,
                lambda leaves, batch=batch: self.output(leaves, batch).logits.log_softmax(1)[
                    0, batch.labels[0]
                ],
            )
            for name in found:
                found[name] += g[name] ** 2 / len(data)
        return found

    def valid_loss(self, theta: P.Params) -> float:
        data = self.hand.valid
        with torch.no_grad():
            losses, weights = self.terms(theta, data.collate(range(len(data))), self.weight_of)
        return float(losses / weights)

    def train(self, free: P.Params, *, lr: float, lam: float, epochs: int = 2, past: P.Params | None = None):
        """Return deployed weights, the learner's, its precision and the validation loss for every epoch."""
        hand = self.hand
        start = {name: value.double() for name, value in hand.start.items()}
        theta = dict(free)
        m, v = P.zeros(theta), P.zeros(theta)
        shuffle = torch.Generator().manual_seed(hand.task_seed)
        t = 0
        history = [(start, free, {}, self.valid_loss(start))]
        for _ in range(epochs):
            batches = hand.train.order(hand.settings.batch_size, shuffle)
            for indices in batches:
                batch = hand.train.collate(indices)
                g = self.gradient(theta, lambda leaves, batch=batch: self.loss(leaves, batch, lam))
                t += 1
                rate = lr * min(1.0, t / len(batches))
                for name, gradient in g.items():
                    m[name] = 0.9 * m[name] + 0.1 * gradient
                    v[name] = 0.999 * v[name] + 0.001 * gradient**2
                    step = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
                    theta[name] = theta[name] - rate * step
            precision = self.fisher(theta) if past else {}
            mean = dict(theta)
            for name, new in precision.items():
                total = past[name] + new
                weighted = (past[name] * start[name] + new * theta[name]) / total
                mean[name] = torch.where(total > 0, weighted, theta[name])
            history.append((mean, dict(theta), precision, self.valid_loss(mean)))
        return history


@pytest.mark.parametrize(("lr", "best"), [(LR, 2), (0.1, 1), (0.3, 0)])
def test_a_training_by_hand(tiny_bert_dry, domains, lr, best):
    stream = lopsided(domains)
    method = METHODS["rp2f"](lr=lr, lam=LAM)
    hand = dry_task(tiny_bert_dry, method, stream)
    assert hand.train.objective.weights.unique().numel() == 2
    start = {name: value.clone() for name, value in hand.start.items()}
    free, past = method.state_dict()["free"], method.state_dict()["precision"]
    history = Naive(hand).train(free, lr=lr, lam=LAM, past=past)
    losses = [loss for *_, loss in history]
    assert losses.index(min(losses)) == best, "the three cases must differ in their best epoch"
    lesson = hand.learner.learn(stream.tasks[1])
    [trial] = lesson.trials
    assert (trial.fit["epochs"], trial.fit["best_epoch"]) == (2, best)
    assert trial.fit["valid_loss"] == pytest.approx(losses[best], rel=1e-5), (
        "the validation loss is that of the fused weights"
    )
    deployed, own, precision, _ = history[best]
    assert distance(P.snapshot(hand.model), deployed) < 1e-3 * lr
    assert distance(method.free, own) < 1e-3 * lr
    assert method.current == {}
    for name, value in method.precision.items():
        new = precision.get(name, torch.zeros_like(value))
        assert torch.allclose(value - past[name], new, rtol=1e-3, atol=1e-9), name
    if best:
        assert distance(deployed, own) > 0.5 * lr, "fusion must have an effect"
        assert distance(deployed, start) > 0.5 * lr
        assert max(float(value.max()) for value in precision.values()) > 1e-4
    else:
        assert_same_bits(P.snapshot(hand.model), start)
        assert_same_bits(method.free, free)
        assert_same_bits(method.precision, past)


@pytest.mark.parametrize("lam", [0.0, LAM])
def test_the_first_task_by_hand(tiny_bert_dry, domains, lam):
    """Plain training with the robustness term, without fusion; the precision is measured at the end."""
    method = METHODS["rp2f"](lr=LR, lam=lam)
    learner = make_learner(tiny_bert_dry, method, domains, small(epochs=2), fixed={"lr", "lam"})
    learner.model.double()
    learner.model.dropout.p = 0.0
    hand = learner.begin(domains.tasks[0])
    naive = Naive(hand)
    *_, (expected, *_) = naive.train(P.snapshot(learner.model), lr=LR, lam=lam)
    fisher = naive.fisher(expected)
    if lam:
        *_, (plain, *_) = naive.train(P.snapshot(learner.model), lr=LR, lam=0.0)
        assert distance(plain, expected) > 0.1 * LR, "the robustness term must have an effect"
    lesson = learner.learn(domains.tasks[0])
    assert lesson.decision.trial.fit["best_epoch"] == 2
    assert distance(P.snapshot(learner.model), expected) < 1e-3 * LR
    assert_same_bits(method.free, P.snapshot(learner.model))
    for name, value in method.precision.items():
        assert torch.allclose(value, fisher[name], rtol=1e-3, atol=1e-9), name

"""Naive trainings and importances, and learners to compare them with."""

from __future__ import annotations

from typing import Any

import torch
from helpers.learners import make_learner
from helpers.toys import small

from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P

LR = 1e-3


def distance(left: P.Params, right: P.Params) -> float:
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def dry_task(path: str, method: Any, stream: Any, **changes: Any) -> AtHand:
    """Begin a second task in float64, without dropout and with made-up importances."""
    learner = make_learner(path, method, stream, small(epochs=1, **changes), fixed={"lr"})
    learner.model.double()
    learner.model.dropout.p = 0.0
    learner.begin(stream.tasks[0])
    learner.tasks_seen = 1
    if "alpha" in method.state:
        generator = torch.Generator().manual_seed(0)
        method.alpha = {
            name: torch.rand(value.shape, generator=generator, dtype=torch.float64)
            for name, value in P.snapshot(learner.model).items()
        }
        method.tasks_pooled = 1
    return learner.begin(stream.tasks[1])


def second_task(
    path: str, method: Any, stream: Any, settings: Any = None, fixed: set[str] = frozenset()
) -> AtHand:
    """Begin a second task, as if the first had been learnt."""
    learner = make_learner(path, method, stream, settings, fixed=fixed)
    learner.begin(stream.tasks[0])
    learner.tasks_seen = 1
    return learner.begin(stream.tasks[1])


def naive_training(hand: AtHand, alpha: P.Params, lam: float, *, lr: float = LR) -> P.Params:
    """Return the weights after an epoch of AdamW on task loss + (lam/2) Σ alpha (θ - θ0)²."""
    model = hand.model
    theta = {name: weight.detach().clone() for name, weight in P.trainable(model).items()}
    anchor = {name: value.clone() for name, value in theta.items()}
    moment = {name: torch.zeros_like(value) for name, value in theta.items()}
    second = {name: torch.zeros_like(value) for name, value in theta.items()}
    batches = hand.train.order(hand.settings.batch_size, torch.Generator().manual_seed(hand.task_seed))
    counts = hand.task.train.counts()
    weight_of = torch.tensor([counts.total() / (len(counts) * counts[label]) for label in model.head.labels])
    for t, indices in enumerate(batches, start=1):
        batch = hand.train.collate(indices)
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        model.eval()  # there is no dropout anyway
        logits = P.predict(model, leaves, batch).logits.float()
        each = -logits.log_softmax(1)[range(len(batch)), batch.labels]
        weights = weight_of[batch.labels]
        loss = (weights * each).sum() / weights.sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()))
        rate = lr * min(1.0, t / len(batches))
        for name, gradient in zip(theta, gradients, strict=True):
            g = gradient + lam * alpha[name] * (theta[name] - anchor[name])
            moment[name] = 0.9 * moment[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g * g
            m, v = moment[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
            theta[name] = theta[name] - rate * m / (v.sqrt() + 1e-8)
    return theta


def naive_importance(hand: AtHand, theta: P.Params) -> P.Params:
    """Return the mean over samples of |gradient of the squared norm of the logits|."""
    sums = P.zeros(theta)
    hand.model.eval()
    for i in range(len(hand.train)):
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        norm = P.predict(hand.model, leaves, hand.train.collate([i])).logits.square().sum()
        for name, gradient in zip(leaves, torch.autograd.grad(norm, list(leaves.values())), strict=True):
            sums[name] += gradient.abs() / len(hand.train)
    return sums


def naive_alpha(
    past: P.Params, ahead: P.Params, lam: float, lam_max: float, down: float, m: float, **options: Any
) -> P.Params:
    """Compute equations 4 and 5 entry by entry."""
    strategy, tau_fixed, head = options.get("strategy"), options.get("tau"), options.get("modulate_head")
    found = {}
    for name, alpha in past.items():
        if name.startswith("head.") and not head:
            found[name] = alpha.clone()
            continue
        flat, other = alpha.flatten().tolist(), ahead[name].flatten().tolist()
        rho = [a / (a + b + 1e-10) for a, b in zip(flat, other, strict=True)]
        tau = options.get("fraction", 0.8) * sum(rho) / len(rho) if tau_fixed is None else tau_fixed
        low = 1 / max(tau, 0.05)
        high = max(lam_max / lam, low)
        up = max(m * high, low)
        values = []
        for a, r in zip(flat, rho, strict=True):
            if r > tau:
                values.append(a if strategy == "kt" else up * r * a)
            else:
                values.append(a if strategy == "cf" else down * r * a)
        found[name] = torch.tensor(values, dtype=alpha.dtype).reshape(alpha.shape)
    return found

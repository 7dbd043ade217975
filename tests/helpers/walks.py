"""Naive trainings, step by step, and the importances computed from their steps."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from helpers.by_hand import LR
from helpers.toys import domain_stream

from holdfast.data.tasks import Stream
from holdfast.learning.at_hand import AtHand
from holdfast.learning.lesson import Lesson
from holdfast.maths import params as P

SHORT = {"epochs": 1, "batch_size": 4, "rates": (3e-3,)}
Step = dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]]  # task gradient, before, after


def few(n: int = 5) -> Stream:
    """Return few sentences, also used for validation so that a short training is kept."""
    stream = domain_stream({"train": n, "valid": 1, "test": 1})
    return replace(stream, tasks=tuple(replace(task, valid=task.train) for task in stream))


def kept(lesson: Lesson) -> bool:
    """Return whether the chosen training improved the model; if not, there is nothing to compare."""
    return lesson.decision.trial.fit["best_epoch"] > 0


@dataclass
class Walk:
    """A naive training, step by step."""

    start: P.Params
    end: P.Params
    steps: list[Step]


def naive_walk(hand: AtHand, alpha: P.Params, lam: float) -> Walk:
    """Run an epoch of AdamW on task loss + (lam/2) Σ alpha (θ - θ0)²; record the task gradient."""
    model = hand.model
    theta = P.snapshot(model)
    anchor, steps = P.snapshot(model), []
    first, second = P.zeros(theta), P.zeros(theta)
    counts = hand.task.train.counts()
    weight_of = torch.tensor([counts.total() / (len(counts) * counts[label]) for label in model.head.labels])
    batches = hand.train.order(hand.settings.batch_size, torch.Generator().manual_seed(hand.task_seed))
    model.eval()
    for t, indices in enumerate(batches, start=1):
        batch = hand.train.collate(indices)
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        each = -P.predict(model, leaves, batch).logits.float().log_softmax(1)[range(len(batch)), batch.labels]
        weights = weight_of[batch.labels]
        loss = (weights * each).sum() / weights.sum()
        step: Step = {}
        for name, g in zip(theta, torch.autograd.grad(loss, list(leaves.values())), strict=True):
            total = g + lam * alpha[name] * (theta[name] - anchor[name])
            first[name] = 0.9 * first[name] + 0.1 * total
            second[name] = 0.999 * second[name] + 0.001 * total * total
            change = (first[name] / (1 - 0.9**t)) / ((second[name] / (1 - 0.999**t)).sqrt() + 1e-8)
            step[name] = (g, theta[name], theta[name] - LR * min(1.0, t / len(batches)) * change)
        theta = {name: after for name, (*_, after) in step.items()}
        steps.append(step)
    return Walk(anchor, theta, steps)


def naive_fisher(hand: AtHand, theta: P.Params, labels: str) -> P.Params:
    """Return the squared gradients of log p, averaged over labels and samples."""
    model, data, sums = hand.model, hand.train, P.zeros(theta)
    model.eval()
    draw = torch.Generator().manual_seed(hand.task_seed)
    for indices in data.order(hand.settings.batch_size):
        batch = data.collate(indices)
        assert len(batch.by_length()) == 1, "sampled labels would be drawn in another order"
        p = P.predict(model, theta, batch).logits.softmax(1)
        drawn = torch.multinomial(p, 1, generator=draw)[:, 0].tolist()
        for row, i in enumerate(indices):
            picks = {
                "true": [(data.labels[i], 1.0)],
                "sample": [(drawn[row], 1.0)],
                "expected": [(c, float(p[row, c])) for c in range(p.shape[1])],
            }
            for label, share in picks[labels]:
                leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
                log_p = P.predict(model, leaves, data.collate([i])).logits.log_softmax(1)[0, label]
                for name, g in zip(leaves, torch.autograd.grad(log_p, list(leaves.values())), strict=True):
                    sums[name] += share * g * g / len(data)
    return sums


def naive_si(walk: Walk, damping: float = 0.1) -> P.Params:
    found = {}
    for name, end in walk.end.items():
        saved = sum(-g * (after - before) for g, before, after in (step[name] for step in walk.steps))
        found[name] = torch.where(saved > 0, saved, 0.0) / ((end - walk.start[name]) ** 2 + damping)
    return found


def naive_walked(
    walk: Walk, interval: int, fisher: P.Params | None = None, damping: float = 1e-3
) -> tuple[P.Params, P.Params]:
    """Return the two parts of RWalk."""
    fishers, scores = {}, {}
    for name in walk.end:
        steps = [step[name] for step in walk.steps]
        f = steps[0][0] ** 2 if fisher is None else fisher[name]
        score = torch.zeros_like(f)
        for begin in range(0, len(steps), interval):
            part = steps[begin : begin + interval]
            saved = sum(-g * (after - before) for g, before, after in part)
            gain = saved / (f / 2 * (part[-1][2] - part[0][1]) ** 2 + damping)
            score = score + torch.where(gain > 0, gain, 0.0)
            f = 0.9 * sum(g * g for g, *_ in part) / len(part) + 0.1 * f
        fishers[name], scores[name] = f, score
    return fishers, scores


def naive_sum(fisher: P.Params, score: P.Params) -> P.Params:
    """Return the sum of both parts, each scaled by its global minimum and maximum."""
    found = P.zeros(fisher)
    for part in (fisher, score):
        everything = torch.cat([value.flatten() for value in part.values()])
        low, high = everything.min(), everything.max()
        for name, value in part.items():
            found[name] = found[name] + (value - low) / (high - low)
    return found


def assert_close(found: P.Params, expected: P.Params, share: float = 2e-3) -> None:
    """Compare tensors with a tolerance relative to the largest entry of each."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        largest = float(value.abs().max())
        assert largest > 0, f"the oracle of {name} is trivial"
        assert float((found[name] - value).abs().max()) <= share * largest, name

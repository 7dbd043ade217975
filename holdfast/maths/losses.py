"""The task loss of each scenario: relaxed balanced softmax, class-weighted cross-entropy.

All are one formula, cross-entropy on z + log π with a weight per class:

- class-incremental: the relaxed balanced softmax (Jodelet, Liu, Murata 2022): π is a class's count in the
  current task, 1 for a class of an earlier task, 0 for one not seen yet; all weights 1;
- domain-incremental: π = 1, weights n/(K n_c) from the current task;
- joint (multi-task training): plain cross-entropy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from holdfast import distributed
from holdfast.maths.params import precise

IGNORED = -100  # label of samples and tokens that do not count in the loss


@dataclass(frozen=True)
class Objective:
    """A task loss with its prior and class weights, one entry per row of the head."""

    log_prior: Tensor
    weights: Tensor

    def __call__(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted mean over the batch.

        With several processes, the average of their return values is the mean over all parts.
        """
        losses, normaliser = self.sums(logits, labels)
        # Data-parallel training averages gradients over processes; multiplying by their number turns the
        # average into a sum.
        mean: Tensor = losses * distributed.processes() / distributed.total(normaliser)
        return mean

    def sums(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the weighted sum of losses and the sum of weights, whose quotient is the mean."""
        weights = self.weights.to(logits.device)
        losses = functional.cross_entropy(
            logits.float() + self.log_prior.to(logits.device),
            labels,
            weights,
            reduction="sum",
            ignore_index=IGNORED,
        )
        return torch.stack([losses, weights[labels[labels != IGNORED]].sum()])

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return ∂²L/∂z² of the mean loss per sample and logit: p - p² times the sample's weight.

        p - p² does not depend on the label.
        """
        real = labels != IGNORED
        weights = torch.zeros(len(labels), device=logits.device)
        weights[real] = self.weights.to(logits.device)[labels[real]]
        p = (precise(logits) + self.log_prior.to(logits.device)).softmax(1)
        return (p - p.square()) * (weights / distributed.total(weights.sum()))[:, None]


def relaxed_prior(
    counts: Mapping[str, int],
    *,
    current: Sequence[str],
    rows: Sequence[str],
    seen: Sequence[str],
    relaxation: float = 1.0,
) -> Tensor:
    """Return π of the relaxed balanced softmax.

    It is the count (at least 1), the relaxation constant or 0 for a current, earlier or unseen class.

    >>> relaxed_prior({"on": 40}, current=["on"], rows=["off", "on", "dim"], seen=["off"], relaxation=0.1)
    tensor([ 0.1000, 40.0000,  0.0000])
    """
    past = dict.fromkeys(seen, relaxation)
    return torch.tensor(
        [float(max(counts.get(label, 0), 1)) if label in current else past.get(label, 0.0) for label in rows]
    )


def balanced_weights(counts: Counter[str]) -> dict[str, float]:
    """Return class weights n/(K n_c), which give every class the same total weight."""
    return {label: counts.total() / (len(counts) * count) for label, count in counts.items()}


def distillation(student: Tensor, teacher: Tensor, labels: Tensor, temperature: float = 2.0) -> Tensor:
    """Return -Σ_c q_c(z°) log q_c(z), q = softmax(z/T): cross-entropy without a factor T² (Li, Hoiem 2016).

    The mean excludes padding samples (label IGNORED).
    """
    real = labels != IGNORED
    softened = (teacher.float() / temperature).softmax(1)
    each = -(softened * (student.float() / temperature).log_softmax(1)).sum(1)
    mean: Tensor = (each * real).sum() * distributed.processes() / distributed.total(real.sum().float())
    return mean


def decorrelation(features: Tensor) -> Tensor:
    """Return RP2F's robustness term: the mean squared off-diagonal entry of the samples' Gram matrix.

    Each sample is standardised over its own features (unbiased variance). A single sample gives 0.
    """
    n = len(features)
    if n < 2:
        return features.sum() * 0.0
    variance, mean = torch.var_mean(features.float(), dim=1, keepdim=True)
    standard = (features.float() - mean) / (1e-8 + variance).sqrt()
    gram = standard @ standard.T
    return (gram.square().sum() - gram.diagonal().square().sum()) / (n * (n - 1))

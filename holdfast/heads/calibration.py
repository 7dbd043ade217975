"""Calibration without old data: temperature, distance thresholds and sizes of prediction sets.

Left-out sentences of a lesson show how sure and how far from their class real sentences are, but only at
that time: every later label changes it. So a lesson also measures sentences drawn from the Gaussians of the
classes, and keeps only how real and drawn ones differ. Later the draws are repeated under the new statistics,
and the mean difference is added.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99)  # shares of known sentences
WARMTHS = tuple(j / 16 * math.log(10) for j in range(-48, 49))
STRIDE = 8  # every eighth temperature is tried first, since the likelihood has a single maximum
PARTS = 16  # maximum number of parts
GOLDEN = (math.sqrt(5) - 1) / 2  # multiples modulo 1 are spread evenly, also over a few sentences
MEASURES = 1 + 2 * len(LEVELS)


class Seen(NamedTuple):
    """Sentences: the scores of all known labels, the column of the gold label, how far out they lie."""

    scores: Tensor
    gold: Tensor
    distances: Tensor

    def of(self, which: Tensor) -> Seen:
        """Return some of the sentences."""
        return Seen(self.scores[which], self.gold[which], self.distances[which])

    def parts(self, size: int) -> list[Seen]:
        """Return at most `PARTS` parts of about a size, each with sentences from everywhere.

        High quantiles of a few sentences are too low on average, so few are compared with as few.
        """
        count = min(PARTS, max(len(self.gold) // max(size, 1), 1))
        return [self.of(torch.arange(first, len(self.gold), count)) for first in range(count)]


def warmth(seen: Seen) -> float:
    """Return the logarithm of the temperature with the highest likelihood.

    As in Platt scaling, each of the n labels is assumed correct only with probability (n+1)/(n+2).
    """
    doubt, others = 1 / (len(seen.gold) + 2), max(seen.scores.shape[1] - 1, 1)

    def likelihood(log: float) -> float:
        likely = (seen.scores / math.exp(log)).log_softmax(1).clamp(min=-50)
        right = likely.gather(1, seen.gold[:, None]).squeeze(1)
        return float(((1 - doubt) * right + doubt * (likely.sum(1) - right) / others).sum())

    near = max(range(0, len(WARMTHS), STRIDE), key=lambda place: likelihood(WARMTHS[place]))
    return max(WARMTHS[max(near - STRIDE + 1, 0) : near + STRIDE], key=likelihood)


def set_scores(probabilities: Tensor, part: Tensor) -> Tensor:
    """Return for each label the probability of all labels above it and a part, in [0, 1), of its own.

    These are adaptive prediction sets (Romano et al. 2020). With a random part for each sentence, the labels
    whose score is at most the q-quantile of the gold labels' scores contain the gold label in a share q.
    """
    ranked, order = probabilities.sort(1, descending=True)
    above = ranked.cumsum(1) - ranked
    return torch.empty_like(probabilities).scatter(1, order, above + part[:, None] * ranked)


def measured(seen: Seen, warmth: float) -> Tensor:
    """Return the quantiles at LEVELS of the distances and of the set scores of the gold labels."""
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    probabilities = (seen.scores.double() / math.exp(warmth)).softmax(1)
    part = (GOLDEN * torch.arange(1, len(seen.gold) + 1, dtype=torch.float64)) % 1
    sets = set_scores(probabilities, part).gather(1, seen.gold[:, None]).squeeze(1)
    return torch.cat([seen.distances.double().quantile(levels), sets.quantile(levels)])

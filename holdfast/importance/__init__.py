"""Importance: how much a model's answers depend on each weight (equation 1), and other estimators."""

from holdfast.importance.per_sample import fisher, mas, mean_gradients, perturbation
from holdfast.importance.sequences import SequenceSums, sequence_fisher, sequence_mas

__all__ = [
    "SequenceSums",
    "fisher",
    "mas",
    "mean_gradients",
    "perturbation",
    "sequence_fisher",
    "sequence_mas",
]

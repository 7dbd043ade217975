"""How much a model's answers depend on each weight: equation 1 of the paper, and other estimators."""

from holdfast.importance.per_sample import fisher, mas, mean_gradients, perturbation

__all__ = ["fisher", "mas", "mean_gradients", "perturbation"]

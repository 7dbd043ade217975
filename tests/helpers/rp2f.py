"""A naive version of RP2F's robustness term."""

from __future__ import annotations

import torch
from torch import Tensor

F64 = torch.float64
HEAD = "head.linear.weight"


def naive_decorrelation(features: Tensor) -> Tensor:
    """Return the mean over ordered pairs of samples of (Σ_d f̃_n f̃_m)²."""
    n, d = features.shape
    if n == 1:
        return features.new_zeros(())
    standard = []
    for row in features:
        mean = row.sum() / d
        variance = ((row - mean) ** 2).sum() / (d - 1)
        standard.append((row - mean) / (1e-8 + variance).sqrt())
    total = features.new_zeros(())
    for i in range(n):
        for j in range(n):
            if i != j:
                total = total + (standard[i] * standard[j]).sum() ** 2
    return total / (n * (n - 1))

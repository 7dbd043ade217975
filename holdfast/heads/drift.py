"""Estimate how training moves the features, from current data only."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.maths.products import gram

RIDGE = 0.1  # as a fraction of the mean diagonal entry of Z_oᵀZ_o


def ridge_map(old: Tensor, new: Tensor, ridge: float = RIDGE) -> Tensor:
    """Return T = (Z_oᵀZ_o + r I)⁻¹ Z_oᵀ(Z_n - Z_o), r = ridge · trace(Z_oᵀZ_o)/d: Z_n ≈ Z_o (I + T).

    `old` and `new` are vectors of the same sentences. In directions without data T is 0: no movement.
    """
    before, moved = old.double().cpu(), (new.double() - old.double()).cpu()
    products = gram(before)
    strength = ridge * products.trace() / len(products)
    if strength == 0:
        return torch.zeros_like(products)
    regular = products + strength * torch.eye(len(products), dtype=products.dtype)
    found: Tensor = torch.linalg.solve(regular, before.T @ moved)
    return found


def relative_drift(old: Tensor, new: Tensor) -> float:
    """Return ‖Z_n - Z_o‖ / ‖Z_o‖."""
    size = old.double().norm()
    return float((new.double() - old.double()).norm() / size) if size > 0 else 0.0

"""Matrix products of which only one half has to be computed."""

from __future__ import annotations

import torch
from scipy.linalg.blas import dsyrk
from torch import Tensor


def gram(rows: Tensor) -> Tensor:
    """Return ZᵀZ of the rows of Z, in double precision and symmetric to the bit.

    BLAS computes one triangle of a symmetric product (`dsyrk`): half the work of a matrix product.
    """
    z = rows.detach().double().cpu().contiguous()
    if not z.numel():
        return torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64)
    half = torch.from_numpy(dsyrk(1.0, z.numpy().T))  # the other half is 0
    whole = half + half.T
    whole.diagonal().mul_(0.5)
    return whole

"""Products and factors of symmetric matrices, of which only one half has to be computed."""

from __future__ import annotations

import torch
from scipy.linalg.blas import dsyrk
from scipy.linalg.lapack import dpotrf, spotrf
from torch import Tensor

BLOCK = 256  # columns that are copied at once, so that a block and its mirror image stay in the cache


def gram(rows: Tensor) -> Tensor:
    """Return ZᵀZ of the rows of Z, in double precision and symmetric to the bit."""
    return mirrored(half_gram(rows))


def half_gram(rows: Tensor) -> Tensor:
    """Return ZᵀZ on and above the diagonal, and 0 below it.

    BLAS computes one triangle of a symmetric product (`dsyrk`): half the work of a matrix product.
    """
    z = rows.detach().double().cpu().contiguous()
    if not z.numel():
        return torch.zeros(z.shape[1], z.shape[1], dtype=torch.float64)
    return torch.from_numpy(dsyrk(1.0, z.numpy().T, lower=True)).T


def mirrored(upper: Tensor) -> Tensor:
    """Return a matrix with its upper half copied to its lower half, in place."""
    for i in range(0, len(upper), BLOCK):
        corner = upper[i : i + BLOCK, i : i + BLOCK]
        corner.copy_(corner.triu() + corner.triu(1).T)
        for j in range(i + BLOCK, len(upper), BLOCK):
            upper[j : j + BLOCK, i : i + BLOCK] = upper[i : i + BLOCK, j : j + BLOCK].T
    return upper


def cholesky(matrix: Tensor) -> Tensor | None:
    """Return the lower triangular L with LLᵀ = A; None if A is not positive definite.

    SciPy's LAPACK takes three quarters of the time of torch's.
    """
    a = matrix.contiguous()
    potrf = spotrf if a.dtype == torch.float32 else dpotrf
    upper, info = potrf(a.numpy().T, lower=False, clean=True)
    return None if info else torch.from_numpy(upper).T

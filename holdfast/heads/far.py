"""The relative Mahalanobis distance (Ren et al. 2021), which says how far out a sentence lies."""

from __future__ import annotations

import torch
from torch import Tensor

from holdfast.heads.discriminant import shrunk
from holdfast.heads.sums import ClassSums, factored
from holdfast.maths.products import gram


class RelativeDistance:
    """min_k d²_Σ(z, μ_k) - d²_T(z, μ), Σ the covariance around the class means and T the one around μ.

    Both are shrunk by e. It is a function of some columns of the sums as they are now; `spread` is Σ there.
    """

    def __init__(self, sums: ClassSums, columns: slice, spread: Tensor, shrinkage: float) -> None:
        counts, means, total = sums.counts, sums.means()[:, columns], sums.sums[:, columns].sum(0)
        self.counts, self.shrinkage = counts, shrinkage
        self.n, self.present = float(counts.sum()), counts > 0
        self.free = max(self.n - int(self.present.sum()), 1.0)
        self.means, self.middle = means, total[None] / self.n
        between = gram((means - total / counts.sum()) * counts.sqrt()[:, None])
        around = (sums.within()[columns, columns] + between) / counts.sum()
        size = means.square().sum(1) @ counts / counts.sum()
        if float(around.trace()) <= 1e-12 * float(size):  # rounding errors of equal sentences
            around = torch.eye(len(around), dtype=around.dtype)
        self.within = factored(shrunk(spread, shrinkage))
        """Cholesky factor of Σ."""
        self.total = factored(shrunk(around, shrinkage))
        """Cholesky factor of T."""

    def of(self, z: Tensor, own: Tensor | None = None) -> Tensor:
        """Return the distances of vectors; `own` are the rows of learnt ones, which are then left out."""
        w, m = (torch.linalg.solve_triangular(self.within, x.T, upper=False).T for x in (z, self.means))
        v, c = (torch.linalg.solve_triangular(self.total, x.T, upper=False).T for x in (z, self.middle))
        near, around = torch.cdist(w, m).square(), (v - c).square().sum(1)
        if own is not None:
            n, counts, q = self.n, self.counts[own], w - m[own]
            gain = gain_without(q, counts, (1 - self.shrinkage) / self.free)
            size = q.square().sum(1)
            apart = (w * q).sum(1, keepdim=True) - q @ m.T  # (w - m_j)ᵀq
            near = near + gain[:, None] * apart.square()
            alone = (counts / (counts - 1)).square() * (size + gain * size.square())
            near = near.scatter(1, own[:, None], alone[:, None])
            gain = gain_without(v - c, torch.full_like(counts, n), (1 - self.shrinkage) / n)
            around = (n / (n - 1)) ** 2 * (around + gain * around.square())
        found: Tensor = near[:, self.present].min(1).values - around
        return found


def gain_without(q: Tensor, n: Tensor, share: Tensor | float) -> Tensor:
    """Return β / (1 - β |q|²) for vectors q from their mean, β = share · n/(n-1).

    By so much, times q qᵀ, the inverse of a covariance grows without the vector (Sherman and Morrison).
    """
    beta = share * n / (n - 1)
    return beta / (1 - beta * q.square().sum(1))

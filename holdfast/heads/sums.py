"""Class sums, the memory of a computed head: exact, and independent of order.

Per label k: n_k, s_k = Σ z and S_k = Σ z zᵀ, in double precision. Sums do not depend on order or batching:
learning a class later equals learning it jointly, two states can be added, and a class can be removed as if
it had never been learnt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.maths.params import Params

JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)  # shares of the mean diagonal
Scatter = Literal["per-class", "pooled"]


class ClassSums:
    """n_k, s_k and S_k of every label; `pooled` keeps one S for all labels, without exact removal."""

    def __init__(self, width: int, scatter: Scatter = "per-class") -> None:
        self.width = width
        self.scatter = scatter
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.sums = torch.zeros(0, width, dtype=torch.float64)
        # Only the upper triangle of each symmetric S_k: these take most of a state's space on disk.
        self.triangles = torch.zeros(int(scatter == "pooled"), width * (width + 1) // 2, dtype=torch.float64)

    @property
    def bytes_per_label(self) -> int:
        """Memory that one more label takes."""
        own = self.triangles.shape[1] if self.scatter == "per-class" else 0
        return self.sums.element_size() * (1 + self.width + own)

    def grow(self, classes: int) -> None:
        """Add zeros for new labels."""
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])
        self.sums = torch.cat([self.sums, self.sums.new_zeros(classes, self.width)])
        if self.scatter == "per-class":
            self.triangles = torch.cat(
                [self.triangles, self.triangles.new_zeros(classes, self.triangles.shape[1])]
            )

    def add(self, features: Tensor, rows: Tensor, sign: int = 1) -> None:
        """Add vectors to their classes, or remove them (sign = -1). Not in place: `state` shares tensors."""
        z = features.detach().double().cpu()
        self.counts = self.counts.index_add(0, rows, torch.ones(len(rows), dtype=torch.float64), alpha=sign)
        self.sums = self.sums.index_add(0, rows, z, alpha=sign)
        self.triangles = self.triangles.clone()
        upper = _upper(self.width)
        for row in sorted(set(rows.tolist())):
            own = z[rows == row]
            place = row if self.scatter == "per-class" else 0
            self.triangles[place] += sign * (own.T @ own)[upper]

    def merge(self, other: ClassSums, rows: Sequence[int]) -> None:
        """Add the sums of `other`; `rows` are the rows of its classes in this object."""
        where = torch.tensor(rows, dtype=torch.long)
        self.counts = self.counts.index_add(0, where, other.counts)
        self.sums = self.sums.index_add(0, where, other.sums)
        places = where if self.scatter == "per-class" else torch.zeros(1, dtype=torch.long)
        self.triangles = self.triangles.index_add(0, places, other.triangles)

    def remove(self, row: int) -> None:
        """Remove a class: completely with one S per class; a pooled S keeps its share."""
        kept = [i for i in range(len(self.counts)) if i != row]
        self.counts, self.sums = self.counts[kept], self.sums[kept]
        if self.scatter == "per-class":
            self.triangles = self.triangles[kept]

    def carry(self, move: Tensor) -> None:
        """Move the sums with the features, z -> z (I + T): s_k (I + T) and (I + T)ᵀ S_k (I + T)."""
        along = torch.eye(self.width, dtype=torch.float64) + move.double()
        self.sums = self.sums @ along
        upper = _upper(self.width)
        moved = [(along.T @ square @ along)[upper] for square in self._squares(range(len(self.triangles)))]
        self.triangles = torch.stack(moved) if moved else self.triangles

    def means(self) -> Tensor:
        """Return μ_k of every class; 0 for a class without samples."""
        return self.sums / self.counts.clamp(min=1)[:, None]

    def moments(self) -> Tensor:
        """Return S = Σ z zᵀ over all classes."""
        return _square(self.triangles.sum(0), self.width)

    def covariance(self, *, balanced: bool = False) -> Tensor:
        """Return Σ = (S - Σ_k s_k s_kᵀ / n_k) / max(N - K, 1), around the class means; identity if it is 0.

        `balanced`, if not pooled, gives every class the same weight: the mean of the class covariances.
        """
        present = (self.counts > 0).nonzero().squeeze(1).tolist()
        total = torch.zeros(self.width, self.width, dtype=torch.float64)
        if balanced and self.scatter == "per-class":
            for row, square in zip(present, self._squares(present), strict=True):
                n, s = self.counts[row], self.sums[row]
                total += (square - torch.outer(s, s) / n) / (n * len(present))
        else:
            total += self.moments()
            scaled = self.sums[present] / self.counts[present].sqrt()[:, None]
            total -= scaled.T @ scaled
            total /= max(float(self.counts.sum()) - len(present), 1.0)
        # A covariance of pure rounding error (one sample per class) counts as 0.
        scale = float(self.triangles.sum(0)[_diagonal(self.width)].sum()) / max(float(self.counts.sum()), 1.0)
        if float(total.trace()) <= 1e-12 * scale:
            return torch.eye(self.width, dtype=torch.float64)
        return total

    def state(self) -> Params:
        """Return the sums by name."""
        return {"counts": self.counts, "sums": self.sums, "triangles": self.triangles}

    def load(self, state: Params) -> None:
        """Restore the result of `state`."""
        self.counts, self.sums, self.triangles = (
            state[name].cpu() for name in ("counts", "sums", "triangles")
        )

    def _squares(self, rows: Iterable[int]) -> Iterable[Tensor]:
        return (_square(self.triangles[row], self.width) for row in rows)


def factored(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of a symmetric matrix; one that is nearly singular is regularised."""
    scale = matrix.diagonal().mean()
    for jitter in JITTERS:
        found = torch.linalg.cholesky_ex(matrix + jitter * scale * torch.eye(len(matrix)).to(matrix))
        factor: Tensor = found.L
        if not found.info and torch.isfinite(factor).all():
            return factor
    raise HoldfastError(
        "the sums of the head are no sums of squares; restore the state, or go back a generation"
    )


def _upper(width: int) -> tuple[Tensor, Tensor]:
    rows, columns = torch.triu_indices(width, width)
    return rows, columns


def _diagonal(width: int) -> Tensor:
    """Return the positions of the diagonal in a packed triangle."""
    rows, columns = _upper(width)
    return (rows == columns).nonzero().squeeze(1)


def _square(triangle: Tensor, width: int) -> Tensor:
    rows, columns = _upper(width)
    square = torch.zeros(width, width, dtype=triangle.dtype)
    square[rows, columns] = triangle
    square[columns, rows] = triangle
    return square

"""Second moments for projectors, and the dimension of a projector."""

from __future__ import annotations

import torch
from torch import Tensor


def kept(P: Tensor) -> int:
    """Return the dimension of an orthogonal projector's image, which is its trace."""
    return round(float(P.trace()))


def random_moment(d: int, rank: int | None = None, seed: int = 0) -> Tensor:
    rows = torch.randn(rank or 2 * d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows.T @ rows / len(rows)

"""Shorthands for float64 tensors."""

from __future__ import annotations

import torch
from torch import Tensor

F64 = torch.float64


def vector(*values: float, dtype: torch.dtype = F64) -> Tensor:
    return torch.tensor(values, dtype=dtype)

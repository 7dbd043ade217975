"""Penalty weights from importance: normalised, or relative to the importance for a new task."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.importance.relative import modified, relative
from holdfast.maths.equations import Strategy
from holdfast.maths.params import Params, precise

Normalise = Literal["global", "tensor", "none"]
CAP = 1e4


def check_values(values: Params, weights: Mapping[str, Tensor]) -> None:
    """Raise HoldfastError for importances that cannot be; warn about weights without importance."""
    if not values:
        raise HoldfastError("none of the trainable weights has an importance; measure it on this model")
    for name, value in values.items():
        if not torch.isfinite(value).all():
            raise HoldfastError(f"the importance of {name} has NaN or infinite values; measure it again")
        if not value.is_floating_point() or (value < 0).any():
            raise HoldfastError(f"the importance of {name} has negative values; measure it again")
    if not any(value.any() for value in values.values()):
        raise HoldfastError("all importances are 0, which protects nothing; measure them again")
    free = [name for name in weights if name not in values and "lora_A." not in name]
    if free:
        warnings.warn(
            f"{len(free)} trained tensors have no importance and are not protected, such as {free[0]}",
            stacklevel=3,
        )


def normalised(values: Params, how: Normalise = "global", cap: float | None = CAP) -> Params:
    """Return min(α / mean α, cap), with the mean of all weights or of each tensor; `none` does not divide."""
    if how == "none":
        scaled = {name: precise(value) for name, value in values.items()}
    else:
        overall = _mean(values)
        scales = {
            name: _mean({name: value}) if how == "tensor" else overall for name, value in values.items()
        }
        scaled = {name: precise(value) / (scales[name] or 1.0) for name, value in values.items()}
    return scaled if cap is None else {name: value.clamp(max=cap) for name, value in scaled.items()}


def relatively(
    past: Params,
    ahead: Params,
    *,
    lam: float = 1.0,
    lam_max: float | None = None,
    up: float = 0.0,
    down: float = 1.0,
    fraction: float = 0.8,
    strategy: Strategy = "balance",
    normalise: Normalise = "global",
    cap: float | None = CAP,
) -> Params:
    """Return α' (equations 4 and 5); both importances are divided by the past one's mean to compute ρ."""
    scale = _mean(past) or 1.0
    among = relative(
        {name: precise(value) / scale for name, value in past.items()},
        {name: precise(ahead[name]).to(value.device) / scale for name, value in past.items()},
        fraction=fraction,
    )
    held = normalised(past, normalise, cap)
    return modified(held, among, lam=lam, lam_max=lam_max or 0.0, up=up, down=down, strategy=strategy)


def _mean(values: Params) -> float:
    count = sum(value.numel() for value in values.values())
    return math.fsum(float(value.sum(dtype=torch.float64)) for value in values.values()) / max(count, 1)

"""Relative importance: the past's share of a weight's importance (equations 4 and 5 of the paper).

Used for classifiers by `methods/la.py` and for language models by `lm/weighing.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from holdfast.maths.equations import Strategy, cutoff, lam_up, modulate, relative_importance
from holdfast.maths.params import Params, layer_of


class Relative(NamedTuple):
    """The relative importance ρ of one tensor's weights, and the cut-off τ between high and low."""

    rho: Tensor
    tau: float


def relative(
    past: Params, ahead: Params, *, fraction: float = 0.8, tau: float | None = None
) -> dict[str, Relative]:
    """Return ρ and τ of every tensor: equation 4. τ is a fraction of the tensor's mean ρ, or fixed."""
    found = {}
    for name, value in past.items():
        rho = relative_importance(value, ahead[name])
        found[name] = Relative(rho, cutoff(rho, fraction) if tau is None else tau)
    return found


def modified(
    past: Params,
    among: Mapping[str, Relative],
    *,
    lam: float,
    lam_max: float,
    up: float,
    down: float,
    strategy: Strategy = "balance",
) -> Params:
    """Return α': equation 5 for the tensors in `among`, α_{k-1} for the others.

    λ_up is `up` times λ_max/λ, never below 1/τ.
    """
    weights = dict(past)
    for name, (rho, tau) in among.items():
        weights[name] = modulate(past[name], rho, tau, lam_up(tau, lam, lam_max, up), down, strategy)
    return weights


def moved_about(among: Mapping[str, Relative], start: Params, trained: Params) -> dict[str, float]:
    """Return the root mean square movement of the weights above the cut-off, and of those below it."""
    sums = {"rms_above": 0.0, "rms_below": 0.0}
    counts = dict.fromkeys(sums, 0)
    for name, (rho, tau) in among.items():
        squares, above = (trained[name] - start[name]).double().square(), rho > tau
        for side, chosen in (("rms_above", above), ("rms_below", ~above)):
            sums[side] += float(squares[chosen].sum())
            counts[side] += int(chosen.sum())
    return {side: (sums[side] / max(counts[side], 1)) ** 0.5 for side in sums}


def mean_by_layer(among: Mapping[str, Relative]) -> dict[str, float]:
    """Return the mean ρ of each layer."""
    layers: dict[str, list[Tensor]] = {}
    for name, (rho, _) in among.items():
        layers.setdefault(layer_of(name), []).append(rho.flatten())
    return {layer: round(float(torch.cat(parts).mean()), 4) for layer, parts in layers.items()}


def histograms(among: Mapping[str, Relative]) -> dict[str, dict[str, Any]]:
    """Return the distribution of ρ in each tensor, in 20 bins from 0 to 1, with its mean and τ."""
    return {
        name: {
            "bins": torch.histc(rho.float(), bins=20, min=0, max=1).int().tolist(),
            "mean": round(float(rho.mean()), 4),
            "tau": round(float(tau), 4),
        }
        for name, (rho, tau) in among.items()
    }

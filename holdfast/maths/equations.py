"""The paper's equations in its own order and symbols, then those of other methods, as pure functions.

Suresh, Nkisi-Orji, Wiratunga: "Relative Parameter Importance in Task-Agnostic Replay-Free Continual
Learning". Equation 1, the importance itself, needs a model and is in `importance/`; equation 2 is the
task loss, in `losses.py`. No function here changes an argument.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

Params = dict[str, Tensor]
Strategy = Literal["balance", "cf", "kt"]
Pooling = Literal["mean", "sum", "max", "ema", "half"]

TAU_FLOOR = 0.05  # keeps the lower bound 1/tau finite where the past needs (almost) nothing of a tensor


def quadratic_penalty(params: Params, anchor: Params, weights: Params, lam: float) -> Tensor:
    """Equation 3, second term: (λ/2) Σ_j α'_j (θ_{k-1,j} - θ_j)²."""
    drift = torch._foreach_sub(list(params.values()), [anchor[name] for name in params])
    terms = torch._foreach_mul(torch._foreach_mul(drift, drift), [weights[name] for name in params])
    return lam / 2 * torch.stack([term.sum() for term in terms]).sum()


def relative_importance(alpha_past: Tensor, alpha_ahead: Tensor, eps: float = 1e-10) -> Tensor:
    """Equation 4: ρ = α_{k-1} / (α_{k-1} + α_la + ε), in [0, 1].

    ε makes 0/0 a 0: a weight that neither past nor present needs is free.
    """
    return alpha_past / (alpha_past + alpha_ahead + eps)


def cutoff(rho: Tensor, fraction: float = 0.8) -> float:
    """Return the cut-off τ between high and low relative importance: a fraction of this tensor's mean."""
    return fraction * float(rho.mean()) if rho.numel() else 0.0


def modulate(
    alpha_past: Tensor, rho: Tensor, tau: float, up: float, down: float, strategy: Strategy = "balance"
) -> Tensor:
    """Equation 5: α' = λ_up ρ α_{k-1} where ρ > τ, λ_down ρ α_{k-1} elsewhere.

    `balance` is the paper's CF-KT balance; `cf` (CF focus) and `kt` (KT focus) change one side only and
    leave α_{k-1} on the other.
    """
    if strategy not in ("balance", "cf", "kt"):
        raise ValueError(f"unknown strategy {strategy!r}: use balance, cf or kt")
    high = alpha_past if strategy == "kt" else up * rho * alpha_past
    low = alpha_past if strategy == "cf" else down * rho * alpha_past
    return torch.where(rho > tau, high, low)


def lam_up(tau: float, lam: float, lam_max: float, m: float) -> float:
    """Return λ_up = m λ_max/λ, never below 1/τ (m = 0)."""
    lowest, highest = up_bounds(tau, lam, lam_max)
    return max(m * highest, lowest)


def up_bounds(tau: float, lam: float, lam_max: float) -> tuple[float, float]:
    """Return the bounds of λ_up: 1/τ (at most 20), and the larger of that and λ_max/λ."""
    lowest = 1 / max(tau, TAU_FLOOR)
    return lowest, max(lam_max / lam, lowest) if lam > 0 else lowest


def reachable(scores: Sequence[float], epochs: int, window: int) -> float:
    """Return the score that a training run may still reach by its last epoch.

    Its best score so far rises at most as fast as over the last `window` epochs: learning curves flatten.
    Infinity before there are two windows.
    """
    if len(scores) < 2 * window:
        return math.inf
    best = max(scores)
    gain = best - max(scores[:-window])
    return best + gain / window * (epochs - len(scores))


def pool(
    alpha_past: Params, alpha_new: Params, tasks_seen: int, how: Pooling = "mean", keep: float = 0.5
) -> Params:
    """Return α_k: the pooled importance of all tasks, `tasks_seen` of which are in `alpha_past`.

    `mean` is the paper's running mean; `sum` is the rule of SI and of MAS's own code; `ema` keeps a share of
    the past and takes the rest from the new, from the first task on; `half` is RWalk's (old + new)/2, from
    the second task on.
    """
    k = tasks_seen
    if how == "mean":
        return {name: (k * past + alpha_new[name]) / (k + 1) for name, past in alpha_past.items()}
    if how == "max":
        return {name: torch.maximum(past, alpha_new[name]) for name, past in alpha_past.items()}
    weights = {"sum": (1.0, 1.0), "ema": (keep, 1 - keep), "half": (0.5, 0.5) if k else (0.0, 1.0)}
    if how not in weights:
        raise ValueError(f"unknown pooling {how!r}: use mean, max, {', '.join(weights)}")
    old, new = weights[how]
    return {name: old * past + new * alpha_new[name] for name, past in alpha_past.items()}


def merge(start: Params, ahead: Params, past: Params, new: Params, amount: float) -> Params:
    """Return θ = θ_la + m ρ (θ_{k-1} - θ_la): the past's share ρ, scaled by `amount` (m), is restored."""
    merged = {}
    for name, there in ahead.items():
        dtype = torch.promote_types(there.dtype, torch.float32)  # half precision cannot hold a small share
        rho = relative_importance(past[name].to(there.device, dtype), new[name].to(there.device, dtype))
        share = (amount * rho).clamp(max=1)
        merged[name] = torch.lerp(there.to(dtype), start[name].to(dtype), share).to(there.dtype)
    return merged


def curvature(squares: Params, start: Params, ahead: Params) -> Params:
    """Return h = √v/|θ_la - θ_{k-1}|, v the mean squared gradient on the way from θ_{k-1} to θ_la.

    On a quadratic the gradient falls from h Δ to 0 on a way of length Δ. Infinity where nothing moved.
    """
    found = {}
    for name, v in squares.items():
        way = (ahead[name] - start[name]).abs()
        found[name] = torch.where(way > 0, v.sqrt() / way, math.inf)
    return found


def balance(h: Params, weights: Params, start: Params, ahead: Params) -> float:
    """Return λ at which the penalty at θ_la is what the task loss gains there: Σ h Δ² / Σ α' Δ²."""
    gained = paid = 0.0
    for name, bend in h.items():
        if name in weights:
            squares = (ahead[name] - start[name]).double().square()
            gained += float(torch.where(squares > 0, bend * squares, 0.0).sum())
            paid += float((weights[name] * squares).sum())
    return gained / paid if paid else 0.0


def held(start: Params, ahead: Params, weights: Params, h: Params, lam: float) -> Params:
    """Return θ_la + c (θ_{k-1} - θ_la), c = λα'/(h + λα'): the minimum of a quadratic loss with the penalty.

    At λ = ∞ every weight with α' > 0 is at θ_{k-1}.
    """
    found = {}
    for name, there in ahead.items():
        if name not in weights:
            found[name] = there
            continue
        strength = lam * weights[name] if math.isfinite(lam) else weights[name]
        bend = h[name] if math.isfinite(lam) else torch.zeros_like(there)
        share = torch.where(strength > 0, strength / (bend + strength), 0.0)
        found[name] = torch.lerp(there, start[name], share.to(there.dtype))
    return found


def normalised(params: Params) -> Params:
    """Min-max normalise all weights together: the smallest is 0, the largest 1; all are 0 if equal."""
    low = min((float(value.min()) for value in params.values() if value.numel()), default=0.0)
    high = max((float(value.max()) for value in params.values() if value.numel()), default=0.0)
    if high <= low:
        return {name: torch.zeros_like(value) for name, value in params.items()}
    # In double precision: the range of squared small gradients may underflow in single precision.
    return {name: ((v.double() - low) / (high - low)).to(v.dtype) for name, v in params.items()}


def fuse(old: Params, learnt: Params, precision_old: Params, precision_new: Params) -> Params:
    """Return RP2F's precision-weighted mean of two posteriors; the learnt weight where both precisions are 0.

    It interpolates in double precision, so that the two shares add up to 1 however small the precisions are.
    """
    fused = {}
    for name, start in old.items():
        past, new = precision_old[name].double(), precision_new[name].double()
        share = torch.where(past + new > 0, new / (past + new), torch.ones_like(new))
        fused[name] = torch.lerp(start.double(), learnt[name].double(), share).to(start.dtype)
    return fused

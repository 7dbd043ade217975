"""Naive gradients and second moments of AdaBOP, and learners to compare them with."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from helpers.learners import make_learner
from torch import Tensor, nn

from holdfast.data.tasks import Stream
from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods.adabop import AdaBOP

HELD = {"lr", "lam_s", "lam_l", "eps"}


def adabop_learner(
    path: str, stream: Stream, settings: Any = None, *, fixed: Any = (), **values: Any
) -> Learner:
    return make_learner(path, AdaBOP(**values), stream, settings, fixed=fixed)


def shaken(learner: Learner) -> Learner:
    """Perturb all weights: adapters near the identity would hide mistakes."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in P.trainable(learner.model).values():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    return learner


def loss_by_hand(hand: AtHand, logits: Tensor, labels: Tensor) -> Tensor:
    """Return the relaxed balanced softmax loss: a label's prior is its count, or 1 if it is old."""
    counts = hand.task.train.counts()
    prior = torch.tensor([float(counts.get(label, 1)) for label in hand.model.head.labels])
    return -(logits + prior.log()).log_softmax(1)[range(len(labels)), labels].mean()


def gradients_by_hand(hand: AtHand) -> Params:
    """Return the mean gradient at the current weights, sentence by sentence, without dropout."""
    weights = P.trainable(hand.model)
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    hand.model.eval()
    for i in range(len(hand.train)):
        batch = hand.train.collate([i])
        loss = loss_by_hand(hand, hand.model(batch).logits, batch.labels)
        for name, g in zip(weights, torch.autograd.grad(loss, list(weights.values())), strict=True):
            sums[name] += g / len(hand.train)
    hand.model.train()
    return sums


def moments_by_hand(model: nn.Module, batches: list[Any]) -> tuple[dict[str, np.ndarray], dict[str, int]]:
    """Return the mean of x xᵀ for every trained layer, and the number of its inputs x."""
    seen: dict[str, list[np.ndarray]] = {}

    def note(name: str) -> Any:
        return lambda module, args: seen.setdefault(name, []).append(
            args[0].double().reshape(-1, module.in_features).numpy()
        )

    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear) and m.weight.requires_grad]
    handles = [module.register_forward_pre_hook(note(name)) for name, module in layers]
    model.eval()
    with torch.no_grad():
        for batch in batches:
            model(batch)
    for handle in handles:
        handle.remove()
    rows = {name: np.concatenate(found) for name, found in seen.items()}
    rows = {name: np.hstack([x, np.ones((len(x), 1))]) for name, x in rows.items()}
    return {name: x.T @ x / len(x) for name, x in rows.items()}, {name: len(x) for name, x in rows.items()}


def matrix(params: Params, place: str) -> np.ndarray:
    weight, bias = (params[f"{place}.{part}"].detach().double().numpy() for part in ("weight", "bias"))
    return np.hstack([weight, bias[:, None]])

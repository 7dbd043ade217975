"""Baselines: FLOW (sample weights) and WiSE-FT (weight averaging)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from holdfast.lm.finetune import sequence_losses
from holdfast.lm.text import Sequences, collate
from holdfast.maths.params import Params, eval_mode


@torch.no_grad()
def flow_weights(
    model: nn.Module, sequences: Sequences, pad: int, heat: float = 1.0, batch: int = 8
) -> list[float]:
    """Return FLOW's sample weights (Sanyal et al., ICML 2025): w_i = exp(-loss_i(θ_0)/τ).

    τ is `heat` times the median loss; a lower τ gives hard sequences less weight relative to easy ones.
    """
    losses = torch.cat([sequence_losses(*seen) for seen in _answers(model, sequences, pad, batch)])
    weights = torch.exp(-losses / (heat * losses.median()))
    return [float(weight) for weight in weights]


def _answers(model: nn.Module, sequences: Sequences, pad: int, batch: int) -> Iterator[tuple[Tensor, Tensor]]:
    device = next(model.parameters()).device
    with eval_mode(model):
        for start in range(0, len(sequences), batch):
            rows = [sequences[i] for i in range(start, min(start + batch, len(sequences)))]
            inputs = {name: value.to(device) for name, value in collate(rows, pad).items()}
            labels = inputs.pop("labels")
            yield model(**inputs).logits, labels


def wise_ft(start: Params, tuned: Params, share: float) -> Params:
    """Return (1 - g) θ_0 + g θ_ft with g = `share` (WiSE-FT, Wortsman et al., CVPR 2022)."""
    return {name: torch.lerp(value, tuned[name], share) for name, value in start.items()}

"""The importance of a language model's weights, one sequence at a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn

from holdfast.fields import check_word
from holdfast.maths.losses import IGNORED
from holdfast.maths.params import Params, eval_mode, precise, trainable

SequenceKind = Literal["mas", "fisher"]


class SequenceSums:
    """Importance of a language model, summed one sequence at a time in constant memory."""

    def __init__(self, model: nn.Module, kind: SequenceKind = "mas", *, squared: bool = False) -> None:
        check_word(kind, SequenceKind, "kind")
        self.kind = kind
        self.squared = squared
        self.count = 0
        self.whole = True
        """Whether every sum contains the same sequences; False if an addition was interrupted half-way."""
        self.sums = {name: torch.zeros_like(w, dtype=torch.float32) for name, w in trainable(model).items()}

    def add(self, model: nn.Module, sequence: Mapping[str, Tensor]) -> None:
        """Add a sequence or a batch: `input_ids`, and `labels` that are IGNORED outside the output."""
        weights = trainable(model)
        device = next(iter(weights.values())).device
        ids, labels = sequence["input_ids"].to(device), sequence["labels"].to(device)
        if ids.dim() == 2:
            for row in range(len(ids)):
                self.add(model, {name: value[row] for name, value in sequence.items()})
            return
        if "attention_mask" in sequence:
            kept = sequence["attention_mask"].to(device).bool()
            ids, labels = ids[kept], labels[kept]
        # The logits at t - 1 predict token t.
        asked = labels[1:] != IGNORED
        if not asked.any():
            return
        with eval_mode(model):
            logits = precise(model(input_ids=ids[None]).logits[0, :-1][asked])
            if self.kind == "fisher":
                likely = nn.functional.cross_entropy(logits, labels[1:][asked], reduction="sum")
                score = likely / len(logits) ** 0.5
            else:
                norms = logits.square().sum(1) if self.squared else logits.norm(dim=1)
                score = norms.mean()
            found = torch.autograd.grad(score, list(weights.values()), allow_unused=True)
        magnitude = torch.square if self.kind == "fisher" else torch.abs
        self.whole = False
        for name, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                self.sums[name] += magnitude(precise(gradient))
        self.count += 1
        self.whole = True

    def mean(self) -> Params:
        """Return the mean over the sequences so far."""
        return {name: total / max(self.count, 1) for name, total in self.sums.items()}


def sequence_mas(
    model: nn.Module, sequences: Iterable[Mapping[str, Tensor]], *, squared: bool = False
) -> Params:
    """Return α_j = (1/n) Σ_i |∂ (1/T_i) Σ_t ‖z_it‖ / ∂θ_j| over the T_i output tokens of each sequence.

    This is the paper's extension to text generation. Prompt and padding do not count. `squared` uses the
    squared norm, as MAS does for classifiers.
    """
    sums = SequenceSums(model, "mas", squared=squared)
    for sequence in sequences:
        sums.add(model, sequence)
    return sums.mean()


def sequence_fisher(model: nn.Module, sequences: Iterable[Mapping[str, Tensor]]) -> Params:
    """Return F_j = (1/n) Σ_i (∂ log p(output_i) / ∂θ_j)² / T_i: an estimate of the mean loss's curvature."""
    sums = SequenceSums(model, "fisher")
    for sequence in sequences:
        sums.add(model, sequence)
    return sums.mean()

"""Sentences as token ids, in batches of similar length, each padded to its longest sentence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import distributed
from holdfast.maths.losses import IGNORED, Objective

BUCKET = 50  # batches sorted together: enough for little padding, few enough to shuffle well
LENGTHS = (16, 32, 64, 128, 256)  # upper limits of the groups of `Batch.by_length`


@dataclass(frozen=True)
class Batch:
    """A model's input: token ids, attention mask, gold rows of the head, and the loss."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    objective: Objective | None = None

    def to(self, device: torch.device) -> Batch:
        """Return the batch on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            labels=self.labels.to(device),
        )

    def without_loss(self) -> Batch:
        """Return the batch without its loss, which needs all processes to take part."""
        return replace(self, objective=None)

    def rows(self, indices: Tensor) -> Batch:
        """Return some of the samples, with as little padding as they need."""
        mask = self.attention_mask[indices]
        longest = int(mask.sum(1).max())
        return replace(
            self,
            input_ids=self.input_ids[indices, :longest],
            attention_mask=mask[:, :longest],
            labels=self.labels[indices],
        )

    def by_length(self) -> list[Tensor]:
        """Return groups of rows of similar length, so that one long sentence does not pad all others."""
        grade = torch.bucketize(self.attention_mask.sum(1), torch.tensor(LENGTHS, device=self.labels.device))
        return [(grade == g).nonzero().squeeze(1) for g in sorted(set(grade.tolist()))]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Examples:
    """Encoded sentences, to be divided into batches."""

    tokens: Sequence[Sequence[int]]
    labels: Sequence[int]
    pad: int
    objective: Objective | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def drawn(self, most: int, seed: int) -> Examples:
        """Return at most `most` sentences, drawn at random: the first ones may not be typical."""
        if len(self) <= most:
            return self
        chosen = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:most].tolist()
        return replace(self, tokens=[self.tokens[i] for i in chosen], labels=[self.labels[i] for i in chosen])

    def batches(self, size: int, shuffle: torch.Generator | None = None) -> Iterator[Batch]:
        """Yield this process's share of every batch: shuffled and length-bucketed, or sorted by length."""
        for indices in self.order(size, shuffle):
            own = distributed.share(indices)
            # A process without samples must still take part: it gets one sample that the loss ignores.
            batch = self.collate(own or indices[:1])
            yield batch if own else replace(batch, labels=torch.full_like(batch.labels, IGNORED))

    def order(self, size: int, shuffle: torch.Generator | None = None) -> list[list[int]]:
        """Return the indices of each batch, in the order of use."""
        if shuffle is None:
            return _cut(sorted(range(len(self)), key=self._length), size)
        mixed = torch.randperm(len(self), generator=shuffle).tolist()
        cut = [
            batch
            for bucket in _cut(mixed, BUCKET * size)
            for batch in _cut(sorted(bucket, key=self._length), size)
        ]
        return [cut[i] for i in torch.randperm(len(cut), generator=shuffle).tolist()]

    def collate(self, indices: Sequence[int]) -> Batch:
        """Return these sentences as one batch."""
        rows = [self.tokens[i] for i in indices]
        longest = max(len(row) for row in rows)
        return Batch(
            input_ids=torch.tensor([[*row, *[self.pad] * (longest - len(row))] for row in rows]),
            attention_mask=torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows]),
            labels=torch.tensor([self.labels[i] for i in indices]),
            objective=self.objective,
        )

    def _length(self, index: int) -> int:
        return len(self.tokens[index])


def _cut(indices: list[int], size: int) -> list[list[int]]:
    return [indices[start : start + size] for start in range(0, len(indices), size)]

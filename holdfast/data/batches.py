"""Sentences as token ids, in batches of like length padded only to their own longest."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from holdfast import distributed
from holdfast.maths.losses import IGNORED, Objective

BUCKET = 50  # batches sorted together: long enough for little padding, short enough to shuffle well
LENGTHS = (16, 32, 64, 128, 256)  # where `Batch.by_length` cuts


@dataclass(frozen=True)
class Batch:
    """What a model is given: token ids, their mask, gold rows of the head, and the loss that scores them."""

    input_ids: Tensor
    attention_mask: Tensor
    labels: Tensor
    objective: Objective | None = None

    def to(self, device: torch.device) -> Batch:
        """The batch on a device."""
        return replace(
            self,
            input_ids=self.input_ids.to(device),
            attention_mask=self.attention_mask.to(device),
            labels=self.labels.to(device),
        )

    def without_loss(self) -> Batch:
        """The batch for a look at the model only: the loss is a matter of all processes, a look is not."""
        return replace(self, objective=None)

    def rows(self, indices: Tensor) -> Batch:
        """Some of the samples, padded no longer than they need."""
        mask = self.attention_mask[indices]
        longest = int(mask.sum(1).max())
        return replace(
            self,
            input_ids=self.input_ids[indices, :longest],
            attention_mask=mask[:, :longest],
            labels=self.labels[indices],
        )

    def by_length(self) -> list[Tensor]:
        """Rows of like length, so that one long sentence does not pad all the others to its own length."""
        grade = torch.bucketize(self.attention_mask.sum(1), torch.tensor(LENGTHS, device=self.labels.device))
        return [(grade == g).nonzero().squeeze(1) for g in sorted(set(grade.tolist()))]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Examples:
    """Encoded sentences, ready to be cut into batches as often as wanted."""

    tokens: Sequence[Sequence[int]]
    labels: Sequence[int]
    pad: int
    objective: Objective | None = None

    def __len__(self) -> int:
        return len(self.tokens)

    def drawn(self, most: int, seed: int) -> Examples:
        """At most so many of the sentences, drawn at random: the first would be the shortest once sorted."""
        if len(self) <= most:
            return self
        chosen = torch.randperm(len(self), generator=torch.Generator().manual_seed(seed))[:most].tolist()
        return replace(self, tokens=[self.tokens[i] for i in chosen], labels=[self.labels[i] for i in chosen])

    def batches(self, size: int, shuffle: torch.Generator | None = None) -> Iterator[Batch]:
        """This process's share of every batch: shuffled and length-bucketed, or sorted by length."""
        for indices in self.order(size, shuffle):
            own = distributed.share(indices)
            # A process without a sample of its own still has to take part: one that counts for nothing.
            batch = self.collate(own or indices[:1])
            yield batch if own else replace(batch, labels=torch.full_like(batch.labels, IGNORED))

    def order(self, size: int, shuffle: torch.Generator | None = None) -> list[list[int]]:
        """The indices of each batch, in the order they are run."""
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
        """These sentences as one batch."""
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

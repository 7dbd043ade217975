"""Sentence vectors made up for a head, without an encoder behind them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.heads import ClosedFormHead, Taught


@dataclass(frozen=True)
class MadeUpVectors:
    """The vectors of a task; `old` are the training vectors before the encoder moved, None if it did not."""

    train: Taught
    valid: Taught
    old: Taught | None = None

    @property
    def moved(self) -> bool:
        return self.old is not None

    def before(self, part: Literal["train", "valid"]) -> Taught:
        assert part == "train" or self.old is None, "nobody has said where validation sentences were"
        return self.old if part == "train" and self.old is not None else self.after(part)

    def after(self, part: Literal["train", "valid"]) -> Taught:
        return {"train": self.train, "valid": self.valid}[part]


def absorb(
    head: ClosedFormHead, train: Taught, valid: Taught, *, old: Taught | None = None
) -> dict[str, float]:
    """Let a head take a task in; what it notes."""
    return head.absorb(MadeUpVectors(train, valid, old))

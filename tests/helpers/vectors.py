"""Made-up sentence vectors for a head, without an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from holdfast.heads import ClosedFormHead, Taught


@dataclass(frozen=True)
class MadeUpVectors:
    """The vectors of a task. `old` holds the training vectors from before the encoder changed, if it did."""

    train: Taught
    valid: Taught
    old: Taught | None = None

    @property
    def moved(self) -> bool:
        return self.old is not None

    def before(self, part: Literal["train", "valid"]) -> Taught:
        assert part == "train" or self.old is None, "the old validation vectors are unknown"
        return self.old if part == "train" and self.old is not None else self.after(part)

    def after(self, part: Literal["train", "valid"]) -> Taught:
        return {"train": self.train, "valid": self.valid}[part]


def absorb(
    head: ClosedFormHead, train: Taught, valid: Taught, *, old: Taught | None = None
) -> dict[str, float]:
    """Let a head absorb a task; return its notes."""
    return head.absorb(MadeUpVectors(train, valid, old))

"""Passes over the data, counted in batches per phase: the unit of the paper's computation-cost table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

Passes = dict[str, dict[str, int]]  # phase -> {"forward": batches, "backward": batches}


def added(*many: Passes) -> Passes:
    """The sum of several counts."""
    total: Passes = {}
    for passes in many:
        for phase, counts in passes.items():
            mine = total.setdefault(phase, {"forward": 0, "backward": 0})
            for direction, batches in counts.items():
                mine[direction] += batches
    return total


def without(total: Passes, part: Passes) -> Passes:
    """What is left of a count when a part of it is taken out."""
    left = {
        phase: {way: n - part.get(phase, {}).get(way, 0) for way, n in counts.items()}
        for phase, counts in total.items()
    }
    return {phase: counts for phase, counts in left.items() if any(counts.values())}


class Ledger:
    """Keeps the counts of a task: of the training at hand, and of work that several trainings share."""

    def __init__(self) -> None:
        self._open: list[Passes] = [{}]
        self.borrowed: dict[str, Passes] = {}
        """The shared work that the training at hand relies on, by name."""

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Note passes over the data, in batches."""
        if forward or backward:
            mine = self._open[-1].setdefault(phase, {"forward": 0, "backward": 0})
            mine["forward"] += forward
            mine["backward"] += backward

    @contextmanager
    def counting(self) -> Iterator[Passes]:
        """What is counted within the block, and nowhere else."""
        self._open.append({})
        try:
            yield self._open[-1]
        finally:
            self._open.pop()

    @contextmanager
    def borrowing(self) -> Iterator[dict[str, Passes]]:
        """What is borrowed within the block, and nowhere else."""
        outer = self.borrowed
        self.borrowed = {}
        try:
            yield self.borrowed
        finally:
            self.borrowed = outer

    def borrow(self, what: str, passes: Passes) -> None:
        """Rely on shared work, whatever phases it had."""
        self.borrowed[what] = {what: added(*({"": count} for count in passes.values())).get("", {})}

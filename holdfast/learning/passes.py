"""Passes over the data, counted in batches per phase: the unit of the paper's computation-cost table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from holdfast.maths.params import Params

Passes = dict[str, dict[str, int]]  # phase -> {"forward": batches, "backward": batches}


def added(*many: Passes) -> Passes:
    """Return the sum of several counts."""
    total: Passes = {}
    for passes in many:
        for phase, counts in passes.items():
            mine = total.setdefault(phase, {"forward": 0, "backward": 0})
            for direction, batches in counts.items():
                mine[direction] += batches
    return total


def without(total: Passes, part: Passes) -> Passes:
    """Return a count minus a part of it."""
    left = {
        phase: {way: n - part.get(phase, {}).get(way, 0) for way, n in counts.items()}
        for phase, counts in total.items()
    }
    return {phase: counts for phase, counts in left.items() if any(counts.values())}


class Ledger:
    """Counts the passes of a task: those of the current training run and those that several share."""

    def __init__(self) -> None:
        self._open: list[Passes] = [{}]
        self.borrowed: dict[str, Passes] = {}
        """Shared work that the current training run relies on, by name."""
        self._once: dict[tuple[str, float | None], tuple[Params, dict[str, Passes]]] = {}

    def count(self, phase: str, *, forward: int, backward: int) -> None:
        """Count passes over the data, in batches."""
        if forward or backward:
            mine = self._open[-1].setdefault(phase, {"forward": 0, "backward": 0})
            mine["forward"] += forward
            mine["backward"] += backward

    @contextmanager
    def counting(self) -> Iterator[Passes]:
        """Count the passes of a block separately, and yield that count."""
        self._open.append({})
        try:
            yield self._open[-1]
        finally:
            self._open.pop()

    @contextmanager
    def borrowing(self) -> Iterator[dict[str, Passes]]:
        """Record the work borrowed in a block separately, and yield that record."""
        outer = self.borrowed
        self.borrowed = {}
        try:
            yield self.borrowed
        finally:
            self.borrowed = outer

    def borrow(self, what: str, passes: Passes) -> None:
        """Record that the current training run relies on shared work; its phases are added up."""
        self.borrowed[what] = {what: added(*({"": count} for count in passes.values())).get("", {})}

    def once(self, what: str, compute: Callable[[], Params], *, lr: float | None = None) -> Params:
        """Compute something that training runs share, once, and record that the current one borrows it."""
        key = (what, lr)
        if key not in self._once:
            with self.borrowing() as borrowed, self.counting() as passes:
                value = compute()
                self.borrow(what, passes)
            self._once[key] = (value, borrowed)
        value, borrowed = self._once[key]
        self.borrowed |= borrowed
        return value

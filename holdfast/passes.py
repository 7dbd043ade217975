"""Passes over the data, counted in batches per phase: the unit of the paper's computation-cost table."""

from __future__ import annotations

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

"""Numbers over several runs: means over the same places, their ranks, and whether they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

from holdfast.maths.metrics import percent
from holdfast.report.runs import Run, Section
from holdfast.report.statistics import Comparison, compare, estimate, holm
from holdfast.report.tables import Cell, Rank, ranked

UPPER = "mtl"  # a bound, not a competitor: it is never the best
YARDSTICKS = (UPPER, "seq")  # what methods are held against; shown and not ranked, as in the paper
Place = tuple[str, int]
"""An order and a seed."""
Scores = dict[Place, float]


def values(section: Section, runs: Sequence[Run], metric: str, tasks: int | None = None) -> Scores:
    """A metric at every place where it can be told; the mean of runs that come to the same there."""
    found: dict[Place, list[float]] = {}
    for run in runs:
        if (value := section.metric(run, metric, tasks)) is not None:
            found.setdefault(run.where, []).append(value)
    return {place: fmean(own) for place, own in found.items()}


def mean_cell(
    section: Section, runs: Sequence[Run], metric: str, rank: Rank = "", tasks: int | None = None
) -> Cell:
    """Mean (standard deviation) of some runs, and of how many if not of all; the records behind it."""
    made = [run for run in runs if run.record is not None]
    if not made:
        return Cell("missing")
    told = [run for run in made if section.metric(run, metric, tasks) is not None]
    found = values(section, told, metric, tasks)
    beside = [section.naive(run) for run in told] if metric == "FWT" else []
    records = (run.digest for run in (*told, *beside) if run is not None)
    if not found:
        return Cell("-")
    spread = estimate(list(found.values())).std
    text = percent(mean_of(found)) + ("" if spread is None else f" ({100 * spread:.1f})")
    if len(told) < len(made):
        text += f" [{len(told)} of {len(made)}]"
    return Cell(text, rank, tuple(dict.fromkeys(records)))


def ranks(found: Mapping[str, Scores], *, high: bool) -> dict[str, Rank]:
    """Which means are best and second, over places that all ranked methods have; no yardstick is either."""
    places = usual_places(found)
    means = [
        mean_of({place: own[place] for place in places})
        if places and own.keys() >= places and _competes(label)
        else None
        for label, own in found.items()
    ]
    return dict(zip(found, ranked(means, high=high), strict=True))


def usual_places(found: Mapping[str, Scores]) -> frozenset[Place]:
    """The orders and seeds that most ranked methods have been run on, and no others.

    Of equally common sets the one that more methods have among others, then the larger one.
    """
    found = {label: own for label, own in found.items() if _competes(label)}
    sets = Counter(frozenset(own) for own in found.values() if own)

    def rank(places: frozenset[Place]) -> tuple[int, int, int, list[Place]]:
        among = sum(own.keys() >= places for own in found.values())
        return sets[places], among, len(places), sorted(places)

    return max(sets, key=rank, default=frozenset())


def is_bound(label: str) -> bool:
    """Whether a method is a bound and no competitor."""
    return _method(label) == UPPER


def _competes(label: str) -> bool:
    return _method(label) not in YARDSTICKS


def _method(label: str) -> str:
    return label.split(" ", 1)[0]


# ---- independent units: orders, or seeds of one order ----------------------------------------------------


def units(found: Scores) -> dict[str, float]:
    """The mean of each order, for seeds of one order hang together; of one order the value of each seed."""
    by_order = len({order for order, _ in found}) > 1
    kept: dict[str, list[float]] = {}
    for (order, seed), value in sorted(found.items()):
        kept.setdefault(f"order {order}" if by_order else f"seed {seed}", []).append(value)
    return {unit: fmean(own) for unit, own in kept.items()}


def mean_of(found: Scores) -> float:
    """The mean over orders, each the mean over its seeds: an order counts once, however many it has."""
    return fmean(units(found).values())


def interval(found: Scores) -> str:
    """The 95 % interval of the mean."""
    over = estimate(list(units(found).values())) if found else None
    if over is None or over.half is None:
        return "-"
    return f"{percent(over.mean - over.half)} to {percent(over.mean + over.half)}"


def against_best(found: Mapping[str, Scores]) -> tuple[str, dict[str, tuple[Comparison, float]]]:
    """The ranked method with the highest mean over the usual places, and how it differs from each other one.

    Only places that both have been at are paired. The best one is picked by the same numbers, so Holm's
    correction is for the comparisons of all methods with all, not for those that are shown.
    """
    places = usual_places(found)
    several = {label: own for label, own in found.items() if len(units(own)) > 1}
    able = [label for label, own in several.items() if own.keys() >= places and _competes(label)]
    if not places or not able:
        return "", {}
    best = max(able, key=lambda label: mean_of({place: found[label][place] for place in places}))
    tests = {}
    for pair in combinations(several, 2):
        first, second = sorted(pair, key=lambda label: label != best)
        common = found[first].keys() & found[second].keys()
        sides = [units({at: found[one][at] for at in common}) for one in (first, second)]
        if len(sides[0]) > 1:
            tests[first, second] = compare(*(list(side.values()) for side in sides))
    chances = holm([test.p for test in tests.values()])
    others = {
        second: (test, p)
        for ((first, second), test), p in zip(tests.items(), chances, strict=True)
        if first == best
    }
    return (best, others) if others else ("", {})

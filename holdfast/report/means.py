"""Statistics over several runs: means over orders and seeds, ranks and comparisons."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from statistics import fmean

from holdfast.maths.metrics import percent, standard_error
from holdfast.report.runs import Run, Section
from holdfast.report.statistics import Comparison, compare, estimate, holm
from holdfast.report.tables import Cell, Rank, ranked

UPPER = "mtl"
YARDSTICKS = (UPPER, "seq")  # reference methods, shown but not ranked, as in the paper
Place = tuple[str, int]
"""An order and a seed."""
Scores = dict[Place, float]


def values(section: Section, runs: Sequence[Run], metric: str, tasks: int | None = None) -> Scores:
    """Return a metric at every place where it is known; the mean if several runs share a place."""
    found: dict[Place, list[float]] = {}
    for run in runs:
        if (value := section.metric(run, metric, tasks)) is not None:
            found.setdefault(run.where, []).append(value)
    return {place: fmean(own) for place, own in found.items()}


def mean_cell(
    section: Section, runs: Sequence[Run], metric: str, rank: Rank = "", tasks: int | None = None
) -> Cell:
    """Return a cell with mean (standard deviation), the number of runs used if not all, and records."""
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
    """Mark the best and second-best mean over the usual places; `YARDSTICKS` are not ranked."""
    places = usual_places(found)
    means = [
        mean_of({place: own[place] for place in places})
        if places and own.keys() >= places and competes(label)
        else None
        for label, own in found.items()
    ]
    return dict(zip(found, ranked(means, high=high), strict=True))


def usual_places(found: Mapping[str, Scores]) -> frozenset[Place]:
    """Return the set of orders and seeds that is exactly that of the most ranked methods.

    Ties go to the set that more methods cover, then to the larger one.
    """
    found = {label: own for label, own in found.items() if competes(label)}
    sets = Counter(frozenset(own) for own in found.values() if own)

    def rank(places: frozenset[Place]) -> tuple[int, int, int, list[Place]]:
        among = sum(own.keys() >= places for own in found.values())
        return sets[places], among, len(places), sorted(places)

    return max(sets, key=rank, default=frozenset())


def is_bound(label: str) -> bool:
    """Return whether a method is an upper bound, not a competitor."""
    return _method(label) == UPPER


def competes(label: str) -> bool:
    """Return whether a method is ranked."""
    return _method(label) not in YARDSTICKS


def _method(label: str) -> str:
    return label.split(" ", 1)[0]


# ---- independent units: orders, or seeds of one order ----------------------------------------------------


def units(found: Scores) -> dict[str, float]:
    """Return the mean of each order, whose seeds are not independent; with one order, each seed's value."""
    by_order = len({order for order, _ in found}) > 1
    kept: dict[str, list[float]] = {}
    for (order, seed), value in sorted(found.items()):
        kept.setdefault(f"order {order}" if by_order else f"seed {seed}", []).append(value)
    return {unit: fmean(own) for unit, own in kept.items()}


def mean_of(found: Scores) -> float:
    """Return the mean over orders, each averaged over its seeds: every order has the same weight."""
    return fmean(units(found).values())


def interval(found: Scores) -> str:
    """Return the 95 % interval of the mean."""
    half = half_width(found)
    if half is None:
        return "-"
    mean = mean_of(found)
    return f"{percent(mean - half)} to {percent(mean + half)}"


def half_width(found: Scores) -> float | None:
    """Return half the width of the 95 % interval of the mean; None with fewer than two units."""
    return estimate(list(units(found).values())).half if found else None


def chance(run: Run, tasks: int | None = None) -> float | None:
    """Return half the width of the 95 % interval of one run's Ov over other test sentences, roughly.

    A score is taken as a share of a task's test sentences, whose standard errors add up. None if the record
    does not tell their number.
    """
    row = run.matrix[(tasks or len(run.matrix)) - 1]
    counts = run.sentences
    if not counts:
        return None
    pairs = [(score, counts[i]) for i, score in enumerate(row) if score is not None]
    return 1.96 * math.sqrt(sum(standard_error(score, n) ** 2 for score, n in pairs)) / len(pairs)


def against_best(found: Mapping[str, Scores]) -> tuple[str, dict[str, tuple[Comparison, float]]]:
    """Return the ranked method with the highest mean over the usual places, and its comparisons with others.

    Only common places are paired. Because the same numbers select the best method, Holm's correction counts
    the comparisons between all methods, not only those shown.
    """
    places = usual_places(found)
    several = {label: own for label, own in found.items() if len(units(own)) > 1}
    able = [label for label, own in several.items() if own.keys() >= places and competes(label)]
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

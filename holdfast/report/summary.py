"""The summary of a section in words: the leader, how sure the lead is, and how many sentences were tested."""

from __future__ import annotations

import math
from collections.abc import Mapping

from holdfast.maths.metrics import percent, standard_error
from holdfast.report.means import (
    UPPER,
    YARDSTICKS,
    Scores,
    against_best,
    competes,
    mean_of,
    units,
    usual_places,
    values,
)
from holdfast.report.runs import Section

FEW = 100  # a task with fewer test sentences gets a warning
MOST = 24  # maximum number of tasks that are named with their test sentences
WORDS = {UPPER: "all tasks at once", "seq": "plain fine-tuning"}


def summary(section: Section) -> str:
    """Return a paragraph: which method is first, by how much, and how sure that is."""
    found = {
        label: own
        for label, runs in section.by_label().items()
        if (own := values(section, [run for run in runs if run.record], "Ov"))
    }
    beside = [
        f"{name} ({WORDS[name]}) has {percent(mean_of(found[name]))}" for name in YARDSTICKS if name in found
    ]
    missing = f"{len(section.missing)} of {len(section.runs)} runs are missing." if section.missing else ""
    told = [_first(found), f"{', '.join(beside)}." if beside else "", missing]
    return " ".join(filter(None, told))


def _first(found: Mapping[str, Scores]) -> str:
    """Return who is first among the methods that are ranked, by Ov over the places that most of them have."""
    places = usual_places(found)
    means = {
        label: mean_of({place: own[place] for place in places})
        for label, own in found.items()
        if places and own.keys() >= places and competes(label)
    }
    if not means:
        return ""
    best, *others = sorted(means, key=lambda label: -means[label])
    if not others:
        return f"{best} has Ov {percent(means[best])}."
    second = others[0]
    gap = 100 * (means[best] - means[second])
    scores = f"Ov {percent(means[best])} and {percent(means[second])}"
    if gap < 0.05:
        return f"{best} and {second} are level at the top of {len(means)} methods ({scores})."
    lead = f"{best} is first of {len(means)} methods, {gap:.1f} points ahead of {second} ({scores})."
    return f"{lead} {_sure(found, best, second)}".rstrip()


def _sure(found: Mapping[str, Scores], best: str, second: str) -> str:
    """Return whether the lead could be chance."""
    common = found[best].keys() & found[second].keys()
    over = units({place: found[best][place] for place in common})
    word = "orders" if any(unit.startswith("order") for unit in over) else "seeds"
    if len(over) < 2:
        return "There is one order and seed: these runs cannot say whether that is chance."
    leader, tests = against_best(found)
    if leader != best or second not in tests:  # the same set of places leads to the same best method
        return ""
    test, p = tests[second]
    if test.difference.half is None or math.isnan(p):
        return f"The difference is the same in all {len(over)} {word}."
    ends = [100 * (test.difference.mean + sign * test.difference.half) for sign in (-1, 1)]
    lead = f"Over {len(over)} {word} the 95 % interval of the difference is {ends[0]:+.1f} to {ends[1]:+.1f}"
    if ends[0] <= 0 <= ends[1]:
        return f"{lead}: it includes 0."
    if p >= 0.05:
        return f"{lead}: it excludes 0, but not after correction for picking the best of several (p {p:.2f})."
    return f"{lead}: it excludes 0, also after correction for picking the best of several."


def sentence_counts(section: Section) -> tuple[str, str]:
    """Return how many test sentences the tasks have, and a warning where they are few."""
    counts: dict[str, int] = {}
    for run in section.made:
        if run.record is not None:
            counts.update(zip(run.record["tasks"], run.sentences, strict=False))
    if not counts:
        return "", ""
    named = [f"{name} {n}" for name, n in list(counts.items())[:MOST]]
    rest = f" and {len(counts) - MOST} more tasks" if len(counts) > MOST else ""
    few = {name: n for name, n in counts.items() if n < FEW}
    if not few:
        return f"Test sentences: {', '.join(named)}{rest}.", ""
    least = min(few, key=lambda name: few[name])
    half = 196 * standard_error(0.5, few[least])
    return (
        f"Test sentences: {', '.join(named)}{rest}.",
        f"Small test sets: {len(few)} of {len(counts)} tasks have fewer than {FEW} sentences. On the "
        f"{few[least]} of {least} a score of 50 is uncertain by ±{half:.0f} points (95 %).",
    )

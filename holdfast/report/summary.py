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
from holdfast.report.statistics import within

FEW = 100  # a task with fewer test sentences gets a warning
MOST = 24  # maximum number of tasks that are named with their test sentences
WIDE = 50  # an interval of more points that includes 0 tells nothing
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
    parts = [_first(found), f"{', '.join(beside)}." if beside else "", _missing(section)]
    return " ".join(filter(None, parts))


def told(section: Section) -> list[str]:
    """Return what is said of a section: the summary, and the warnings."""
    words = summary(section) if section.view != "cost" else _missing(section)
    return [line for line in (words, sentence_counts(section)[1]) if line]


def caution(section: Section) -> str:
    """Return a caution if the records of a section were made by different code, or by changed files."""
    records = [run.record for run in section.made if run.record is not None]
    # Old records have no hash of their code. A run that was continued with other code names both.
    key = "code" if all(one.get("code") for one in records) else "revision"
    versions = {name for one in records if one.get(key) for name in str(one[key]).split(", ")}
    dirty = sum("-dirty" in str(one.get("revision")) for one in records)
    what = [f"its records come from {len(versions)} versions of the code"] if len(versions) > 1 else []
    what += [f"{dirty} of {len(records)} records come from code with uncommitted changes"] if dirty else []
    return f"caution: {section.title}: {', and '.join(what)}" if what else ""


def _missing(section: Section) -> str:
    return f"{len(section.missing)} of {len(section.runs)} runs are missing." if section.missing else ""


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
    names = {label.split(" ", 1)[0] for label in found if not competes(label)}
    ranked = f"{len(means)} ranked methods"
    if names:
        ranked += (
            f" ({' and '.join(sorted(names, reverse=True))} {'is' if len(names) == 1 else 'are'} not ranked)"
        )
    if not others:
        return f"{best} has Ov {percent(means[best])}."
    second = others[0]
    gap = 100 * (means[best] - means[second])
    scores = f"Ov {percent(means[best])} and {percent(means[second])}"
    if gap < 0.05:
        return f"{best} and {second} are level at the top of {ranked}: {scores}."
    lead = f"{best} is first of {ranked}, {gap:.1f} points ahead of {second} ({scores})."
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
    ends = [100 * end for end in within(test.difference, 1.0)]
    lead = f"Over {len(over)} {word} the 95 % interval of the difference is {ends[0]:+.1f} to {ends[1]:+.1f}"
    if ends[0] <= 0 <= ends[1] and ends[1] - ends[0] > WIDE:
        return f"{lead}: too few {word} to tell, run more."
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

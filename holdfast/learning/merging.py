"""Merge learners: add what another one has learnt, and notice what both have learnt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.heads import ClosedFormHead
from holdfast.heads.closed import SumsHead
from holdfast.learning.at_hand import whole_or_not_at_all
from holdfast.learning.corrections import Correctable, Correction, limits, noted, remembers_weights

History = Sequence[Mapping[str, Any]]
SAME = 1e-6  # relative difference of two sums of the same sentences


def taken_over(learner: Correctable, other: Correctable, *, again: bool = False) -> Correction:
    """Add what another learner with the same kind of head on the same frozen encoder has learnt."""
    mine, its, summed = learner.model.head, other.model.head, _sums_of(learner)
    same = summed is not None and summed == _sums_of(other)
    if not same or not isinstance(mine, SumsHead) or not isinstance(its, SumsHead):
        raise HoldfastError(
            "only learners with the same closed-form head (auto, slda, rda or ranpac) on the same frozen "
            "encoder can be merged; teach one of them the files of the other"
        )
    if not again:
        related = not {learner.key, *learner.keys}.isdisjoint([other.key, *other.keys])
        shared = shared_lessons(learner.history, other.history, related=related)
        refuse_twice(mine, its, shared)
    learner.check_room(its.labels, "teach fewer labels")
    with whole_or_not_at_all(learner):
        mine.merge(its)
        learner.start_over()
        learner.history += [
            {**entry, "generation": 0} if "generation" in entry else entry for entry in other.history
        ]
        learner.tasks_seen += other.tasks_seen
        what = f"merged with a state of {len(its.visible_rows())} labels"
        exact, note = limits(learner)
        found = Correction(what, int(its.counts.sum()), exact, note)
        noted(learner, "merge", found, len(its.labels))
    learner.keys += [key for key in (other.key, *other.keys) if key not in (learner.key, *learner.keys)]
    return found


def _sums_of(learner: Correctable) -> tuple[Any, ...] | None:
    """Return what defines the head's sums; None if the learner cannot be merged."""
    head = learner.model.head
    more = learner.model.adapted or remembers_weights(learner.method)
    if learner.origin is None or not isinstance(head, SumsHead) or more:
        return None
    settings = learner.origin.settings
    read = (settings["vector"], settings["max_length"], learner.model.reading, learner.seed)
    return learner.origin.fingerprint, *read, type(head), head.past.scatter, head.past.width


def refuse_twice(mine: ClosedFormHead, other: ClosedFormHead, shared: int) -> None:
    """Refuse to add a head that has learnt the same: `shared` lessons, or the same sentences of a label."""
    how = "which would count twice; --again (again=True) does so on purpose"
    if shared:
        lessons = "a lesson" if shared == 1 else f"{shared} lessons"
        raise HoldfastError(f"both have learnt {lessons} in common (one may be a copy of the other), {how}")
    if same := equal_sums(mine, other):
        raise HoldfastError(f"both have learnt the same sentences of the label {same[0]!r}, {how}")


def shared_lessons(history: History, other: History, *, related: bool) -> int:
    """Return how many lessons two histories have in common.

    Lessons are recognised by their serial numbers, which every copy keeps, and by the ids of their rows;
    between `related` states, which have a key in common, those without an id by all that is noted of them.
    """
    serials = {entry["serial"] for entry in history if entry.get("serial")}
    ids = {entry["id"] for entry in history if entry.get("id")}
    told = [_without_generation(entry) for entry in history] if related else []
    return sum(
        entry.get("serial") in serials
        or (entry["id"] in ids if entry.get("id") else _without_generation(entry) in told)
        for entry in other
    )


def _without_generation(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "generation"}


def equal_sums(mine: ClosedFormHead, other: ClosedFormHead) -> list[str]:
    """Return the labels that have learnt the same sentences in both."""
    found = []
    for label, row in {label: row for row, label in enumerate(mine.labels)}.items():
        if label not in other.labels:
            continue
        its = other.labels.index(label)
        if not mine.counts[row] or mine.counts[row] != other.counts[its]:
            continue
        a, b = mine.total(row), other.total(its)
        if float((a - b).norm()) <= SAME * float(a.norm() + b.norm()):
            found.append(label)
    return found

"""Corrections of a closed-form head: sentences taken out or relabelled, labels renamed or united.

Sums can be subtracted, so that the corrected head equals one taught right from the start, apart from choices
made on held-out sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.data.tasks import check_labels
from holdfast.errors import HoldfastError
from holdfast.fields import unknown
from holdfast.heads import ClosedFormHead, Head, KLDAHead, Taught

History = Sequence[Mapping[str, Any]]
FORGET = "forget"  # kind of the entry of a label that was forgotten, while pooled sums kept its share
SAME = 1e-6  # relative difference of two sums of the same sentences


@dataclass(frozen=True)
class Correction:
    """Result of a correction."""

    what: str
    """What was corrected, in words, without any text."""
    sentences: int
    exact: bool
    """Whether the head equals one taught right from the start, apart from `note`."""
    note: str
    """What the correction cannot undo; empty if nothing."""
    gone: tuple[str, ...] = ()
    """Labels that no longer exist."""


def closed(head: Head, doing: str, method: str) -> ClosedFormHead:
    """Return the head if its statistics can be corrected; otherwise raise an error with advice."""
    if not isinstance(head, ClosedFormHead):
        raise HoldfastError(
            f"{method} trains its head by gradient: nothing can be subtracted from it; to {doing}, go back "
            "with `holdfast rollback` and teach corrected files, or use a closed-form head, such as auto's"
        )
    return head


def check_learnt(head: ClosedFormHead, labels: Sequence[str]) -> None:
    """Refuse to remove more sentences of a label than it has."""
    counts = dict(zip(head.labels, head.counts.tolist(), strict=True))
    for label, wanted in Counter(labels).items():
        if not counts.get(label):
            raise HoldfastError(unknown(label, [one for one, n in counts.items() if n], "label"))
        if wanted > counts[label]:
            raise HoldfastError(
                f"label {label!r} has {counts[label]:.0f} sentences, but {wanted} would be taken from it; "
                "check the file and its labels"
            )


def take_out(head: ClosedFormHead, taught: Taught, *, carried: bool) -> None:
    """Subtract sentences; `carried` says that the encoder has moved since some were learnt.

    Sentences that were never learnt are noticed where the rest would be no sum of squares. With many more
    sentences than dimensions that need not be so.
    """
    check_learnt(head, taught.labels)
    before, size = head.statistics(), head.size()
    try:
        head.take_in(taught, sign=-1)
        if not head.sound(size):
            raise HoldfastError("these sentences are not what was learnt under their labels; check the file")
    except HoldfastError as error:
        head.load_statistics(before)
        if not carried:
            raise
        raise HoldfastError(
            "the encoder has moved since these sentences were learnt, and their sums can no longer be "
            "subtracted; go back with `holdfast rollback` and teach the corrected files"
        ) from error


def check_name(label: str) -> None:
    """Raise an error unless a label can be called so."""
    if not isinstance(label, str):
        raise HoldfastError(f"label {label!r} is not text ({type(label).__name__}); use str()")
    if not label.strip():
        raise HoldfastError("the name of a label is empty; give one")
    check_labels([label])


def rename(head: Head, old: str, new: str) -> None:
    """Rename a label in its place."""
    check_name(new)
    if new in head.labels:
        if new == old:
            raise HoldfastError(f"the label is called {old!r} already; give another name")
        raise HoldfastError(f"{new!r} is a label already; unite the two with merge-labels")
    head.labels[head.labels.index(old)] = new
    head.seen = [new if label == old else label for label in head.seen]


def unite(head: ClosedFormHead, labels: Sequence[str], into: str) -> None:
    """Add the statistics of some labels to those of `into`, which may be new and takes the first place."""
    check_name(into)
    place = into if into in head.labels else next(one for one in head.labels if one in labels)
    gone = {*labels, into} - {place}
    kept = [label for label in head.labels if label not in gone]
    head.fold([kept.index(place if label in gone else label) for label in head.labels])
    named = [into if label == place else label for label in kept]
    seen = list(dict.fromkeys(into if label in {*labels, place} else label for label in head.seen))
    head.labels[:], head.seen = named, seen


def limits(head: Head, history: History, *, adapted: bool, weights: bool) -> tuple[bool, str]:
    """Return whether a correction of this head is exact, and what it cannot undo."""
    inexact = []
    if adapted:
        inexact.append("the encoder, which was trained on what was learnt")
    if weights:
        inexact.append("the importances of the weights")
    if any(entry.get("correction") == FORGET for entry in history):
        inexact.append("the pooled sums, which keep the share of a forgotten label")
    if isinstance(head, KLDAHead):
        inexact.append("the feature scale of the first file")
    if not isinstance(head, ClosedFormHead):
        inexact.append("the trained head, which began at values drawn for the old name")
    decided = head.decided if isinstance(head, ClosedFormHead) else ""
    return not inexact, " and ".join(filter(None, [*inexact, decided]))


# ---- two states ---------------------------------------------------------------------------------------


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

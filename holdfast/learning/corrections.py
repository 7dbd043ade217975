"""Corrections of what was learnt: sentences removed or relabelled, labels renamed, united or forgotten.

The sums of a closed-form head can be subtracted, so that the corrected head equals one taught right from the
start, apart from choices made on held-out sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.data.tasks import check_labels, check_pairs, check_texts, printable
from holdfast.errors import HoldfastError
from holdfast.fields import unknown
from holdfast.heads import ClosedFormHead, Head, KLDAHead, Taught
from holdfast.heads.closed import SumsHead
from holdfast.learning.at_hand import TaskOwner, whole_or_not_at_all
from holdfast.learning.sections import lesson_id, new_key, serial_of
from holdfast.methods import METHODS
from holdfast.methods.base import Method

FORGET = "forget"  # kind of the entry of a label that was forgotten, while pooled sums kept its share
RENAMED = "{!r} renamed to {!r}"
LABEL = "label "  # begins what is hashed of a label, so that it is not taken for the id of a lesson


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


class Correctable(TaskOwner, Protocol):
    """What a correction needs of a learner."""

    history: list[dict[str, Any]]
    key: str
    keys: list[str]

    @property
    def classes_(self) -> list[str]:
        """Labels that can be predicted."""

    def check_room(self, labels: Iterable[str], hint: str) -> None:
        """Raise if the head would be too large with these labels."""

    def start_over(self) -> None:
        """Discard an unfinished task."""


# ---- of a learner -------------------------------------------------------------------------------------


def forget(learner: Correctable, label: str) -> str:
    """Remove a label; return what still carries traces of it, or an empty string."""
    if label not in learner.classes_:
        raise HoldfastError(unknown(label, learner.classes_, "label"))
    head, row = learner.model.head, learner.model.head.labels.index(label)
    pooled = isinstance(head, SumsHead) and head.past.scatter == "pooled"
    number = int(head.counts[row]) if isinstance(head, SumsHead) else 0
    with whole_or_not_at_all(learner):
        learner.method.shrink(row)
        traces = learner.model.forget(label)
        if remembers_weights(learner.method):
            traces.append("the importances of the weights")
        fixed = [name for name, kind in learner.method.state.items() if kind == "fixed"]
        if kept := [name for name in fixed if getattr(learner.method, name)]:
            traces.append(f"the {' and '.join(kept)} that the method keeps")
        named = (entry for entry in learner.history if entry.get("correction") not in (None, "", FORGET))
        if any(label in entry["task"] for entry in named):
            traces.append("the history, in which corrections name it")
        if pooled:  # corrections that follow are not exact
            noted(learner, FORGET, Correction("a label forgotten", number, False, ""), 1)
        learner.start_over()
    return ", ".join(traces)


def drop_names(learner: Correctable, label: str) -> bool:
    """Remove the ids of all lessons and the names that contain a label; return whether there were any."""
    found = False
    for number, entry in enumerate(learner.history, start=1):
        plain = f"lesson {number}"
        told = entry["task"] != plain and entry.get("correction") != FORGET
        telling = told and label.casefold() in entry["task"].casefold()
        found = found or telling or bool(entry.get("id") or entry.get("gone"))
        entry.pop("id", None)
        entry.pop("gone", None)
        entry["task"] = plain if telling else entry["task"]
    if found:
        learner.key, learner.keys = new_key(), []
    return found


def remove(learner: Correctable, texts: Sequence[str], labels: Sequence[str]) -> Correction:
    """Take sentences out again that were learnt under these labels, once for each time they are given."""
    return _taken_out(learner, "remove", texts, labels, None)


def relabel(learner: Correctable, texts: Sequence[str], labels: Sequence[str], to: str) -> Correction:
    """Give sentences that were learnt under these labels another label, as if it had been theirs."""
    check_name(to)
    return _taken_out(learner, "relabel", texts, labels, to)


def renamed(learner: Correctable, old: str, new: str) -> Correction:
    """Rename a label; what it has learnt stays."""
    head = learner.model.head
    check_name(old)
    if old not in learner.classes_:
        raise HoldfastError(unknown(old, learner.classes_, "label"))
    with whole_or_not_at_all(learner):
        rename(head, old, new)
        learner.start_over()
        number, (exact, note) = 0, limits(learner)
        if isinstance(head, ClosedFormHead):
            head.resettle()
            number = int(head.counts[head.labels.index(new)])
        found = Correction(RENAMED.format(old, new), number, exact, note, (old,))
        return noted(learner, "rename-label", found, 1)


def united(learner: Correctable, labels: Sequence[str], into: str) -> Correction:
    """Unite labels under one of them or under a new name, as if all had been taught under it."""
    head = closed(learner, "merge labels")
    check_texts(labels, "label")
    check_name(into)
    for label in labels:
        if label not in learner.classes_:
            raise HoldfastError(unknown(label, learner.classes_, "label"))
    several = list(dict.fromkeys([*labels, *([into] if into in learner.classes_ else [])]))
    if len(several) < 2:
        raise HoldfastError(
            f"only the label {several[0]!r} is given; name two or more, or rename it with rename-label"
            if several
            else "name two or more labels"
        )
    with whole_or_not_at_all(learner):
        gone = tuple(label for label in several if label != into)
        number = int(sum(head.counts[head.labels.index(label)] for label in gone))
        unite(head, several, into)
        head.resettle()
        learner.start_over()
        exact, note = limits(learner)
        names = ", ".join(map(repr, gone))
        found = Correction(f"{names} merged into {into!r}", number, exact, note, gone)
        return noted(learner, "merge-labels", found, len(gone))


def _taken_out(
    learner: Correctable, doing: str, texts: Sequence[str], labels: Sequence[str], to: str | None
) -> Correction:
    """Remove sentences, or give them another label."""
    check_pairs(texts, labels)
    texts, labels = list(texts), list(labels)  # a column of pandas counts its rows by an index of its own
    if not texts:
        raise HoldfastError(f"no sentences to {doing}; give some")
    head = closed(learner, f"{doing} sentences")
    if to is not None:
        learner.check_room([to], "is this a label?")
        places = [place for place, label in enumerate(labels) if label != to]
        if not places:
            raise HoldfastError(f"all of these sentences have the label {to!r} already; give another")
        texts, labels = [texts[i] for i in places], [labels[i] for i in places]
    check_learnt(head, labels)
    with whole_or_not_at_all(learner):
        ordered = sorted(zip(texts, labels, strict=True))  # their order has no effect
        texts, labels = [text for text, _ in ordered], [label for _, label in ordered]
        features = learner.model.embed(texts, on_batch=learner.progress.looked)
        lessons = [entry for entry in learner.history if not entry.get("correction")]
        carried = learner.model.adapted and any(entry.get("drift") for entry in lessons[1:])
        take_out(head, Taught(features, labels), carried=carried)
        if to is not None:
            head.add([to])
            head.teach([to])
            head.take_in(Taught(features, [to] * len(texts)))
        exact, note = limits(learner)
        gone = tuple(label for label in sorted(set(labels)) if not head.counts[head.labels.index(label)])
        for label in gone:
            learner.method.shrink(head.labels.index(label))
            learner.model.forget(label)
        head.resettle()
        learner.start_over()
        of = sorted(set(labels))
        names = repr(of[0]) if len(of) == 1 else f"{len(of)} labels"
        what = f"{len(texts)} of {names} " + ("removed" if to is None else f"relabelled to {to!r}")
        return noted(learner, doing, Correction(what, len(texts), exact, note, gone), len(of))


def limits(learner: Correctable) -> tuple[bool, str]:
    """Return whether a correction of the present state is exact, and what it cannot undo."""
    head, inexact = learner.model.head, []
    if learner.model.adapted:
        inexact.append("the encoder, which was trained on what was learnt")
    if remembers_weights(learner.method):
        inexact.append("the importances of the weights")
    if any(entry.get("correction") == FORGET for entry in learner.history):
        inexact.append("the pooled sums, which keep the share of a forgotten label")
    if isinstance(head, KLDAHead):
        inexact.append("the feature scale of the first file")
    if not isinstance(head, ClosedFormHead):
        inexact.append("the trained head, which began at values drawn for the old name")
    decided = head.decided if isinstance(head, ClosedFormHead) else ""
    return not inexact, " and ".join(filter(None, [*inexact, decided]))


def noted(learner: Correctable, kind: str, found: Correction, labels: int) -> Correction:
    """Write a correction into the history, without any text."""
    learner.history.append(
        {
            "task": printable(found.what),
            "sentences": found.sentences,
            "labels": labels,
            "new": 0,
            "score": None,
            "drift": None,
            "correction": kind,
            "gone": [lesson_id(learner.key, LABEL + label) for label in found.gone],
            **serial_of(learner.origin),
        }
    )
    return found


def remembers_weights(method: Method) -> bool:
    """Return whether the method's state holds values for individual weights."""
    kinds = method.state.items()
    return any(getattr(method, name) for name, kind in kinds if kind in ("weights", "zeros"))


def closed(learner: Correctable, doing: str) -> ClosedFormHead:
    """Return the learner's head if its statistics can be corrected; otherwise raise an error with advice."""
    head = learner.model.head
    if not isinstance(head, ClosedFormHead):
        method = next((name for name, one in METHODS.items() if one is type(learner.method)), "this method")
        raise HoldfastError(
            f"{method} trains its head by gradient: nothing can be subtracted from it; to {doing}, go back "
            "with `holdfast rollback` and teach corrected files, or use a closed-form head, such as auto's"
        )
    return head


# ---- of a head ----------------------------------------------------------------------------------------


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
            if len(taught.labels) == 1:
                raise HoldfastError(
                    f"this sentence was not learnt as {taught.labels[0]!r}; check its text and label"
                ) from error
            raise
        raise HoldfastError(
            "the encoder has moved since these sentences were learnt, and their sums can no longer be "
            "subtracted; go back with `holdfast rollback` and teach the corrected files"
        ) from error


def check_name(label: str) -> None:
    """Raise an error unless a label can be called so."""
    if not isinstance(label, str):
        raise HoldfastError(f"label {label!r} is not text ({type(label).__name__}); use str()")
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

"""Correct the learner in a directory: rows, labels, and two states that were taught apart."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from holdfast.data.readers import Row, Rows
from holdfast.data.tasks import check_pairs, printable
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.everyday.lessons import Earlier, mark_of
from holdfast.fields import unknown
from holdfast.learning import directory as state
from holdfast.learning.corrections import Correction
from holdfast.learning.learner import Learner
from holdfast.learning.sections import lesson_id, read
from holdfast.storage.generations import Store


@dataclass
class Corrected:
    """Result of a correction of a directory."""

    generation: int
    correction: Correction
    done_before: bool = False
    """Whether the same rows had been corrected already, so that nothing was changed now."""

    @property
    def note(self) -> str:
        """What the correction did not compute again, as a whole sentence; empty if nothing."""
        return self.correction.note and f"not computed again: {self.correction.note}"

    def answer(self) -> dict[str, Any]:
        """Return all of it in one flat dictionary, for programs."""
        told = asdict(self.correction) | {"note": self.note}
        return {"generation": self.generation, **told, "done_before": self.done_before}


@dataclass
class Forgotten:
    """Result of forgetting a label."""

    generation: int
    traces: str
    """What still carries traces of the label; empty if nothing does."""
    known: bool
    """Whether the current generation knew the label."""
    dropped: list[int]
    """Older generations that were deleted."""
    names: bool = False
    """Whether ids of lessons, or names that contain the label, were removed."""


def forget_label(
    path: str | Path,
    label: str,
    *,
    generations: int | None = None,
    purge: bool = False,
    model: str | None = None,
    progress: Progress | None = None,
) -> Forgotten:
    """Remove a label from a learner.

    `purge` also removes older generations, unfinished trials, the ids of all lessons, and names of lessons
    that contain the label. It can be repeated: a second call finishes one that was killed. If no generation
    knows the label any more, it removes ids and names only.
    """
    path = Path(path)
    with state.working_in(path, new=False):
        store = Store(path)
        learner = Learner.load(path, model=model)
        learner.progress = progress or Progress()
        before, known = store.generations, label in learner.classes_
        if not known and not purge:
            raise HoldfastError(unknown(label, learner.classes_, "label"))
        ever = known or label in _ever_known(store)
        names = purge and learner.drop_names(label)
        lessons = len(learner.history)
        traces = learner.forget(label) if known else ""
        for entry in learner.history[lessons:]:
            entry["generation"] = store.next
        shutil.rmtree(path / ".trials", ignore_errors=True)  # a killed lesson may have left traces of it
        if not ever and not names and generations is None:
            learner.write_card(path, learner.card())  # a purge may have been killed before it did
            return Forgotten(learner.generation, "", known=False, dropped=[])
        number = learner.commit(path, keep=1 if purge and ever else generations)
        dropped = [one for one in before if one not in store.generations]
        return Forgotten(number, traces, known, dropped, names)


def _ever_known(store: Store) -> set[str]:
    """Return the labels of all generations that can be read."""
    labels: set[str] = set()
    for number in store.generations:
        with suppress(HoldfastError):
            labels.update(read(store.load(number), store.root).state[1]["labels"])
    return labels


def remove_rows(
    path: str | Path,
    rows: Iterable[Row | tuple[str, str]],
    *,
    again: bool = False,
    generations: int | None = None,
    model: str | None = None,
    progress: Progress | None = None,
) -> Corrected:
    """Take rows out again that a learner has learnt: (text, label), or as they were read from a file.

    Rows of a file's valid or test split were not learnt and are left out. The same rows are not removed
    twice, unless they were learnt again meanwhile or `again` is true. It is an error if they may have been
    learnt again in another file.
    """
    return _rows_corrected(path, rows, None, again, generations, model, progress)


def relabel_rows(
    path: str | Path,
    rows: Iterable[Row | tuple[str, str]],
    to: str,
    *,
    again: bool = False,
    generations: int | None = None,
    model: str | None = None,
    progress: Progress | None = None,
) -> Corrected:
    """Give rows another label than the one they were learnt under; see `remove_rows`."""
    return _rows_corrected(path, rows, to, again, generations, model, progress)


def rename_label(
    path: str | Path,
    old: str,
    new: str,
    *,
    generations: int | None = None,
    model: str | None = None,
    progress: Progress | None = None,
) -> Corrected:
    """Rename a label of a learner."""
    return _corrected(path, lambda one: one.rename_label(old, new), generations, model, progress)


def merge_labels(
    path: str | Path,
    labels: Sequence[str],
    into: str,
    *,
    generations: int | None = None,
    model: str | None = None,
    progress: Progress | None = None,
) -> Corrected:
    """Unite labels of a learner under one of them or under a new name."""

    return _corrected(path, lambda one: one.merge_labels(labels, into), generations, model, progress)


def merge_states(
    path: str | Path,
    other: str | Path,
    *,
    again: bool = False,
    generations: int | None = None,
    model: str | None = None,
    progress: Progress | None = None,
) -> Corrected:
    """Add to a learner what another one was taught; the other state is only read.

    Refuse a state that has learnt some of the same, such as a copy, unless `again` is true.
    """
    path, other = Path(path), Path(other)
    if not again and path.resolve() == other.resolve():
        raise HoldfastError(f"{path} and {other} are the same state; name another one")

    def merge(learner: Learner) -> Correction:
        return learner.merge(Learner.load(other, model=model), again=again)

    return _corrected(path, merge, generations, model, progress)


def _rows_corrected(
    path: str | Path,
    rows: Iterable[Row | tuple[str, str]],
    to: str | None,
    again: bool,
    generations: int | None,
    model: str | None,
    progress: Progress | None,
) -> Corrected:
    given = _checked(rows)
    taught = [row for row in given if row.split in (None, "train")]
    if not given:
        raise HoldfastError("no rows to correct; give some")
    if not taught:
        raise HoldfastError("no rows that were learnt: all are marked valid or test; give train rows")
    mark = mark_of(given)
    texts, labels = [row.text for row in taught], [row.label for row in taught]

    def correct(learner: Learner) -> Correction:
        return learner.remove(texts, labels) if to is None else learner.relabel(texts, labels, to)

    def done(learner: Learner) -> str:
        return "" if again else _done_before(Earlier.of(learner), set(labels) - {to}, mark, to)

    return _corrected(path, correct, generations, model, progress, mark=mark, done=done)


def _checked(rows: Iterable[Row | tuple[str, str]]) -> Rows:
    """Return rows; raise an error unless each is a text, a label and, if it has one, a split."""
    if isinstance(rows, str | Mapping) or not isinstance(rows, Iterable):
        raise HoldfastError(f"the rows are {type(rows).__name__}, not a list; give pairs of text and label")
    found = list(rows)
    for place, row in enumerate(found, start=1):
        if not isinstance(row, tuple | list) or not 2 <= len(row) <= 3:
            raise HoldfastError(f"row {place} is not a pair of text and label; give (text, label)")
    given = [Row(*row) for row in found]
    check_pairs([row.text for row in given], [row.label for row in given])
    return given


def _done_before(earlier: Earlier, labels: set[str], mark: str, to: str | None) -> str:
    """Return what the latest correction of the same rows did, if they are not learnt now.

    Raise an error if it was another correction, or if the rows may have been learnt again since.
    """
    entry = earlier.latest(mark)
    kind = entry.get("correction") if entry else None
    if entry is None or kind not in ("remove", "relabel"):
        return ""
    what: str = entry["task"]
    same = kind == "remove" if to is None else what.endswith(printable(f"relabelled to {to!r}"))
    if not same:
        raise HoldfastError(
            f"these rows were corrected before ({what}) and no longer count under these labels; give them "
            "under their present label, or correct them once more with --again"
        )
    if earlier.may_hold_again(labels, entry):
        raise HoldfastError(
            f"these rows were corrected before ({what}), but may have been taught again since in another "
            "file; if they were, use --again; if not, nothing is left to do"
        )
    return what


def _corrected(
    path: str | Path,
    correct: Callable[[Learner], Correction],
    generations: int | None,
    model: str | None,
    progress: Progress | None,
    *,
    mark: str = "",
    done: Callable[[Learner], str] = lambda learner: "",
) -> Corrected:
    """Correct a learner and commit it; `mark` is that of the rows, `done` tells what was done before."""
    path = Path(path)
    with state.working_in(path, new=False):
        learner = Learner.load(path, model=model)
        learner.progress = progress or Progress()
        if before := done(learner):
            learner.write_card(path, learner.card())  # a correction may have been killed before it did
            return Corrected(learner.generation, Correction(before, 0, True, ""), done_before=True)
        found = correct(learner)
        learner.history[-1]["generation"] = Store(path).next
        if mark:
            learner.history[-1]["id"] = lesson_id(learner.key, mark)
        shutil.rmtree(path / ".trials", ignore_errors=True)  # trials of a lesson that was killed before
        number = learner.commit(path, keep=generations)
    return Corrected(number, found)

"""Recognise lessons and corrections by the ids of their rows, so that a repeated command counts once."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Self

from holdfast.data.readers import Rows
from holdfast.learning.corrections import LABEL
from holdfast.learning.learner import Learner
from holdfast.learning.sections import Saved, label_counts, lesson_id


def mark_of(rows: Rows) -> str:
    """Return a hash of rows, in any order."""
    return hashlib.sha256(repr(sorted(rows, key=repr)).encode()).hexdigest()[:16]


@dataclass
class Earlier:
    """The history of a learner, in which rows and labels are recognised by keyed hashes."""

    keys: tuple[str, ...]
    """Its own key and those of states that were merged into it."""
    history: list[dict[str, Any]]
    labels: set[str]
    """Labels that it knows now."""

    @classmethod
    def of(cls, learner: Learner) -> Self:
        """Return the history of a learner."""
        return cls((learner.key, *learner.keys), learner.history, set(learner.classes_))

    @classmethod
    def of_saved(cls, saved: Saved) -> Self:
        """Return the history in a state, without loading its encoder."""
        return cls((saved.key, *saved.keys), saved.state[1]["history"], set(label_counts(saved)))

    def latest(self, mark: str) -> dict[str, Any] | None:
        """Return the latest lesson or correction of rows with this mark."""
        ids = {lesson_id(key, mark) for key in self.keys}
        found = [entry for entry in self.history if entry.get("id") in ids]
        return found[-1] if found else None

    def may_hold_again(self, labels: set[str], entry: dict[str, Any]) -> bool:
        """Return whether rows may have come back after a correction took them out of these labels.

        Other lessons and corrections may have taught the same rows, unless the labels are gone.
        """
        place = next(i for i, one in enumerate(self.history) if one is entry)
        adding = any(one.get("correction") not in ("remove", "forget") for one in self.history[place + 1 :])
        return adding and not self.labels.isdisjoint(labels)

    def learnt(self, rows: Rows) -> tuple[int, set[str]] | None:
        """Return the generation that has learnt these rows, and which of their labels were forgotten since.

        Labels that a correction renamed, merged or emptied are not forgotten: their rows count elsewhere, or
        were taken out on purpose. None if the rows are new, or were removed again.
        """
        entry = self.latest(mark_of(rows))
        if entry is None or entry.get("correction") == "remove":
            return None
        missing = {row.label for row in rows if row.split in (None, "train")} - self.labels
        gone = {mark for one in self.history for mark in one.get("gone", ())}
        corrected = {
            label
            for label in missing
            if not gone.isdisjoint(lesson_id(key, LABEL + label) for key in self.keys)
        }
        return entry.get("generation", 0), missing - corrected

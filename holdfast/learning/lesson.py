"""Lesson: the result of learning one task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.learning.passes import Passes, added, without
from holdfast.learning.trials import StoredTrial
from holdfast.methods.search import Choice, Decision

LOOK_AHEAD = "look-ahead"


@dataclass
class Lesson:
    """Result of learning one task."""

    task: str
    decision: Decision
    trial: StoredTrial
    """The trial whose weights became the model."""
    trials: list[StoredTrial]
    chosen_passes: Passes
    search_passes: Passes
    """Passes of the search: those that neither the chosen trial nor its look-ahead needed."""
    known: tuple[float | None, float | None] = (None, None)
    """Validation scores on earlier labels, before and after this task; None without any or in a study."""

    held_out: int = 0
    """Number of validation sentences."""

    @override
    def __repr__(self) -> str:
        return f"Lesson({self.task!r}, {len(self.trials)} trials, validation score {self.trial.score:.3f})"

    def entry(self, task: Task, new: list[str]) -> dict[str, Any]:
        """Return the lesson as JSON for a learner's history."""
        trial, notes = self.trial, self.decision.notes
        return {
            "task": self.task,
            "sentences": len(task.train) + len(task.valid),
            "labels": len(task.labels),
            "new": len(new),
            "score": None if math.isnan(trial.score) else trial.score,
            "drift": trial.fit.get("drift"),
            **{name: notes[name] for name in ("chose", "why", "rho") if name in notes},
        }


def describe(choice: Choice, *, moves: bool = True) -> str:
    """Return the numeric hyper-parameters as text."""
    if not moves:
        return "only the head"
    return "  ".join(
        f"{name} {value:.3g}" for name, value in choice.items() if isinstance(value, float | int)
    )


def search_passes(chosen: StoredTrial, trials: list[StoredTrial], borrowed: dict[str, Passes]) -> Passes:
    """Return the passes that neither the chosen trial nor its look-ahead, one of the trials, needed."""
    others = [trial.passes for trial in trials if trial is not chosen]
    pieces = {what: p for trial in trials for what, p in trial.borrowed.items()} | borrowed
    shared = [p for what, p in pieces.items() if what != LOOK_AHEAD and what not in chosen.borrowed]
    ahead = chosen.borrowed.get(LOOK_AHEAD, {}).get(LOOK_AHEAD)
    return without(added(*others, *shared), {"train": ahead} if ahead else {})

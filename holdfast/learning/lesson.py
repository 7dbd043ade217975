"""What a learner hands out: one finished training, and what learning one task came to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from holdfast.data.tasks import Task
from holdfast.learning.passes import Passes, added, without
from holdfast.maths.params import Params
from holdfast.methods.search import Choice, Decision
from holdfast.storage.generations import read_tensors

LOOK_AHEAD = "look-ahead"


@dataclass
class Trial:
    """One finished training. Its weights wait on disk until somebody wants them."""

    path: Path
    device: torch.device
    choice: Choice
    score: float
    """Validation macro-F1; no number where there are no validation sentences."""
    fit: dict[str, Any]
    state: dict[str, Any]
    passes: Passes
    borrowed: dict[str, Passes]
    """Work done once per task that this training relied on, such as the look-ahead."""
    seconds: float
    found: bool = False
    """Whether it was there already, made before a kill or by another run."""

    @property
    def params(self) -> Params:
        """The weights it ended with."""
        return self.read()["weights"]

    def read(self) -> dict[str, Params]:
        """The weights and the method's state it ended with."""
        return read_tensors(self.path, self.device)[0]

    def summary(self) -> dict[str, Any]:
        """What the record keeps of it."""
        return {"choice": self.choice, "score": self.score, **self.fit}


@dataclass
class Lesson:
    """What learning one task came to."""

    task: str
    decision: Decision
    trials: list[Trial]
    chosen_passes: Passes
    search_passes: Passes
    """All other passes: those of trials that were not chosen and not looked ahead with."""
    known: tuple[float | None, float | None] = (None, None)
    """Validation score on labels that came before this task, before and after it, where the task has some."""

    def entry(self, task: Task, new: list[str]) -> dict[str, Any]:
        """The lesson in a learner's history, as JSON."""
        trial, notes = self.decision.trial, self.decision.notes
        fit: dict[str, Any] = getattr(trial, "fit", {})
        return {
            "task": self.task,
            "sentences": len(task.train) + len(task.valid),
            "labels": len(task.labels),
            "new": len(new),
            "score": None if math.isnan(trial.score) else trial.score,
            "drift": fit.get("drift"),
            **{name: notes[name] for name in ("chose", "why", "rho") if name in notes},
        }


def split_state(state: dict[str, Any]) -> tuple[dict[str, Params], dict[str, Any]]:
    """A method's state as groups of tensors and as numbers."""
    tensors = {name: value for name, value in state.items() if isinstance(value, dict)}
    return tensors, {name: value for name, value in state.items() if name not in tensors}


def describe(choice: Choice, *, moves: bool = True) -> str:
    """Hyper-parameters as a person reads them."""
    if not moves:
        return "the encoder as it is"
    return "  ".join(
        f"{name} {value:.3g}" for name, value in choice.items() if isinstance(value, float | int)
    )


def search_passes(chosen: Trial, trials: list[Trial], borrowed: dict[str, Passes]) -> Passes:
    """What the chosen training did not need. A look-ahead is one of the trials, under another name."""
    others = [trial.passes for trial in trials if trial is not chosen]
    pieces = {what: p for trial in trials for what, p in trial.borrowed.items()} | borrowed
    shared = [p for what, p in pieces.items() if what != LOOK_AHEAD and what not in chosen.borrowed]
    ahead = chosen.borrowed.get(LOOK_AHEAD, {}).get(LOOK_AHEAD)
    return without(added(*others, *shared), {"train": ahead} if ahead else {})

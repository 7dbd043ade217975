"""The task loss of a split, by scenario; `maths/losses.py` has the formula."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch

from holdfast.data.tasks import Scenario, Task
from holdfast.errors import HoldfastError
from holdfast.maths.losses import Objective, balanced_weights, relaxed_prior

ClassWeights = Literal["task", "paper", "none"]
# Class weights for AnnoMI, hard-coded by the paper's authors.
PAPER_WEIGHTS = {"change": 0.41, "sustain": 0.89, "neutral": 0.16}


def objective(
    scenario: Scenario,
    task: Task,
    part: Literal["train", "valid"],
    *,
    rows: Sequence[str],
    seen: Sequence[str],
    class_weights: ClassWeights = "task",
    relaxation: float = 1.0,
) -> Objective:
    """Return the loss of one split of a task, for a head with these rows, of which `seen` were learnt."""
    prior, weights = torch.ones(len(rows)), torch.ones(len(rows))
    if scenario == "class-incremental":
        counts = (task.train if part == "train" else task.valid).counts()
        prior = relaxed_prior(counts, current=task.labels, rows=rows, seen=seen, relaxation=relaxation)
    elif scenario == "domain-incremental":
        chosen = _class_weights(task, class_weights)
        weights = torch.tensor([chosen.get(label, 1.0) for label in rows])
    return Objective(prior.log(), weights)


def _class_weights(task: Task, kind: ClassWeights) -> Mapping[str, float]:
    if kind == "none":
        return {}
    if kind == "task":
        return balanced_weights(task.train.counts())
    if unknown := [label for label in task.labels if label not in PAPER_WEIGHTS]:
        raise HoldfastError(
            f"class_weights=paper has only {', '.join(PAPER_WEIGHTS)}, but task {task.name!r} has "
            f"{unknown[0]!r}; use class_weights=task"
        )
    return PAPER_WEIGHTS

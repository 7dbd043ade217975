"""Records as `run` writes them, with made-up scores."""

from __future__ import annotations

from typing import Any

from holdfast.bench import Spec
from holdfast.maths import metrics

TASKS = ["a", "b", "c"]
F = list[list[float | None]]


def matrix(first: float, second: float, third: float) -> F:
    """Return scores that end as given; every task starts at .9."""
    return [[0.9, None, None], [0.8, 0.9, None], [first, second, third]]


def joint(score: float) -> F:
    """Return scores of joint training."""
    return [[None] * 3, [None] * 3, [score] * 3]


def record_of(spec: Spec, scores: F, **rest: Any) -> dict[str, Any]:
    """Return a record with this score matrix."""
    tasks = TASKS[: len(scores)]
    lessons = ["all"] if scores[0][0] is None else tasks
    chosen = [{"task": task, "lr": 0.003, "score": 0.9, **rest.get("chosen", {})} for task in lessons]
    tried = [{"choice": {"lr": 0.003, "lam": lam}, "score": 0.5} for lam in (0.0, 1.0, 10.0)]
    return {
        "spec": spec.to_json(),
        "tasks": tasks,
        "chosen": chosen,
        "trials": [{"task": task, "trials": tried} for task in lessons],
        "scores": {"test": scores, "valid": scores},
        "metrics": {"Ov": metrics.overall(scores), "CF": None, "BWT+": None, "FWT": None},
        "predictions": [],
        "passes": {"chosen": {"train": {"forward": 7, "backward": 6}}, "search": {}},
        "seconds": rest.get("seconds", 10.0),
        "peak_memory": 2**30,
        "versions": {},
        "revision": None,
    }

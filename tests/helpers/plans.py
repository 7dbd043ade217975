"""Search plans driven by a fake trainer."""

from __future__ import annotations

from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any

from helpers.toys import small

from holdfast.methods.search import Strongest, strongest


class Result:
    """A trial with choice, score and weights. A plan that reads anything else fails."""

    def __init__(self, choice: dict[str, Any], score: float) -> None:
        self.choice, self.score, self.params = choice, score, {}

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a plan read {name!r}")


def drive(plan: Generator, score: Callable[[dict[str, Any]], float]) -> tuple[Any, list[Result]]:
    """Train until the plan returns; return its result and all trainings."""
    made: list[Result] = []
    answer = None
    while True:
        try:
            choice = plan.send(answer)
        except StopIteration as end:
            return end.value, made
        answer = Result(choice, score(choice))
        made.append(answer)


def at(lam: float) -> dict[str, float]:
    return {"lam": lam}


FREE = Result({"lam": 0.0}, 0.9)


def descend(
    passes: Callable[[float], bool], *, start: float = 10.0, **options: Any
) -> tuple[Strongest, list[float]]:
    plan = strongest(start, at, lambda trial: trial.score >= 0.5, FREE, **options)
    found, made = drive(plan, lambda choice: float(passes(choice["lam"])))
    return found, [trial.choice["lam"] for trial in made]


def pupil(fixed: set[str] = frozenset(), scenario: str = "class-incremental", **changes: Any) -> Any:
    """Return the parts of a learner at its second task that a search reads."""
    return SimpleNamespace(
        rates=lambda: (1e-2, 1e-3),
        tasks_seen=1,
        fixed=frozenset(fixed),
        scenario=scenario,
        settings=small(**{"engine": "linear", "lam_trials": None} | changes),
    )


def searched(method: Any, learner: Any, score: Callable[[dict[str, Any]], float]) -> tuple[Any, list[Any]]:
    """Return the decision of a method's plan and all trainings it asks for."""
    return drive(method.plan(learner, None), score)

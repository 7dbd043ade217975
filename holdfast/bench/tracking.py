"""Log the progress of a run to an experiment tracker, through Accelerate."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.fields import unknown

if TYPE_CHECKING:
    from accelerate import Accelerator

    from holdfast.bench.spec import Spec
    from holdfast.learning.learner import Learner

TRACKERS = {
    "tensorboard": ("tensorboard", "tensorboardX"),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "trackio": ("trackio",),
}


def check_tracker(name: str | None) -> str | None:
    """Return the name of the tracker; raise an error if it is unknown or not installed."""
    if name is None:
        return None
    if name not in TRACKERS:
        raise HoldfastError(unknown(name, list(TRACKERS), "tracker"))
    if name not in LOGGER_TYPE_TO_CLASS:
        raise HoldfastError(f"--track {name} needs a newer accelerate: pip install -U accelerate")
    if not any(importlib.util.find_spec(module) for module in TRACKERS[name]):
        raise HoldfastError(f"--track {name} needs a package: pip install {TRACKERS[name][0]}")
    return name


class Tracked(Progress):
    """Passes on every event and logs task numbers, losses, and validation and test scores."""

    def __init__(self, inner: Progress, accelerator: Accelerator) -> None:
        self.inner = inner
        self.accelerator = accelerator
        self.step = 0
        self.lost = False

    @override
    def plan(self, tasks: int) -> None:
        self.inner.plan(tasks)

    @override
    def task(self, number: int, name: str) -> None:
        self._log({"task": number})
        self.inner.task(number, name)

    @override
    def trial(self, number: int, what: str) -> None:
        self.inner.trial(number, what)

    @override
    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        self.step += 1
        self._log({f"loss/{name}": value for name, value in losses.items()})
        self.inner.epoch(epoch, epochs, losses)

    @override
    def looked(self, done: int, total: int) -> None:
        self.inner.looked(done, total)

    @override
    def scored(self, score: float, reused: bool) -> None:
        self._log({"valid_f1": score})
        self.inner.scored(score, reused)

    @override
    def tested(self, row: list[float | None]) -> None:
        self._log({f"test_f1/{i + 1}": score for i, score in enumerate(row) if score is not None})
        self.inner.tested(row)

    @override
    def note(self, text: str) -> None:
        self.inner.note(text)

    def _log(self, values: dict[str, Any]) -> None:
        if self.lost:
            return
        try:
            self.accelerator.log(values, step=self.step)
        except Exception as error:  # trackers can raise any exception; losing a curve must not end the run
            self.lost = True
            self.inner.note(f"tracking failed ({_line(error)}); the run continues without it")


@contextmanager
def tracked(learner: Learner, spec: Spec, track: str | None) -> Iterator[None]:
    """Log the run within the block; do nothing if `track` is None."""
    if track is None:
        yield
        return
    flat = {name: str(value) for name, value in spec.to_json().items()}
    name = f"{spec.method}-{spec.digest()}"
    named = {"wandb": {"name": name}, "trackio": {"name": name}, "mlflow": {"run_name": name}}
    try:
        learner.accelerator.init_trackers("holdfast", config=flat, init_kwargs=named)
    except Exception as error:
        raise HoldfastError(f"--track {track}: {_line(error)}; fix that or omit --track") from error
    learner.progress = Tracked(learner.progress, learner.accelerator)
    try:
        yield
    finally:
        try:
            learner.accelerator.end_training()
        except Exception as error:
            learner.progress.note(f"the tracker could not be closed ({_line(error)})")


def _line(error: Exception) -> str:
    """Return the first non-empty line of an error, or its type if there is none."""
    return next(filter(None, str(error).splitlines()), type(error).__name__)

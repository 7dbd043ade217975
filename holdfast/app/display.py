"""Progress on screen: lines, and on a terminal also bars. Also the table of one record."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bars
from rich.table import Column, Table
from typing_extensions import override

from holdfast.app.terminal import plain
from holdfast.bench.bench import Titled
from holdfast.bench.records import Record
from holdfast.bench.worker import Event
from holdfast.events import Progress
from holdfast.maths.metrics import percent

EVERY = 30.0  # minimum seconds between two plain lines about one bar


class Display:
    """Lines that stay and, on a terminal, bars below them."""

    def __init__(self, console: Console, *, lines: bool = True) -> None:
        self.console = console
        self.bars = Bars(
            TextColumn("{task.description}", markup=False, table_column=_cut(max_width=40)),
            BarColumn(20),
            TextColumn("{task.completed:.0f}/{task.total:.0f} {task.fields[unit]}"),
            TextColumn(
                "{task.fields[detail]}{task.fields[left]}", "dim", markup=False, table_column=_cut(ratio=1)
            ),
            expand=True,
            console=console,
            transient=True,
            refresh_per_second=4,
            speed_estimate_period=3600,  # an epoch may take minutes
            disable=not console.is_terminal,
        )
        self._silent = not lines

    def say(self, text: str) -> None:
        """Print a line. Once that fails, on a full disk for example, stay silent: the work goes on."""
        try:
            if not self._silent:
                self.console.print(plain(text), highlight=False, markup=False, soft_wrap=True)
        except OSError:
            self._silent = True

    def bar(self, description: str, unit: str, total: int = 1) -> Bar:
        """Add a bar."""
        return Bar(self, self.bars.add_task(description, total=total, unit=unit, detail="", left=""))

    def __enter__(self) -> Self:
        self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.bars.stop()


def _cut(**size: int) -> Column:
    """Return a column that cuts text with an ellipsis if it does not fit."""
    return Column(no_wrap=True, overflow="ellipsis", **size)  # type: ignore[arg-type]


class Bar:
    """One piece of work: a bar on a terminal, elsewhere at most one line every half minute."""

    def __init__(self, display: Display, task: TaskID) -> None:
        self.display = display
        self.task = task
        self._said = time.monotonic()

    def update(self, done: int, total: int, detail: str = "", left: str | None = None) -> None:
        """Show how much is done. The time left is estimated from the pace unless it is given."""
        bars = self.display.bars
        bars.update(self.task, completed=done, total=total, detail=detail)
        bars.update(self.task, left=self._left() if left is None else left)
        if not self.display.console.is_terminal and time.monotonic() - self._said > EVERY:
            self.say()

    def say(self) -> None:
        """Print the present state as a plain line."""
        self._said = time.monotonic()
        task = self._state()
        shown = f"{task.description}: {task.completed:.0f}/{task.total:.0f} {task.fields['unit']}"
        self.display.say(f"{shown} {task.fields['detail']}{task.fields['left']}".rstrip())

    def remove(self) -> None:
        """Take the bar off the screen."""
        self.display.bars.remove_task(self.task)

    def _left(self) -> str:
        seconds = self._state().time_remaining
        return f"  about {minutes(seconds)} left" if seconds else ""

    def _state(self) -> Any:
        return next(task for task in self.display.bars.tasks if task.id == self.task)


# ---- one learner --------------------------------------------------------------------------------------


class LearnerProgress(Progress):
    """Shows the tasks and training runs of one learner."""

    def __init__(self, display: Display) -> None:
        self.display = display
        self.total = 0
        self._starts: list[float] = []  # of tasks
        self._training = ""
        self._bar: Bar | None = None
        self._began = time.monotonic()

    @override
    def plan(self, tasks: int) -> None:
        self.total = tasks

    @override
    def task(self, number: int, name: str) -> None:
        self._starts.append(time.monotonic())
        of = f"/{self.total}" if self.total else ""
        self.display.say(f"task {number}{of} {name}{self._left(number)}")

    @override
    def trial(self, number: int, what: str) -> None:
        self._remove_bar()
        self._training = f"  training {number}: {what}"
        self._began = time.monotonic()

    @override
    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        self._show("epochs", epoch, epochs, f"loss {losses['task']:.3f} valid {losses['valid']:.3f}")

    @override
    def looked(self, done: int, total: int) -> None:
        self._show("sentences", done, total)

    @override
    def scored(self, score: float, reused: bool) -> None:
        self._remove_bar()
        took = "reused" if reused else f"{time.monotonic() - self._began:.1f} s"
        found = "no validation sentences" if math.isnan(score) else f"valid F1 {100 * score:.1f}"
        self.display.say(f"{self._training}  ->  {found}  ({took})")

    @override
    def note(self, text: str) -> None:
        self.display.say(text)

    def _show(self, unit: str, done: int, total: int, detail: str = "") -> None:
        self._bar = self._bar or self.display.bar(self._training, unit, total)
        self._bar.update(done, total, detail)

    def _remove_bar(self) -> None:
        if self._bar is not None:
            self._bar.remove()
        self._bar = None

    def _left(self, number: int) -> str:
        # The first task usually needs no search, so its time does not predict the others'.
        searched = self._starts[1:]
        if len(searched) < 2 or not self.total:
            return ""
        each = (searched[-1] - searched[0]) / (len(searched) - 1)
        return f"  (about {minutes(each * (self.total - number + 1))} left)"


@contextmanager
def learning(console: Console, title: str) -> Iterator[LearnerProgress]:
    """Show the progress of a learner under a title."""
    console.print(f"[bold]{escape(plain(title))}[/bold]", soft_wrap=True, highlight=False)
    with Display(console) as display:
        yield LearnerProgress(display)


@contextmanager
def counting(console: Console, doing: str, unit: str) -> Iterator[Callable[..., None]]:
    """Show work counted in pieces; yield a function of the number done, the total and, if known, a loss."""
    with Display(console) as display:
        bar = display.bar(doing, unit)

        def show(done: int, total: int, loss: float | None = None) -> None:
            bar.update(done, total, "" if loss is None else f"loss {loss:.3f}")
            if done == total and not console.is_terminal:
                bar.say()

        yield show


# ---- a suite of runs ----------------------------------------------------------------------------------


@dataclass
class RunningRun:
    """A run of a suite in progress."""

    spec: Titled
    began: float
    bar: Bar
    tasks: int = 0
    done: int = 0
    task: str = ""
    training: str = ""


def overall(record: Record) -> str:
    """Return the overall score of a run as text."""
    return f"Ov {percent(record['metrics']['Ov'])}"


class SuiteDisplay(Display):
    """Shows a suite: a line for each run that ends, bars for the whole and for each run in progress."""

    def __init__(
        self, console: Console, total: int, at_once: int, outcome: Callable[[Record], str] = overall
    ) -> None:
        super().__init__(console)
        self.total = total
        self.at_once = at_once
        self.outcome = outcome
        self.missing: list[Titled] = []
        self.ended = 0
        self._running: dict[int, RunningRun] = {}
        self._seconds: dict[str, list[float]] = {}  # durations of finished runs, by `Titled.like`

    def start(self, missing: Sequence[Titled], known: Sequence[tuple[str, float]]) -> None:
        """Print how many runs are left and add the overall bar; `known` has the durations of earlier runs."""
        self.missing = list(missing)
        for like, seconds in known:
            self._seconds.setdefault(like, []).append(seconds)
        there = self.total - len(missing)
        parallel = f", {self.at_once} in parallel" if self.at_once > 1 else ""
        self.say(f"{there} of {self.total} runs exist; {len(missing)} to make{parallel}")
        self._whole = self.bar("all runs", "runs", self.total)
        self._whole.update(there, self.total)

    def event(self, number: int, event: Event, record: Record | None) -> None:
        """Show an event of the missing run with this number."""
        kind = event["kind"]
        if kind == "begun":
            spec = self.missing[number]
            self._running[number] = RunningRun(spec, time.monotonic(), self.bar(spec.title, "tasks"))
            return
        if kind in ("done", "failed"):
            self._end(self._running.pop(number), event, record)
            return
        run = self._running[number]
        detail = ""
        if kind == "plan":
            run.tasks = event["tasks"]
        elif kind == "task":
            run.task = f"task {event['number']}/{run.tasks} {event['name']}"
            run.done, run.training = event["number"] - 1, ""
            if not self.console.is_terminal:
                self.say(f"  {run.spec.title}: {run.task}")
        elif kind == "note":
            self.say(f"  {run.spec.title}: {event['text']}")
        elif kind == "trial":
            run.training = f", training {event['number']}: {event['what']}"
        elif kind == "epoch":
            detail = f", epoch {event['epoch']}/{event['epochs']}"
        elif kind == "looked":
            detail = f", {event['done']}/{event['total']} sentences"
        left = f"  about {minutes(self._rest(run))} left" if self._seconds or run.done else ""
        run.bar.update(run.done, max(run.tasks, 1), run.task + run.training + detail, left)

    def _end(self, run: RunningRun, event: Event, record: Record | None) -> None:
        run.bar.remove()
        self.ended += 1
        took = time.monotonic() - run.began
        if record is not None:
            self._seconds.setdefault(run.spec.like, []).append(took)
            outcome = f"{self.outcome(record)} in {minutes(took)}"
        else:
            outcome = f"FAILED: {event['why']}"
        there = self.total - len(self.missing) + self.ended
        left = self.left()
        self.say(f"[{there}/{self.total}] {run.spec.title}: {outcome}{left}")
        self._whole.update(there, self.total, left=left)

    def left(self) -> str:
        """Return the estimated time left as text; empty if there is no estimate."""
        if not self._seconds or self.ended == len(self.missing):
            return ""
        running = [self._rest(run) for run in self._running.values()]
        waiting = [self._usual(spec) for spec in self.missing[self.ended + len(self._running) :]]
        rest = max([*running, sum(running + waiting) / self.at_once])
        return f"  (about {minutes(rest)} left)"

    def _usual(self, spec: Titled) -> float:
        """Return the mean seconds of similar finished runs, or of all finished runs if none is similar."""
        everything = [seconds for some in self._seconds.values() for seconds in some]
        return fmean(self._seconds.get(spec.like, everything))

    def _rest(self, run: RunningRun) -> float:
        """Estimate the seconds left of a run: from similar runs, else its own pace, else all runs."""
        since = time.monotonic() - run.began
        similar = run.spec.like in self._seconds
        whole = self._usual(run.spec) if similar or not run.done else since * run.tasks / run.done
        return max(whole - since, 0.0)


# ---- results ------------------------------------------------------------------------------------------


def print_record(console: Console, record: dict[str, Any]) -> None:
    """Print the score matrix and the metrics of one run."""
    F = record["scores"]["test"]
    table = Table(title=f"{record['spec']['method']}: test macro-F1 after each task", title_justify="left")
    table.add_column("after")
    names = record["tasks"]
    for name in names:
        table.add_column(name, justify="right")
    for name, row in zip(names, F, strict=True):
        if any(cell is not None for cell in row):
            table.add_row(name, *(percent(cell) for cell in row))
    console.print(table)
    values = "   ".join(
        f"{name} {percent(value)}" for name, value in record["metrics"].items() if value is not None
    )
    console.print(values, highlight=False)


def minutes(seconds: float) -> str:
    """Return a duration in seconds, minutes or hours."""
    if seconds < 5400:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

"""A suite at work: a live board on a terminal, plain lines in a pipe."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import fmean
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from holdfast.app.display import minutes
from holdfast.bench.bench import Titled
from holdfast.bench.records import Record
from holdfast.bench.worker import Event
from holdfast.maths.metrics import percent


@dataclass
class RunningRun:
    """A run that is going on."""

    spec: Titled
    began: float
    tasks: int = 0
    done: int = 0
    """Tasks that it has learnt."""
    task: str = "starting"
    training: str = ""
    epoch: str = ""


def overall(record: Record) -> str:
    """What a run over a stream came to."""
    return f"Ov {percent(record['metrics']['Ov'])}"


class Board(AbstractContextManager["Board"]):
    """Says when a run begins, reaches a task and ends, one line each."""

    def __init__(
        self, console: Console, total: int, at_once: int, outcome: Callable[[Record], str] = overall
    ) -> None:
        self.console = console
        self.total = total
        self.at_once = at_once
        self.outcome = outcome
        self.rows: dict[int, RunningRun] = {}
        self.ended = 0
        self.silent = False
        self.spent: dict[str, list[float]] = {}

    def start(self, missing: Sequence[Titled], known: Sequence[tuple[str, float]]) -> None:
        """What is to be done, and what there is."""
        self.missing = list(missing)
        for like, seconds in known:
            self._note(like, seconds)
        side = f", {self.at_once} at a time" if self.at_once > 1 else ""
        self.say(f"{self.total - len(missing)} of {self.total} runs are there; {len(missing)} to make{side}")

    def event(self, number: int, event: Event, record: Record | None) -> None:
        """Something happened to a run."""
        spec, kind = self.missing[number], event["kind"]
        if kind == "begun":
            self.rows[number] = RunningRun(spec, time.monotonic())
        row = self.rows[number]
        if kind == "plan":
            row.tasks = event["tasks"]
        elif kind == "task":
            row.task = f"task {event['number']}/{row.tasks} {event['name']}"
            row.done = event["number"] - 1
            row.training = row.epoch = ""
            self.reached(row)
        elif kind == "note":
            self.say(f"  {spec.title}: {event['text']}")
        elif kind == "trial":
            row.training, row.epoch = f"training {event['number']}: {event['what']}", ""
        elif kind == "epoch":
            row.epoch = f"epoch {event['epoch']}/{event['epochs']}"
        elif kind == "looked":
            row.epoch = f"{event['done']}/{event['total']}"
        elif kind in ("done", "failed"):
            self._end(number, event, record)

    def _end(self, number: int, event: Event, record: Record | None) -> None:
        row = self.rows.pop(number)
        self.ended += 1
        took = time.monotonic() - row.began
        if record is not None:
            self._note(row.spec.like, took)
            outcome = f"{self.outcome(record)} in {minutes(took)}"
        else:
            outcome = f"FAILED: {event['why']}"
        there = self.total - len(self.missing) + self.ended
        self.say(f"[{there}/{self.total}] {row.spec.title}: {outcome}{self.left()}")

    def reached(self, row: RunningRun) -> None:
        """A run has reached a task."""
        self.say(f"  {row.spec.title}: {row.task}")

    def say(self, text: str) -> None:
        """A line that stays; from where none can be written, on a full disk say, runs go on in silence."""
        try:
            if not self.silent:
                self.console.print(text, highlight=False, markup=False, soft_wrap=True)
        except OSError:
            self.silent = True

    def left(self) -> str:
        """How long the rest may take: no less than the longest run that is going on."""
        if not self.spent or self.ended == len(self.missing):
            return ""
        running = [self._rest(row) for row in list(self.rows.values())]  # drawn while runs come and go
        waiting = [self._usual(spec) for spec in self.missing[self.ended + len(self.rows) :]]
        rest = max([*running, sum(running + waiting) / self.at_once])
        return f"  (about {minutes(rest)} left)"

    def _usual(self, spec: Titled) -> float:
        """What a run takes, by those alike, or else by all."""
        everything = [seconds for some in list(self.spent.values()) for seconds in some]
        return fmean(self.spent.get(spec.like, everything))

    def _rest(self, row: RunningRun) -> float:
        """What is left of a run, by its like, or else by its own pace so far."""
        since = time.monotonic() - row.began
        alike = row.spec.like in self.spent
        whole = self._usual(row.spec) if alike or not row.done else since * row.tasks / row.done
        return max(whole - since, 0.0)

    def _note(self, like: str, seconds: float) -> None:
        self.spent.setdefault(like, []).append(seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None


class LiveBoard(Board):
    """The same lines for what has ended, and under them the runs that are going on."""

    def __enter__(self) -> LiveBoard:
        self.live = Live(
            console=self.console, refresh_per_second=2, transient=True, get_renderable=self.render
        )
        self.live.start()
        return self

    def reached(self, row: RunningRun) -> None:
        """The board shows it."""

    def render(self) -> Group:
        """The board as it is now."""
        table = Table(box=None, padding=(0, 2, 0, 0))
        for row in list(self.rows.values()):
            since = minutes(time.monotonic() - row.began)
            if self.spent or row.done:
                since += f", about {minutes(self._rest(row))} left"
            cells = (row.spec.title, row.task, row.training, row.epoch, since)
            table.add_row(*(Text(cell, no_wrap=True, overflow="ellipsis") for cell in cells))
        there = self.total - len(getattr(self, "missing", ())) + self.ended
        bar = Table.grid(padding=(0, 1))
        bar.add_row(ProgressBar(self.total, there, width=30), f"{there}/{self.total} runs{self.left()}")
        return Group(table, bar)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

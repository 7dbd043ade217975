"""Progress and records on screen: live on a terminal, plain lines in a pipe."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from holdfast.events import Progress
from holdfast.maths.metrics import percent


class Lines(Progress):
    """One plain line per event that matters: for pipes, logs and CI."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.tasks: list[float] = []
        self.total = 0
        self._said = self.began = time.monotonic()
        self.what = ""

    def plan(self, tasks: int) -> None:
        """How many tasks there will be."""
        self.total = tasks

    def task(self, number: int, name: str) -> None:
        """Announce the task, and how long the rest may take once that can be told."""
        self.tasks.append(time.monotonic())
        self.number = number
        of = f"/{self.total}" if self.total else ""
        self.say(f"task {number}{of} {name}{self._left()}")

    def trial(self, number: int, what: str) -> None:
        """Remember what is being trained."""
        self.what = f"  training {number}: {what}"
        self.began = time.monotonic()
        self._said = self.began

    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        """Say something about long trainings now and then."""
        if time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            self.say(
                f"{self.what}  epoch {epoch}/{epochs} loss {losses['task']:.3f} valid {losses['valid']:.3f}"
            )

    def looked(self, done: int, total: int) -> None:
        """Say how far it is now and then."""
        if time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            self.say(f"  {done} of {total} sentences{self._pace(done, total)}")

    def scored(self, score: float, reused: bool) -> None:
        """Say how the training went."""
        took = "found finished" if reused else f"{time.monotonic() - self.began:.1f} s"
        found = "no validation sentences" if math.isnan(score) else f"valid F1 {100 * score:.1f}"
        self.say(f"{self.what}  ->  {found}  ({took})")

    def note(self, text: str) -> None:
        """Say it."""
        self.say(text)

    def say(self, text: str) -> None:
        """Print a line."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def _pace(self, done: int, total: int) -> str:
        """How long the rest of the sentences may take."""
        spent = time.monotonic() - self.began
        return f", about {minutes(spent / done * (total - done))} left" if done and spent > 2 else ""

    def _left(self) -> str:
        # The first task has no penalty to search for and says little about the others.
        searched = self.tasks[1:]
        if len(searched) < 2 or not self.total:
            return ""
        each = (searched[-1] - searched[0]) / (len(searched) - 1)
        return f"  (about {minutes(each * (self.total - self.number + 1))} left)"


class Screen(Lines):
    """The same lines, and under them one that moves."""

    def __init__(self, console: Console, live: Live) -> None:
        super().__init__(console)
        self.live = live
        self.started = time.monotonic()

    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        """Redraw the moving line: a bar, the losses, and what this training may still take."""
        now = time.monotonic()
        filled = round(20 * epoch / epochs)
        bar = "━" * filled + "╌" * (20 - filled)
        rest = (now - self.began) / epoch * (epochs - epoch)
        now_at = f"epoch {epoch}/{epochs}  loss {losses['task']:.3f}  valid {losses['valid']:.3f}"
        end = f"  at most {rest:.0f} s left of it, {minutes(now - self.started)} since the start"
        self.live.update(
            Text(f"{self.what}  {bar} {now_at}{end}", style="dim", no_wrap=True, overflow="ellipsis")
        )

    def looked(self, done: int, total: int) -> None:
        """Redraw the moving line."""
        filled = round(20 * done / max(total, 1))
        bar = "━" * filled + "╌" * (20 - filled)
        self.live.update(
            Text(f"{self.what}  {bar} {done}/{total} sentences{self._pace(done, total)}", style="dim")
        )

    def scored(self, score: float, reused: bool) -> None:
        """Clear the moving line under the one that stays."""
        self.live.update(Text(""))
        super().scored(score, reused)


@contextmanager
def display(console: Console, title: str) -> Iterator[Lines]:
    """Live on a terminal, lines elsewhere."""
    console.print(f"[bold]{escape(title)}[/bold]")
    if not console.is_terminal:
        yield Lines(console)
        return
    with Live(Text(""), console=console, transient=True, refresh_per_second=4) as live:
        yield Screen(console, live)


@contextmanager
def counted(console: Console, doing: str, what: str) -> Iterator[Any]:
    """A bar on a terminal, a line now and then elsewhere, for work of so many equal pieces."""
    began = said = time.monotonic()

    def line(done: int, total: int, loss: float | None) -> str:
        spent = time.monotonic() - began
        rest = spent / done * (total - done) if done else 0.0
        left = f", about {minutes(rest)} left" if rest and spent > 5 else ""
        return f"{doing}: {done}/{total} {what}" + ("" if loss is None else f", loss {loss:.3f}") + left

    if not console.is_terminal:

        def plain(done: int, total: int, loss: float | None = None) -> None:
            nonlocal said
            if done == total or time.monotonic() - said > 30:
                said = time.monotonic()
                console.print(line(done, total, loss), highlight=False, soft_wrap=True)

        yield plain
        return
    with Live(Text(""), console=console, transient=True, refresh_per_second=4) as live:
        yield lambda done, total, loss=None: live.update(Text(line(done, total, loss), style="dim"))


def print_record(console: Console, record: dict[str, Any]) -> None:
    """The score matrix and the metrics of one run."""
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
    """A duration as a person says it."""
    if seconds < 5400:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"

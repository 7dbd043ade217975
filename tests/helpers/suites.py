"""Suites on toy files: their records, passive boards and engines, and running workers."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from helpers.runs import SETTINGS, told
from rich.console import Console

from holdfast.app.display import SuiteDisplay
from holdfast.bench import Spec
from holdfast.bench.engine import Engine, JobEvent
from holdfast.bench.suite import Suite
from holdfast.bench.worker import Event, Job


class Quiet(SuiteDisplay):
    """A board that records what it would show."""

    def __init__(self, total: int, at_once: int) -> None:
        super().__init__(Console(file=io.StringIO(), width=200), total, at_once)

    @property
    def text(self) -> str:
        return self.console.file.getvalue()  # type: ignore[attr-defined]


class Scripted(Engine):
    """An engine that emits given events and does no work."""

    def __init__(self, *events: Event) -> None:
        self.events = events

    def at_once(self, threads: int) -> int:
        return 1

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        for number in range(len(jobs)):
            for event in self.events:
                yield JobEvent(number, event)


def suite_of(files: Path, model: str, *methods: str, name: str = "toy") -> Suite:
    specs = [
        Spec.create(method=method, stream=str(files), settings=SETTINGS, model=model, order=order)
        for method in methods
        for order in ("task0,task1", "task1,task0")
    ]
    return Suite(name, tuple(specs))


def records(out: Path) -> dict[str, Any]:
    found = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    return {stem: told(record) for stem, record in found.items() if not stem.endswith(".suite")}


def workers_of(cache: Path) -> list[int]:
    """Return the worker processes of runs whose node has this cache."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended in the meantime
            at_work = b"holdfast.bench.worker" in (place / "cmdline").read_bytes()
            if at_work and f"HOLDFAST_CACHE={cache}\0".encode() in (place / "environ").read_bytes():
                found.append(int(place.name))
    return found

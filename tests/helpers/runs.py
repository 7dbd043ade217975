"""Runs on toy files: specs, the reproducible part of records, and ways to interrupt a run."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

from holdfast.bench import Spec
from holdfast.data.tasks import Stream
from holdfast.events import Progress

SETTINGS = [
    "batch_size=8",
    "epochs=2",
    "patience=2",
    "rates=0.01",
    "lam_decay=0.1",
    "lam_steps=2",
    "lam_trials=2",
    "loosening=short",
]
UNTOLD = ("seconds", "peak_memory")


def write_stream(folder: Path, stream: Stream, tasks: int) -> Path:
    folder.mkdir(exist_ok=True)
    for task in stream.tasks[:tasks]:
        with (folder / f"{task.name}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(("text", "label", "split"))
            for part in ("train", "valid", "test"):
                split = getattr(task, part)
                table.writerows(zip(split.texts, split.labels, [part] * len(split), strict=True))
    return folder


def spec(files: Path, model: str, method: str = "seq", *settings: str, **rest: Any) -> Spec:
    return Spec.create(method=method, stream=str(files), settings=[*SETTINGS, *settings], model=model, **rest)


def told(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key not in UNTOLD}


class Killed(BaseException):
    """Simulates a kill within the process."""


class Killer(Progress):
    """Progress that ends the run at its n-th event."""

    def __init__(self, at: int) -> None:
        self.left = at

    def _tick(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed

    task = trial = epoch = scored = _tick  # type: ignore[assignment]

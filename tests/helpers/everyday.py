"""Tables of toy sentences like a user's, and a learner trained on two of them."""

from __future__ import annotations

import csv
from pathlib import Path

from helpers.command_line import call
from helpers.learners import STREAM

from holdfast.storage.generations import Store


def table(path: Path, rows: list[tuple[str, str]], header: tuple[str, ...] = ("text", "label")) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return str(path)


def rows_of(task: int, part: str = "train") -> list[tuple[str, str]]:
    split = getattr(STREAM.tasks[task], part)
    return list(zip(split.texts, split.labels, strict=True))


def learnt_twice(place: Path, model: str) -> Path:
    """Return the directory of a learner with two lessons."""
    for number in (0, 1):
        source = table(place / f"week{number}.csv", rows_of(number))
        assert call("learn", str(place / "mine"), source, "--model", model, "--threads", "1") == 0
    return place / "mine"


def statistics(path: Path) -> dict[str, bytes]:
    """Return the bytes of every tensor of the head and of its calibration."""
    tensors = Store(path).load().tensors
    return {
        f"{group}/{name}": value.numpy().tobytes()
        for group, own in tensors.items()
        for name, value in own.items()
        if group.startswith(("head.", "calibration"))
    }

"""CLINC150: 150 intents of an assistant in 15 tasks of ten, and sentences that belong to none of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.data.tasks import PARTS, Split, Stream, Task, recut
from holdfast.errors import HoldfastError

CLINC_JSON = Path("clinc150", "data_small.json")
INTENTS_PER_TASK = 10
IN_FILE = {"train": "train", "valid": "val", "test": "test"}
"""The file's names of the parts."""


def clinc150(data_dir: Path) -> Stream:
    """Load the intents in order 1: a shuffle of all labels, cut into tasks of ten."""
    parts = {part: _rows(data_dir, IN_FILE[part]) for part in PARTS}
    labels = sorted({label for _, label in parts["train"]})
    tasks: list[Task] = []
    for start in range(0, len(labels), INTENTS_PER_TASK):
        own = set(labels[start : start + INTENTS_PER_TASK])
        splits = (Split.of([row for row in parts[part] if row[1] in own]) for part in PARTS)
        tasks.append(Task(f"Part{len(tasks) + 1}", *splits))
    return recut(Stream("clinc150", tuple(tasks), "class-incremental"), 1)


def out_of_scope(data_dir: Path) -> dict[str, tuple[str, ...]]:
    """Return the sentences of train, valid and test that belong to no intent and are in no task."""
    return {part: tuple(text for text, _ in _rows(data_dir, f"oos_{IN_FILE[part]}")) for part in PARTS}


def _rows(data_dir: Path, key: str) -> list[tuple[str, str]]:
    """Return the sentences and labels of one part of the file."""
    path = data_dir / CLINC_JSON
    try:
        return list(_checked(json.loads(path.read_bytes())[key]))
    except OSError as error:
        raise HoldfastError(
            f"{path}: not found; run `holdfast data get clinc150` or pass another --data-dir"
        ) from error
    except (ValueError, LookupError, TypeError) as error:
        raise HoldfastError(
            f"{path}: {key!r} is not a list of [sentence, intent] pairs;"
            " delete it and run `holdfast data get clinc150`"
        ) from error


def _checked(rows: Any) -> Iterator[tuple[str, str]]:
    for row in rows:
        text, label = row
        if not (isinstance(row, list) and isinstance(text, str) and isinstance(label, str)):
            raise TypeError("a row is not a list of two texts")
        yield text, label

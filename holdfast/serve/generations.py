"""List the generations of a learner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.everyday.made import made_by
from holdfast.serve.bodies import GenerationInfo, GenerationList
from holdfast.storage.generations import MANIFEST, Store


def listed(path: Path) -> GenerationList:
    """Return the generations that are kept, with their labels and sizes."""
    store = Store(path)
    current, found = store.current, []
    for number in store.generations:
        folder = store.path(number)
        try:
            files = [file.stat() for file in folder.iterdir()]
            written = max(file.st_mtime for file in files)
        except (OSError, ValueError):
            continue  # a writer is deleting it
        one = GenerationInfo(
            generation=number,
            current=number == current,
            written=round(written, 3),
            megabytes=round(sum(file.st_size for file in files) / 2**20, 2),
            labels=[],
            lessons=0,
            parent=None,
            made="",
            wrong=None,
        )
        try:
            sections = store.sections(number).sections
            learner = sections["learner"]
            one.labels, one.lessons = list(learner["seen"]), learner["tasks_seen"]
            one.made = made_by(number, sections.get("history", ()))
            one.parent = parent(number, sections.get("history", ()))
        except (HoldfastError, KeyError, TypeError):
            one.wrong = f"its {MANIFEST} cannot be read"
        found.append(one)
    return GenerationList(current=current, generations=found)


def parent(number: int, history: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the generation that another one was taught on: the last one in its history before itself."""
    numbers = [entry.get("generation") for entry in history]
    earlier = [one for one in numbers if isinstance(one, int) and 0 < one < number]
    return earlier[-1] if earlier else None

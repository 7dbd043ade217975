"""List the generations of a learner."""

from __future__ import annotations

from pathlib import Path

from holdfast.errors import HoldfastError
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
            wrong=None,
        )
        try:
            learner = store.sections(number).sections["learner"]
            one.labels, one.lessons = list(learner["seen"]), learner["tasks_seen"]
        except (HoldfastError, KeyError, TypeError):
            one.wrong = f"its {MANIFEST} cannot be read"
        found.append(one)
    return GenerationList(current=current, generations=found)

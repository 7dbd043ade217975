"""The pointer of a state, which names its current generation; read without torch."""

from __future__ import annotations

import json
from pathlib import Path

from holdfast.storage.files import opened, seal

POINTER = "CURRENT"
LONGEST = 32_000_000  # bytes


def generation_path(root: Path, number: int) -> Path:
    """Return the directory of a generation."""
    return root / f"generation-{number:06d}"


def read_pointer(root: Path) -> tuple[int, list[int]]:
    """Return the number of the current generation, and of all that are kept.

    Raise `OSError` if there is no pointer or it cannot be read, and other errors as `parsed_pointer` does.
    """
    with opened(root / POINTER) as file:
        return parsed_pointer(file.read(LONGEST))


def parsed_pointer(data: bytes) -> tuple[int, list[int]]:
    """Return what a pointer says.

    Raise `ValueError`, `TypeError`, `KeyError` or `RecursionError` if it is damaged.
    """
    found = json.loads(data)
    current, known = found["current"], found["generations"]
    whole = all(type(number) is int and 0 < number < 10**6 for number in (current, *known))
    # A pointer of format 1, or one that a person wrote, has no seal.
    if not whole or current not in known or found.get("sha256", seal(found)) != seal(found):
        raise ValueError(found)
    return current, known

"""The artefact that is kept with a generation of a learner.

It lies in the directory of its generation: it cannot be mistaken for that of another, and goes with it.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from holdfast.runtime.artefact import is_artefact
from holdfast.storage.files import refuse_links
from holdfast.storage.pointer import generation_path, read_pointer

FOLDER = "export"


def kept_path(path: Path, generation: int) -> Path:
    """Return where the artefact of a generation is kept."""
    return generation_path(path, generation) / FOLDER


def kept_artefact(path: Path) -> Path | None:
    """Return the artefact that is kept with the current generation of a learner; None if there is none."""
    with suppress(OSError, ValueError, TypeError, KeyError, RecursionError):  # a damaged state: others say so
        found = kept_path(path, read_pointer(path)[0])
        if is_artefact(found):
            refuse_links(path)
            return found
    return None

"""Load the generation of a learner that answers, or an exported artefact."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.errors import HoldfastError
from holdfast.runtime.answers import Answer, Answers, Asked
from holdfast.runtime.artefact import MANIFEST, Artefact, is_artefact
from holdfast.runtime.classifier import Classifier
from holdfast.storage.generations import POINTER, Store

if TYPE_CHECKING:
    from holdfast.learning.learner import Learner

Stamp = tuple[int, int, int] | None
IMPORTING = threading.Lock()  # learners are loaded in several threads


@dataclass(frozen=True)
class Loaded:
    """One generation in memory."""

    generation: int
    labels: list[str]
    counts: dict[str, int] | None
    """Sentences per label; None if the learner does not count them."""
    answers: Answers
    learner: Learner | None = None
    """None for an artefact and for a learner that has not been taught yet."""
    fixed: bool = False
    """Whether it is an exported artefact, which cannot change."""


def stamp(path: Path) -> Stamp:
    """Return what changes when another generation becomes current; None before the first."""
    for name in (POINTER, MANIFEST):
        try:
            found = (path / name).stat()
        except OSError:
            continue
        return found.st_mtime_ns, found.st_ino, found.st_size
    return None


def import_torch() -> None:
    """Import what learners need, and ONNX artefacts do not."""
    with IMPORTING:
        import holdfast.everyday.exported
        import holdfast.everyday.predict
        import holdfast.learning.learner  # noqa: F401


def load(path: Path, model: str | None = None, *, threads: int | None = None) -> Loaded:
    """Load an artefact or the current generation of a learner. One that does not exist yet has no labels.

    `threads` is for ONNX; torch has one number of threads for the whole process.
    """
    if is_artefact(path):
        return _exported(path, model, threads)
    import_torch()
    from holdfast.everyday import predict
    from holdfast.learning.directory import OURS, check_new
    from holdfast.learning.learner import Learner

    if Store(path).current is None:
        check_new(path, new=False)
        names = sorted(file.name for file in path.iterdir()) if path.is_dir() else []
        if foreign := [name for name in names if not OURS.fullmatch(name)]:
            raise HoldfastError(
                f"{path} holds no learner but other files, such as {foreign[0]}; name the directory of a "
                "learner, or a new one"
            )
        return Loaded(0, [], {}, _nothing_taught)
    learner = Learner.load(path, model=model)

    def answers(texts: Sequence[str], asked: Asked) -> list[Answer]:
        return predict.answers(learner, texts, asked)

    return Loaded(learner.generation, learner.classes_, _counts(learner), answers, learner)


def _exported(path: Path, model: str | None, threads: int | None) -> Loaded:
    if Artefact(path).runs_without_torch:
        found = Classifier(path, threads=threads)
        return Loaded(found.generation, found.labels, None, found.answers, fixed=True)
    import_torch()
    from holdfast.everyday.exported import TorchClassifier

    other = TorchClassifier(path, model=model)
    return Loaded(other.generation, other.labels, None, other.answers, fixed=True)


def _nothing_taught(texts: Sequence[str], asked: Asked) -> list[Answer]:
    raise HoldfastError("this learner has no labels yet; teach it some")


def _counts(learner: Learner) -> dict[str, int] | None:
    """Return how many sentences each label was taught with, if the head counts them."""
    past = getattr(learner.model.head, "past", None)
    if past is None:
        return None
    every = dict(zip(learner.model.head.labels, past.counts.tolist(), strict=True))
    return {label: round(every[label]) for label in learner.classes_}

"""Trials: finished training runs on disk, each found by a hash of everything that determines it.

A restarted run finds its trials again, and runs of one study share those that they would repeat. Trials never
change a result: a run finds only those that it would have produced bit for bit itself. `AtHand._place` and
`place_of` list what determines a trial.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from holdfast.errors import HoldfastError
from holdfast.learning.passes import Passes
from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods.search import Choice, Trial
from holdfast.models import Network
from holdfast.storage.files import make_directory
from holdfast.storage.scratch import Scratch
from holdfast.storage.tensors import hash_of, read_tensors

PACKAGE = Path(__file__).parents[1]
DECIDING = (
    *("distributed.py", "settings.py", "maths", "data/batches.py", "data/objective.py", "data/tasks.py"),
    *("heads", "models", "importance", "steps", "methods", "learning"),
)
"""The code that determines the result of a training run."""
LIBRARIES = {name: version(name) for name in ("transformers", "tokenizers", "accelerate")}


@dataclass
class StoredTrial:
    """A finished training run. Its weights stay on disk until they are read."""

    path: Path
    device: torch.device
    choice: Choice
    score: float
    """Validation macro-F1; NaN where there are no validation sentences."""
    fit: dict[str, Any]
    state: dict[str, Any]
    passes: Passes
    borrowed: dict[str, Passes]
    """Work done once per task that this training run relied on, such as the look-ahead."""
    seconds: float
    found: bool = False
    """Whether it already existed on disk."""
    evidence: dict[str, float] = field(default_factory=dict)
    """What its method says about its weights; in studies only."""

    @property
    def params(self) -> Params:
        """The final weights."""
        return self.read()["weights"]

    def read(self) -> dict[str, Params]:
        """Return the final weights, the head's memory and the tensors of the method's state."""
        return read_tensors(self.path, self.device)[0]

    def summary(self) -> dict[str, Any]:
        """Return the part that a run's record keeps."""
        return {"choice": self.choice, "score": self.score, **self.fit, **self.evidence}


@contextmanager
def using(model: Network, trial: Trial) -> Iterator[Mapping[str, Any]]:
    """Run a block with the weights and head memory of a trial; yield the trial's method state."""
    own, memory, tensors = P.snapshot(model), model.memory(), trial.read()
    try:
        P.restore(model, tensors.pop("weights"))
        model.load_memory(tensors.pop("memory", {}))
        yield {**tensors, **trial.state}
    finally:
        P.restore(model, own)
        model.load_memory(memory)


@functools.cache
def code_hash() -> str:
    """Return a hash of the code that determines a training run: other code may train differently."""
    total = hashlib.sha256()
    for place in map(PACKAGE.joinpath, DECIDING):
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            total.update(path.relative_to(PACKAGE).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


def place_of(directory: Path, *decides: Any) -> Path:
    """Return the path, in a directory of trials, of the trial that these values determine."""
    common = [code_hash(), torch.__version__, LIBRARIES, torch.get_num_threads()]
    return directory / f"{hash_of(*common, *decides)[:24]}.trial"


class Workspace:
    """A directory of trials: a given one, or a temporary one that is deleted when the process ends."""

    def __init__(self, given: Path | None, accelerator: Accelerator) -> None:
        self.given = given
        self.accelerator = accelerator
        self._retired: list[Path] = []

    @cached_property
    def directory(self) -> Path:
        """The directory, created on first use and common to all processes."""
        if self.given is not None:
            try:
                make_directory(self.given, private=True)
            except OSError as error:
                raise HoldfastError(f"cannot write to {self.given}: {error.strerror or error}") from error
            return self.given
        name = [""]
        if self.accelerator.is_main_process:
            self._scratch = Scratch()
            name = [str(self._scratch.path)]
        return Path(broadcast_object_list(name)[0])

    def agreed(self, path: Path) -> Path:
        """Return the main process's path on all processes, so that all read the same trial."""
        if self.accelerator.num_processes == 1:
            return path
        return Path(broadcast_object_list([str(path)])[0])

    def has(self, path: Path) -> bool:
        """Return whether the main process finds a trial, so that all processes train or none does."""
        if self.accelerator.num_processes == 1:
            return _is_whole(path)
        return bool(broadcast_object_list([_is_whole(path)])[0])

    def retire(self, trials: Sequence[Path]) -> None:
        """Delete the trials of the previous task, unless the directory was given.

        Those of the latest task stay readable through its lesson. A given directory keeps all trials for a
        run that is restarted.
        """
        if self.given is None and self.accelerator.is_main_process:
            for path in set(self._retired) - set(trials):
                path.unlink(missing_ok=True)
            self._retired = [path for path in trials if path.parent == self.directory]

    def clear(self) -> None:
        """Delete all trials."""
        for path in self.directory.glob("*.trial"):
            path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """Return whether a trial exists and is undamaged; otherwise it is trained again."""
    try:
        read_tensors(path)
    except HoldfastError:
        return False
    return True

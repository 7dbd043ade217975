"""Where finished trainings wait, so that a killed run resumes."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from holdfast.errors import HoldfastError
from holdfast.learning.pool import Pool
from holdfast.storage.generations import read_meta


class Workspace:
    """A directory of trial files: the one that was given, or one that goes with the process."""

    def __init__(self, given: Path | None, accelerator: Accelerator) -> None:
        self.given = given
        self.accelerator = accelerator
        self._retired: list[Path] = []

    @cached_property
    def directory(self) -> Path:
        """The directory, made when it is first asked for; one for all processes."""
        if self.given is not None:
            try:
                self.given.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise HoldfastError(f"cannot write to {self.given}: {error.strerror or error}") from error
            return self.given
        name = [""]
        if self.accelerator.is_main_process:
            self._temporary = tempfile.TemporaryDirectory(prefix="holdfast-")
            name = [self._temporary.name]
        return Path(broadcast_object_list(name)[0])

    @cached_property
    def pool(self) -> Pool:
        """The trials in it, by what decides them."""
        return Pool(self.directory)

    def agreed(self, path: Path) -> Path:
        """The main process's path, for all: each may have a place of its own for what is temporary."""
        if self.accelerator.num_processes == 1:
            return path
        return Path(broadcast_object_list([str(path)])[0])

    def has(self, path: Path) -> bool:
        """Whether a trial is there, as the main process sees it: all train, or none does."""
        if self.accelerator.num_processes == 1:
            return _is_whole(path)
        return bool(broadcast_object_list([_is_whole(path)])[0])

    def retire(self, trials: Sequence[Path]) -> None:
        """The trials of a finished task go with the next task's, if the directory is our own.

        Until then the lesson that was handed out can read them. In a directory that was given they wait for
        a run that does all of it again.
        """
        if self.given is None and self.accelerator.is_main_process:
            for path in set(self._retired) - set(trials):
                path.unlink(missing_ok=True)
            self._retired = [path for path in trials if path.parent == self.directory]

    def clear(self) -> None:
        """Delete the trials."""
        for path in self.directory.glob("*.trial"):
            path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """Nothing here has to be there: what a failing disk has spoilt is made again."""
    try:
        read_meta(path)
    except HoldfastError:
        return False
    return True

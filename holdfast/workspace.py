"""Where finished trainings wait, so that a killed run resumes."""

from __future__ import annotations

import tempfile
from functools import cached_property
from pathlib import Path

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list

from holdfast.errors import HoldfastError


class Workspace:
    """A directory of trial files: the one that was given, or one that goes with the process."""

    def __init__(self, given: Path | None, accelerator: Accelerator) -> None:
        self.given = given
        self.accelerator = accelerator

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

    def clear(self) -> None:
        """Delete the trials."""
        for path in self.directory.glob("*.trial"):
            path.unlink(missing_ok=True)

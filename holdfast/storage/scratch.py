"""Temporary directories that do not outlive their process for long, even if it is killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX, LOCK = "holdfast-", ".lock"


class Scratch:
    """A private temporary directory, in `place` or where the system has them, deleted with this object.

    Its lock is held as long as the process lives. A new directory first deletes those of the same user whose
    lock is free: they were left by killed processes.
    """

    def __init__(self, place: Path | None = None) -> None:
        sweep(place)
        made = Path(
            tempfile.mkdtemp(prefix=f".{PREFIX}", dir=place)
        )  # not yet visible to another process's sweep
        lock = _lock(made)
        lock.acquire()
        self.path = made.with_name(made.name.removeprefix("."))
        made.rename(self.path)
        self._delete = weakref.finalize(self, _end, self.path, lock)

    def __enter__(self) -> Path:
        return self.path

    def __exit__(self, *_: object) -> None:
        self._delete()


def sweep(place: Path | None = None) -> None:
    """Delete the temporary directories of killed processes."""
    for path in (place or Path(tempfile.gettempdir())).glob(f"{PREFIX}*"):
        with suppress(OSError, Timeout):
            mine = path.lstat().st_uid == os.getuid() and not path.is_symlink()
            if mine and (path / LOCK).is_file():
                with _lock(path):
                    shutil.rmtree(path)


def _lock(path: Path) -> FileLock:
    return FileLock(path / LOCK, timeout=0, mode=0o600, thread_local=False)


def _end(path: Path, lock: FileLock) -> None:
    shutil.rmtree(path, ignore_errors=True)
    with suppress(OSError):
        lock.release()

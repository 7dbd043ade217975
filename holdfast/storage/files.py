"""Files written whole or not at all, and a lock that goes with its process."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from holdfast.errors import HoldfastError


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise HoldfastError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # a place that cannot be written holds nothing to clear away either
            temporary.unlink()


def digest_of(files: Iterable[Path]) -> str:
    """The first 12 hex digits of the SHA-256 of some files, their names and bytes."""
    total = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as content:
                part = hashlib.file_digest(content, "sha256").hexdigest()
        except OSError as error:
            raise HoldfastError(f"{path}: cannot be read ({error.strerror}); check the path") from error
        total.update(f"{part}  {path.name}\n".encode())
    return total.hexdigest()[:12]


def write_text(path: Path, text: str) -> None:
    """Write text whole or not at all; half characters, which names of files may have, are spelled out."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON whole or not at all."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """What `write_json` wrote."""
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        raise HoldfastError(f"{path} is not readable JSON ({error}); delete it to make it anew") from error


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the block ends: within some libraries it comes out as an error of theirs."""
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield  # somebody else's to handle, or it never arrives here
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            signal.raise_signal(signal.SIGINT)


def _opened(path: Path) -> IO[str]:
    """A file to lock, in a directory that need not be there yet."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return open(path, "w")
    except OSError as error:
        raise HoldfastError(f"cannot write to {path.parent}: {error.strerror or error}") from error


def _gone(path: Path, file: IO[str]) -> bool:
    """Whether the file that was opened there has been cleared away since."""
    try:
        return not os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return True


class Busy(HoldfastError):
    """Another process is at work where this one wants to be."""


@contextmanager
def locked(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Keep a second writer out of a directory. The lock goes with the process, however it ends.

    `patience` is for one that is about to end: so many seconds are waited before giving up.
    """
    path = directory / ".lock"
    until = time.monotonic() + patience
    while True:
        with _opened(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < until:
                    time.sleep(0.05)
                    continue
                raise Busy(f"another process is at work in {directory}; wait for it to end") from None
            if _gone(path, file):
                continue  # whoever held it has cleared the directory away
            yield
            return


@contextmanager
def shared(directory: Path) -> Iterator[Callable[[], bool]]:
    """Work beside others in a directory; what is yielded tells, at the end, whether one is the last."""
    path = directory / ".users"
    while True:
        with _opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            if _gone(path, file):
                continue  # whoever was the last has cleared it away

            def last() -> bool:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            yield last
            return


def sync_directory(path: Path) -> None:
    """Make a rename in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Atomic files, checksums and locks."""

from __future__ import annotations

import glob
import hashlib
import json
import math
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from filelock import FileLock, Timeout

from holdfast.errors import HoldfastError


def write_bytes(path: Path, data: bytes, *, private: bool = False) -> None:
    """Write a file atomically; other users cannot read a `private` one."""
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        make_directory(path.parent, private=private)
        drop_leftovers(path.parent, path.name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(temporary, flags, 0o600 if private else 0o666), "wb") as file:
            _in_use(file.fileno())
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise HoldfastError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def drop_leftovers(directory: Path, name: str = "") -> None:
    """Delete the temporary files of killed processes, of one file or all; a living writer holds a lock."""
    for left in directory.glob(f".{glob.escape(name) or '*'}.????????.tmp"):
        with suppress(OSError), left.open("rb") as file:
            if not _in_use(file.fileno()):
                left.unlink()


def _in_use(descriptor: int) -> bool:
    """Lock a file as long as it is open; return whether another process has locked it."""
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


@contextmanager
def rewriting(path: Path) -> Iterator[TextIO]:
    """Yield a text file that replaces the one at `path` when the block ends; an error leaves the old one.

    A pipe or a device, such as /dev/null, is written directly.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with open(path, "w", encoding="utf-8") as file:
            yield file
        return
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        drop_leftovers(path.parent, path.name)
        with open(temporary, "x", encoding="utf-8") as file:
            _in_use(file.fileno())
            if path.exists():
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        raise HoldfastError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def make_directory(path: Path, *, private: bool = False) -> None:
    """Create a directory and its parents so that they survive a power failure; others cannot enter it."""
    missing = []
    while not path.exists():
        missing.append(path)
        path = path.parent
    for place in reversed(missing):
        place.mkdir(0o700 if private else 0o777, exist_ok=True)
        sync_directory(place.parent)


def read_bytes(path: Path, most: int | None = None) -> bytes:
    """Return the content of a file of at most `most` bytes; raise HoldfastError if it cannot be read."""
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if most is not None and size > most:
                raise HoldfastError(f"{path} cannot be read: it has {size:,} bytes, more than {most:,}")
            return file.read()
    except OSError as error:
        raise HoldfastError(f"{path} cannot be read: {error.strerror or error}") from error
    except MemoryError:
        raise HoldfastError(f"{path} cannot be read: it does not fit into memory") from None


def opened(path: Path) -> BinaryIO:
    """Open a regular file to read it; refuse a pipe, which nobody may ever write to."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK))  # noqa: SIM115
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise HoldfastError(f"{path} cannot be read: it is not a regular file")
    return file


def digest_of(files: Iterable[Path]) -> str:
    """Return the first 12 hex digits of a SHA-256 over the names and contents of files."""
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
    """Write text atomically; unpaired surrogates, which file names may contain, are escaped."""
    write_bytes(path, text.encode(errors="backslashreplace"))


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_bytes(path, (json.dumps(value, indent=1, allow_nan=False) + "\n").encode())


def read_json(path: Path) -> Any:
    """Read a JSON file."""
    return parse_json(read_bytes(path), path, whole=False)


def parse_json(data: bytes, path: Path, *, whole: bool = True) -> Any:
    """Return the value of JSON; raise HoldfastError if it cannot be read.

    With `whole`, unpaired surrogates are refused too: Python reads them and fails when it prints them.
    """
    try:
        value = json.loads(data.decode())
        if whole:
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise HoldfastError(f"{path} is not readable JSON ({error}); delete it to write it again") from error
    return value


def sealed(value: Mapping[str, Any]) -> bytes:
    """Return JSON that contains a hash of itself."""
    return (json.dumps({**value, "sha256": seal(value)}, allow_nan=False) + "\n").encode()


def seal(value: Mapping[str, Any]) -> str:
    """Return the hash that belongs into sealed JSON."""
    rest = {name: item for name, item in value.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


class Busy(HoldfastError):
    """Another process is working in the same directory."""


@contextmanager
def locked(directory: Path, patience: float = 0.0) -> Iterator[None]:
    """Hold the exclusive lock of a directory, which is created if absent.

    Wait for at most `patience` seconds, then raise `Busy`.
    """
    lock = FileLock(
        directory / ".lock", -1 if patience == math.inf else patience, mode=0o600, thread_local=False
    )
    while not lock.is_locked:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            lock.acquire(poll_interval=0.05)
        except FileNotFoundError:
            continue  # the previous holder has removed the directory
        except Timeout:
            raise Busy(f"another process is at work in {directory}; wait for it to end") from None
        except OSError as error:
            raise _unwritable(directory, error) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def shared(directory: Path) -> Iterator[Callable[[], bool]]:
    """Share a directory with other processes; yield a function that returns whether no other is left."""
    import fcntl  # filelock has no shared lock that can become exclusive

    path = directory / ".users"
    while True:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _unwritable(directory, error) from error
        try:
            fcntl.flock(file, fcntl.LOCK_SH)
            if _removed(path, file):
                continue  # removed by the last process that worked here

            def last(file: int = file) -> bool:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    return False
                return True

            yield last
            return
        finally:
            os.close(file)


def _unwritable(directory: Path, error: OSError) -> HoldfastError:
    return HoldfastError(f"cannot write to {directory}: {error.strerror or error}")


def _removed(path: Path, file: int) -> bool:
    """Return whether an open file is no longer the one at its path."""
    try:
        return not os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return True


def refuse_links(directory: Path) -> None:
    """Raise an error if anything inside a directory is a symbolic link, a pipe, a socket or a device."""
    for place, folders, names in os.walk(directory):
        for path in (Path(place, name) for name in (*folders, *names)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:
                continue  # another process has just deleted it
            if stat.S_ISLNK(mode):
                raise HoldfastError(
                    f"{path} is a link to {os.readlink(path)!r}; a state holds no links: "
                    "replace it with a copy if you trust it, else delete it"
                )
            if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                raise HoldfastError(f"{path} is neither a file nor a directory; delete it")


def sync_directory(path: Path) -> None:
    """Make renames in a directory survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""A copy, on this machine, of the learner or the artefact at a URL of fsspec.

Of a learner, the current generation is copied. It becomes the copy's current one in one step, after all of
it has arrived and its hash is right. A copy that is interrupted changes nothing, and is made again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
import threading
import time
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError, require
from holdfast.runtime.artefact import LARGEST, LONGEST_MANIFEST, MANIFEST, NAME, SHARED, Artefact, FileNote
from holdfast.storage.cache import cache_dir
from holdfast.storage.files import Busy, locked, make_directory, sealed, sync_directory, write_bytes
from holdfast.storage.generations import FILE, POINTER, Store
from holdfast.storage.generations import MANIFEST as OF_GENERATION
from holdfast.storage.pointer import generation_path, parsed_pointer

EVERY = 5.0  # seconds between two looks at a URL
PART = 2**20  # bytes that are copied at a time
DIGEST = re.compile(r"[0-9a-f]{64}")
log = logging.getLogger("holdfast.serve")


def is_url(source: str) -> bool:
    """Return whether a source is a URL and no path."""
    return "://" in source


def shown_url(url: str) -> str:
    """Return a URL without a name and password."""
    return re.sub(r"(?<=://)[^/@]*@", "", url)


class Mirror:
    """The copy of one URL, which all processes of this machine share."""

    def __init__(self, url: str, place: Path | None = None) -> None:
        self.shown = shown_url(url)
        fsspec = require("fsspec", "serve")
        try:
            self.files, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:  # its package is missing, or nobody knows the scheme
            raise HoldfastError(f"{self.shown} cannot be opened: {_line(error)}") from error
        self.root = str(root).rstrip("/")
        key = hashlib.sha256(url.rstrip("/").encode()).hexdigest()[:16]
        self.home = (place or cache_dir() / "mirrors") / key
        self.path = self.home / "learner"
        """The directory of the copy."""
        self.arriving = self.home / "arriving"
        """What is not complete yet; used under the lock."""

    def sync(self, patience: float = math.inf) -> bool:
        """Copy what is current at the URL; return whether anything has changed.

        Wait for at most `patience` seconds for another process that copies, then raise `Busy`.
        """
        make_directory(self.home, private=True)
        with locked(self.home, patience):
            self.files.invalidate_cache()
            try:
                make_directory(self.path, private=True)
                shutil.rmtree(self.arriving, ignore_errors=True)  # what a killed process has left
                self.arriving.mkdir(0o700)
                if (pointer := self._read(POINTER, LONGEST_MANIFEST)) is not None:
                    return self._generation(pointer)
                if (manifest := self._read(MANIFEST, LONGEST_MANIFEST)) is not None:
                    return self._artefact(manifest)
            except OSError as error:
                raise HoldfastError(f"cannot write {self.home}: {error.strerror or error}") from error
            finally:
                shutil.rmtree(self.arriving, ignore_errors=True)
        raise HoldfastError(f"{self.shown} holds neither a learner nor an exported artefact; check the URL")

    def follow(self, every: float = EVERY) -> None:
        """Copy what is new, in a thread, until the process ends."""
        threading.Thread(target=self._follow, args=(every,), name="mirror", daemon=True).start()

    def _follow(self, every: float) -> None:
        said = ""
        while True:
            time.sleep(every)
            try:
                self.sync(0)
                said = ""
            except Busy:
                continue  # another process copies it
            except Exception as error:  # a thread that ends would leave an old generation for good
                wrong = str(error) if isinstance(error, HoldfastError) else type(error).__name__
                if wrong != said:
                    log.error("the newest generation cannot be copied: %s", wrong)
                said = wrong

    # ---- a learner ----------------------------------------------------------------------------------------

    def _generation(self, pointer: bytes) -> bool:
        try:
            number, _ = parsed_pointer(pointer)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise HoldfastError(f"{self.shown}/{POINTER} is damaged") from error
        name = generation_path(self.path, number).name
        manifest = self._read(f"{name}/{OF_GENERATION}", LONGEST_MANIFEST)
        if manifest is None:
            raise HoldfastError(
                f"{self.shown} has no {name}/{OF_GENERATION}: it was replaced meanwhile, or is old"
            )
        target = self.path / name
        if _content(target / OF_GENERATION) == manifest and _current(self.path) == number:
            return False
        note = self._note(manifest, name)
        made = self.arriving / name
        made.mkdir(0o700)
        self._copy(f"{self.root}/{name}/{FILE}", made / FILE, note)
        write_bytes(made / OF_GENERATION, manifest, private=True)
        if target.exists():  # of another learner, which was at this URL before
            shutil.rmtree(target)
        os.replace(made, target)
        sync_directory(self.path)
        write_bytes(self.path / POINTER, sealed({"current": number, "generations": [number]}), private=True)
        (self.path / MANIFEST).unlink(missing_ok=True)
        Store(self.path).sweep()
        return True

    def _note(self, manifest: bytes, name: str) -> FileNote:
        """Return size and hash of a generation's tensors. Loading it checks the rest of the manifest."""
        try:
            found: dict[str, Any] = json.loads(manifest)["files"][FILE]
            note = FileNote(found["bytes"], found["sha256"])
            if type(note.bytes) is int and 0 <= note.bytes <= LARGEST and DIGEST.fullmatch(note.sha256):
                return note
        except (ValueError, TypeError, KeyError, RecursionError):
            pass
        raise HoldfastError(f"{self.shown}/{name}/{OF_GENERATION} is damaged")

    # ---- an artefact --------------------------------------------------------------------------------------

    def _artefact(self, manifest: bytes) -> bool:
        if _content(self.path / MANIFEST) == manifest:
            return False
        write_bytes(self.arriving / MANIFEST, manifest)
        try:
            files = Artefact(self.arriving).files  # this refuses names that lead elsewhere
        except HoldfastError as error:
            raise HoldfastError(str(error).replace(str(self.arriving), self.shown)) from error
        make_directory(self.home / SHARED, private=True)
        for name, note in files.items():
            target = (self.home / SHARED if note.shared else self.path) / name
            if not _is(target, note):
                folder = f"{self.root.rpartition('/')[0]}/{SHARED}" if note.shared else self.root
                self._copy(f"{folder}/{name}", self.arriving / name, note)
                os.replace(self.arriving / name, target)
        sync_directory(self.path)
        os.replace(self.arriving / MANIFEST, self.path / MANIFEST)
        sync_directory(self.path)
        (self.path / POINTER).unlink(missing_ok=True)
        for file in self.path.iterdir():
            if NAME.fullmatch(file.name) and file.name not in files:
                file.unlink()
        return True

    # ---- reading ------------------------------------------------------------------------------------------

    def _read(self, name: str, most: int) -> bytes | None:
        """Return the content of a small file; None if there is none."""
        try:
            with self.files.open(f"{self.root}/{name}", "rb") as source:
                found: bytes = source.read(most + 1)
        except FileNotFoundError:
            return None
        except Exception as error:  # every file system has errors of its own
            raise self._unreadable(name, error) from error
        if len(found) > most:
            raise HoldfastError(f"{self.shown}/{name} has more than {most:,} bytes")
        return found

    def _copy(self, source: str, target: Path, note: FileNote) -> None:
        """Copy a file whose size and hash are known."""
        name, size, total = target.name, 0, hashlib.sha256()
        with target.open("xb") as file:
            try:
                with self.files.open(source, "rb") as content:
                    while size <= note.bytes and (part := content.read(PART)):
                        size += len(part)
                        total.update(part)
                        file.write(part)
            except Exception as error:
                raise self._unreadable(name, error) from error
            file.flush()
            os.fsync(file.fileno())
        if size != note.bytes or total.hexdigest() != note.sha256:
            raise HoldfastError(f"{self.shown}: {name} is damaged, or was replaced while it was copied")

    def _unreadable(self, name: str, error: Exception) -> HoldfastError:
        return HoldfastError(f"{self.shown}: {name} cannot be read ({type(error).__name__})")


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def _current(path: Path) -> int | None:
    """Return the current generation of a copy; None if it has none, or a damaged pointer."""
    try:
        return Store(path).current
    except HoldfastError:
        return None


def _is(path: Path, note: FileNote) -> bool:
    """Return whether a file has arrived before."""
    if not path.is_file() or path.stat().st_size != note.bytes:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == note.sha256


def _line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]

"""Generations of a state in a directory, written so that killing the process does not corrupt it.

A generation is a directory with a manifest and a tensor file. It is written under a temporary name and then
renamed; a pointer file, swapped last, names the current one. The manifest holds the JSON sections and the
hash of every file, its own included. Loading checks them and never executes code from a file.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.errors import HoldfastError
from holdfast.storage.files import (
    locked,
    make_directory,
    parse_json,
    read_bytes,
    refuse_links,
    seal,
    sealed,
    sync_directory,
    write_bytes,
)
from holdfast.storage.headers import FORMAT, LONGEST_HEADER, Newer, read_meta, unreadable
from holdfast.storage.pointer import POINTER as POINTER
from holdfast.storage.pointer import generation_path, read_pointer

if TYPE_CHECKING:
    from holdfast.maths.params import Params
    from holdfast.storage.tensors import Tensors

FILE, MANIFEST = "state.safetensors", "manifest.json"
NAMED = re.compile(r"generation-(\d{6})")
LEFTOVER = re.compile(r"generation-\d{6}|\.(generation-\d{6}|CURRENT|README\.md)\.[0-9a-f]{8}\.tmp")
Read = TypeVar("Read")


@dataclass(frozen=True)
class Generation:
    """The content of a generation."""

    number: int
    format: int
    sections: dict[str, Any]
    """Named JSON values."""
    tensors: dict[str, Params] = field(default_factory=dict)
    """Groups of tensors; empty if only the sections were asked for."""


class Store:
    """Generations of a learner's state in a directory.

    The pointer file names the current generation and all that are kept. The next commit or rollback
    removes other generations, such as those left by a killed process.
    """

    def __init__(self, root: Path, keep: int | None = None) -> None:
        self.root = root
        self.keep = keep
        """Number of generations to keep; None keeps all."""

    @property
    def current(self) -> int | None:
        """Number of the current generation; None before the first commit."""
        return self._pointer()[0]

    @property
    def generations(self) -> list[int]:
        """Numbers of all generations that are kept."""
        return self._pointer()[1]

    @property
    def next(self) -> int:
        """The number that the next commit will have."""
        return max(self.generations, default=0) + 1

    def commit(self, tensors: Tensors, sections: Mapping[str, Any]) -> int:
        """Write the next generation, then make it current, then delete those beyond `keep`."""
        from holdfast.storage.tensors import packed  # torch is imported when there are tensors

        parent, known = self._pointer()
        number = max(known, default=0) + 1
        final = self.path(number)
        temporary = self.root / f".{final.name}.{uuid.uuid4().hex[:8]}.tmp"
        data = packed(tensors, None)
        manifest = sealed(
            {
                "format": FORMAT,
                "sections": sections,
                "files": {FILE: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}},
            }
        )
        try:
            make_directory(self.root, private=True)
            temporary.mkdir(0o700)
            write_bytes(temporary / FILE, data, private=True)
            write_bytes(temporary / MANIFEST, manifest, private=True)
            if final.exists():  # left by a process that died before it swapped the pointer
                shutil.rmtree(final)
            os.replace(temporary, final)
            sync_directory(self.root)
        except OSError as error:
            raise HoldfastError(f"cannot write state in {self.root}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        # After a rollback the restored generation counts as the newest before this one.
        kept = [*(one for one in known if one != parent), *([] if parent is None else [parent]), number]
        self._point(number, sorted(kept if self.keep is None else kept[-max(self.keep, 1) :]))
        return number

    def rollback(self, number: int) -> None:
        """Make another generation current. All are kept, so that this can be undone.

        This also replaces a lost or damaged pointer.
        """
        try:
            known = self.generations or self.on_disk()
        except HoldfastError:
            known = self.on_disk()
        if number not in known:
            kept = ", ".join(map(str, known)) or "none"
            raise HoldfastError(f"{self.root} has no generation {number}; there are {kept}")
        self._checked(number)  # refuse a damaged one
        self._point(number, known)

    def load(self, number: int | None = None) -> Generation:
        """Return a generation, by default the current one; raise HoldfastError if it is damaged."""
        return self._read(self._whole, number)

    def sections(self, number: int | None = None) -> Generation:
        """Return a generation without its tensors, by default the current one."""
        return self._read(self._light, number)

    def verify(self) -> dict[int, str]:
        """Return what is wrong with each generation that is kept; an empty string if nothing is."""
        found = {}
        for number in self.generations:
            try:
                self._checked(number)
                found[number] = ""
            except HoldfastError as error:
                found[number] = str(error)
        return found

    def _whole(self, number: int) -> Generation:
        from holdfast.storage.tensors import unpacked

        light, data = self._checked(number)
        tensors, _ = unpacked(self.path(number) / FILE, data)
        return Generation(number, light.format, light.sections, tensors)

    def _checked(self, number: int) -> tuple[Generation, bytes]:
        """Return a generation without its tensors, and their file, which is as it was written.

        Only a file of format 1, which has no checksum, is unpacked to see that it can be read.
        """
        light = self._light(number)
        path = self.path(number) / FILE
        if light.format == 1:
            from holdfast.storage.tensors import unpacked  # torch is imported for these only

            data = read_bytes(path)
            unpacked(path, data)
            return light, data
        noted = self._manifest(number)["files"][FILE]
        data = read_bytes(path, noted["bytes"])
        if len(data) != noted["bytes"] or hashlib.sha256(data).hexdigest() != noted["sha256"]:
            raise unreadable(path, "its content has changed since it was written")
        return light, data

    def _light(self, number: int) -> Generation:
        folder = self.path(number)
        if not (folder / MANIFEST).exists() and (folder / FILE).exists():
            sections = read_meta(folder / FILE)
            if not isinstance(sections, dict):
                raise unreadable(folder / FILE, "it holds no sections")
            return Generation(number, 1, sections)
        manifest = self._manifest(number)
        return Generation(number, manifest["format"], manifest["sections"])

    def _manifest(self, number: int) -> dict[str, Any]:
        path = self.path(number) / MANIFEST
        manifest = _unsealed(parse_json(read_bytes(path, LONGEST_HEADER), path), path)
        version = manifest.get("format")
        if isinstance(version, int) and version > FORMAT:
            raise Newer(path, version)
        files = manifest.get("files")
        if (
            version != FORMAT
            or not isinstance(manifest.get("sections"), dict)
            or not isinstance(files, dict)
            or set(files) != {FILE}
            or not isinstance(files[FILE], dict)
            or set(files[FILE]) != {"bytes", "sha256"}
            or type(files[FILE]["bytes"]) is not int
        ):
            raise unreadable(path, "it is not a manifest of this version")
        return manifest

    def _read(self, read: Callable[[int], Read], number: int | None) -> Read:
        refuse_links(self.root)
        while True:
            wanted = self.current if number is None else number
            if wanted is None:
                raise HoldfastError(
                    f"{self.root} holds no Holdfast state; check the path, or learn something there"
                )
            if number is not None and number not in self.generations:
                kept = ", ".join(map(str, self.generations)) or "none"
                raise HoldfastError(f"{self.root} has no generation {number}; there are {kept}")
            try:
                return read(wanted)
            except Newer:
                raise
            except HoldfastError as error:
                if number is None and wanted != self.current:
                    continue  # meanwhile a writer has committed and deleted the previous one
                raise HoldfastError(
                    f"generation {wanted} is damaged: {error}{self._way_out(wanted)}"
                ) from error

    def _way_out(self, damaged: int) -> str:
        """Return the advice to go back to the newest whole generation before a damaged one, or nothing."""
        others = [number for number, wrong in self.verify().items() if not wrong and number != damaged]
        best = max((number for number in others if number < damaged), default=max(others, default=None))
        return "" if best is None else f"; or go back: holdfast rollback {self.root} {best}"

    def path(self, number: int) -> Path:
        """Return the directory of a generation."""
        return generation_path(self.root, number)

    def on_disk(self) -> list[int]:
        """Return the numbers of all generations in the directory, whatever the pointer says."""
        found = (NAMED.fullmatch(path.name) for path in self.root.iterdir()) if self.root.is_dir() else ()
        return sorted(int(name[1]) for name in found if name)

    def _pointer(self) -> tuple[int | None, list[int]]:
        refuse_links(self.root)
        pointer = self.root / POINTER
        try:
            return read_pointer(self.root)
        except FileNotFoundError:
            return None, []
        except OSError as error:
            raise HoldfastError(f"{self.root} cannot be read as a state: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise HoldfastError(f"{pointer} is damaged{self.advice()}") from error

    def advice(self) -> str:
        """Return how to replace a pointer that is lost or damaged."""
        numbers = self.on_disk()
        return (
            f"; make the last generation current: holdfast rollback {self.root} {numbers[-1]}"
            if numbers
            else ""
        )

    def _point(self, number: int, generations: list[int]) -> None:
        pointer = {"current": number, "generations": generations}
        write_bytes(self.root / POINTER, sealed(pointer), private=True)
        self.sweep()

    def sweep(self) -> None:
        """Delete what killed processes have left: temporary files, generations that are not kept."""
        if self.current is None:
            return
        kept = {self.path(one).name for one in self.generations}
        for path in self.root.iterdir():
            if LEFTOVER.fullmatch(path.name) and path.is_file():
                path.unlink(missing_ok=True)
            elif LEFTOVER.fullmatch(path.name) and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def roll_back(path: Path, number: int) -> None:
    """Make another generation current, also where the pointer to the current one is lost or damaged."""
    refuse_links(path)
    store = Store(path)
    if not store.on_disk():
        raise HoldfastError(f"{path} holds no Holdfast state; check the path")
    with locked(path):
        store.rollback(number)


def _unsealed(value: Any, path: Path) -> dict[str, Any]:
    """Return sealed JSON; raise HoldfastError if any of it has changed."""
    if not isinstance(value, dict) or value.get("sha256") != seal(value):
        raise unreadable(path, "its content has changed since it was written")
    return value

"""State on disk: safetensors and JSON, written so that killing the process does not corrupt it.

A generation is a directory that is written under a temporary name and then renamed; a pointer file, swapped
last, names the current one. Loading never executes code from a file.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from holdfast.errors import HoldfastError
from holdfast.maths.params import Params
from holdfast.storage.files import refuse_links, sync_directory, uninterrupted, write_bytes

FORMAT = 1
FILE = "state.safetensors"
LEFTOVER = re.compile(r"generation-\d{6}|\.(generation-\d{6}|CURRENT|README\.md)\.[0-9a-f]{8}\.tmp")
Read = TypeVar("Read")
Tensors = Mapping[str, Params]  # groups of tensors: "weights", "alpha", ...


def write_tensors(path: Path, tensors: Tensors, meta: Any) -> None:
    """Write groups of tensors and their JSON to one safetensors file."""
    flat = {
        f"{group}/{name}": t.contiguous() for group, params in tensors.items() for name, t in params.items()
    }
    header = {"holdfast": json.dumps({"format": FORMAT, "groups": list(tensors), "meta": meta})}
    write_bytes(path, save(flat, metadata=header))


def read_meta(path: Path) -> Any:
    """Return the JSON of a tensor file without reading the tensors."""
    with uninterrupted():
        return _open(path)[0]


def read_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Params], Any]:
    """Return what `write_tensors` wrote."""
    with uninterrupted():
        meta, groups, flat = _open(path, whole=True)
    tensors: dict[str, Params] = {group: {} for group in groups}
    for name, tensor in flat.items():
        group, _, rest = name.partition("/")
        tensors[group][rest] = tensor.to(device)
    return tensors, meta


def _open(path: Path, *, whole: bool = False) -> tuple[Any, list[str], Params]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["holdfast"])
            if header["format"] > FORMAT:
                raise HoldfastError(
                    f"{path} was written by a newer Holdfast (format {header['format']}); upgrade Holdfast"
                )
            flat = {name: file.get_tensor(name) for name in file.offset_keys()} if whole else {}
        return header["meta"], header["groups"], flat
    except (OSError, SafetensorError, RuntimeError, KeyError, TypeError, ValueError) as error:
        raise HoldfastError(
            f"{path} is not a readable Holdfast state ({error}); restore it or start again"
        ) from error


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

    def commit(self, tensors: Tensors, meta: Any) -> int:
        """Write the next generation, then make it current, then delete those beyond `keep`."""
        parent, known = self._pointer()
        number = max(known, default=0) + 1
        final = self.path(number)
        temporary = self.root / f".{final.name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            temporary.mkdir(parents=True)
            write_tensors(temporary / FILE, tensors, meta)
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
        """Make another generation current. All are kept, so that this can be undone."""
        if number not in self.generations:
            kept = ", ".join(map(str, self.generations)) or "none"
            raise HoldfastError(f"{self.root} has no generation {number}; there are {kept}")
        read_meta(self.path(number) / FILE)  # refuse one whose header cannot be read
        self._point(number, self.generations)

    def load(self, number: int | None = None) -> tuple[dict[str, Params], Any]:
        """Return the tensors and the JSON of a generation, by default the current one."""
        return self._read(read_tensors, number)[1]

    def load_numbered(self) -> tuple[int, tuple[dict[str, Params], Any]]:
        """Return the number of the current generation with its tensors and JSON."""
        return self._read(read_tensors, None)

    def meta(self, number: int | None = None) -> Any:
        """Return only the JSON of a generation, by default the current one."""
        return self._read(read_meta, number)[1]

    def _read(self, read: Callable[[Path], Read], number: int | None) -> tuple[int, Read]:
        refuse_links(self.root)
        while True:
            wanted = self.current if number is None else number
            if wanted is None:
                raise HoldfastError(
                    f"{self.root} holds no Holdfast state; check the path, or learn something there"
                )
            try:
                return wanted, read(self.path(wanted) / FILE)
            except HoldfastError as error:
                if number is None and wanted != self.current:
                    continue  # meanwhile a writer has committed and deleted the previous one
                others = [one for one in self.generations if one != wanted]
                back = f"; or go back: holdfast rollback {self.root} {others[-1]}" if others else ""
                raise HoldfastError(f"{error}{back}") from error

    def path(self, number: int) -> Path:
        """Return the directory of a generation."""
        return self.root / f"generation-{number:06d}"

    def _pointer(self) -> tuple[int | None, list[int]]:
        refuse_links(self.root)
        pointer = self.root / "CURRENT"
        try:
            found = json.loads(pointer.read_text())
            return int(found["current"]), [int(number) for number in found["generations"]]
        except FileNotFoundError:
            return None, []
        except OSError as error:
            raise HoldfastError(f"{self.root} cannot be read as a state: {error.strerror}") from error
        except (ValueError, TypeError, KeyError, OverflowError) as error:
            raise HoldfastError(
                f'{pointer} is damaged; write {{"current": N, "generations": [N]}} there, N the last good one'
            ) from error

    def _point(self, number: int, generations: list[int]) -> None:
        pointer = {"current": number, "generations": generations}
        write_bytes(self.root / "CURRENT", f"{json.dumps(pointer)}\n".encode())
        kept = {self.path(one).name for one in generations}
        for path in self.root.iterdir():
            if LEFTOVER.fullmatch(path.name) and path.is_file():
                path.unlink(missing_ok=True)
            elif LEFTOVER.fullmatch(path.name) and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)

"""State on disk: safetensors and JSON, written so that a killed process never corrupts anything.

A generation is a directory made beside its place and renamed into it; a pointer file, swapped last, says
which one is current. Nothing here can run code on loading.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from holdfast.errors import HoldfastError
from holdfast.files import sync_directory, write_bytes
from holdfast.params import Params

FORMAT = 1
Tensors = Mapping[str, Params]  # groups of tensors: "weights", "importance", ...


def write_tensors(path: Path, tensors: Tensors, meta: Any) -> None:
    """Groups of tensors and their JSON in one safetensors file."""
    flat = {
        f"{group}/{name}": t.contiguous() for group, params in tensors.items() for name, t in params.items()
    }
    header = {"holdfast": json.dumps({"format": FORMAT, "groups": list(tensors), "meta": meta})}
    write_bytes(path, save(flat, metadata=header))


def read_meta(path: Path) -> Any:
    """The JSON of a tensor file, without reading the tensors."""
    return _open(path)[0]


def read_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Params], Any]:
    """What `write_tensors` wrote."""
    meta, groups, flat = _open(path)
    tensors: dict[str, Params] = {group: {} for group in groups}
    for name, tensor in flat().items():
        group, _, rest = name.partition("/")
        tensors[group][rest] = tensor.to(device)
    return tensors, meta


def _open(path: Path) -> tuple[Any, list[str], Callable[[], Params]]:
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads(file.metadata()["holdfast"])
            if header["format"] > FORMAT:
                raise HoldfastError(
                    f"{path} was written by a newer Holdfast (format {header['format']}); upgrade"
                )

        def tensors() -> Params:
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.offset_keys()}

        return header["meta"], header["groups"], tensors
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise HoldfastError(
            f"{path} is not a readable Holdfast state ({error}); restore it or start anew"
        ) from error


class Store:
    """Generations of a learner's state in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def current(self) -> int | None:
        """The committed generation, None before the first."""
        pointer = self.root / "CURRENT"
        try:
            return int(pointer.read_text()) if pointer.exists() else None
        except ValueError as error:
            raise HoldfastError(
                f"{pointer} is damaged; write the number of the last good generation in it"
            ) from error

    def commit(self, tensors: Tensors, meta: Any) -> int:
        """Write the next generation and make it current, in this order."""
        number = (self.current or 0) + 1
        final = self._path(number)
        temporary = self.root / f".{final.name}.{uuid.uuid4().hex[:8]}.tmp"
        try:
            temporary.mkdir(parents=True)
            write_tensors(temporary / "state.safetensors", tensors, meta)
            if final.exists():  # left by a process that died before it swapped the pointer
                shutil.rmtree(final)
            os.replace(temporary, final)
            sync_directory(self.root)
        except OSError as error:
            raise HoldfastError(f"cannot write state in {self.root}: {error.strerror or error}") from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        write_bytes(self.root / "CURRENT", f"{number}\n".encode())
        return number

    def load(self, number: int | None = None) -> tuple[dict[str, Params], Any]:
        """A generation, by default the current one."""
        number = self.current if number is None else number
        if number is None:
            raise HoldfastError(f"{self.root} holds no Holdfast state")
        return read_tensors(self._path(number) / "state.safetensors")

    def _path(self, number: int) -> Path:
        return self.root / f"generation-{number:06d}"

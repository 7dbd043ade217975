"""Tensor files: safetensors with JSON in the header, checked by a hash when they are read.

Files are read into memory, not mapped: one that changes while it is read must not crash the process.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.maths.params import Params
from holdfast.storage.files import opened, parse_json, write_bytes

FORMAT = 2
LONGEST_HEADER = 32_000_000  # bytes of JSON, which take up to twenty times as much memory
Tensors = Mapping[str, Params]  # groups of tensors: "weights", "alpha", ...


class Newer(HoldfastError):
    """A file has a format that only a later version of Holdfast can read."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(f"{path} was written by a newer Holdfast (format {version}); upgrade Holdfast")


def write_tensors(path: Path, tensors: Tensors, meta: Any, *, private: bool = False) -> None:
    """Write groups of tensors and their JSON to one file; `private` hides it from other users."""
    write_bytes(path, packed(tensors, meta), private=private)


def packed(tensors: Tensors, meta: Any) -> bytes:
    """Return groups of tensors and their JSON as the content of a file."""
    flat = {
        f"{group}/{name}": t.contiguous() for group, params in tensors.items() for name, t in params.items()
    }
    about = {"groups": list(tensors), "meta": json.loads(json.dumps(meta))}
    header = about | {"format": FORMAT, "sha256": hash_of(about, flat)}
    return save(flat, metadata={"holdfast": json.dumps(header)})


def read_meta(path: Path) -> Any:
    """Return the JSON of a tensor file without reading the tensors."""
    try:
        with opened(path) as file:
            start = file.read(8)
            return _header(path, file.read(_length(path, start)))["meta"]
    except OSError as error:
        raise unreadable(path, error.strerror or error) from error


def read_tensors(path: Path, device: torch.device | str = "cpu") -> tuple[dict[str, Params], Any]:
    """Return what `write_tensors` wrote; raise HoldfastError if any of it has changed since."""
    try:
        with opened(path) as file:
            data = file.read()
    except (OSError, MemoryError) as error:
        raise unreadable(path, getattr(error, "strerror", None) or "it does not fit into memory") from error
    return unpacked(path, data, device)


def unpacked(path: Path, data: bytes, device: torch.device | str = "cpu") -> tuple[dict[str, Params], Any]:
    """Return the groups of tensors and the JSON in the content of a file; `path` is named in errors."""
    header = _header(path, data[8 : 8 + _length(path, data[:8])])
    try:
        flat = load(data)
    except (SafetensorError, ValueError, RuntimeError, KeyError, TypeError, MemoryError) as error:
        raise unreadable(path, error or "it does not fit into memory") from error
    about = {"groups": header["groups"], "meta": header["meta"]}
    if header["format"] > 1 and header["sha256"] != hash_of(about, flat):
        raise unreadable(path, "its content has changed since it was written")
    tensors: dict[str, Params] = {group: {} for group in header["groups"]}
    for name, tensor in sorted(flat.items()):  # safetensors returns them in any order
        group, _, rest = name.partition("/")
        if group not in tensors:
            raise unreadable(path, f"the tensor {name!r} belongs to no group")
        tensors[group][rest] = tensor.to(device)
    return tensors, header["meta"]


def unreadable(path: Path, reason: object) -> HoldfastError:
    """Return the error about a damaged file."""
    return HoldfastError(f"{path} is not a readable Holdfast state ({reason}); restore it or start again")


def _length(path: Path, start: bytes) -> int:
    """Return the length of the header from the first eight bytes."""
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > LONGEST_HEADER:
        raise unreadable(path, "it has no header")
    return length


def _header(path: Path, data: bytes) -> dict[str, Any]:
    """Return the checked header: format, groups, meta, sha256."""
    try:
        found = parse_json(json.loads(data)["__metadata__"]["holdfast"].encode(), path)
        version = found["format"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise unreadable(path, f"no Holdfast header: {error}") from error
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise unreadable(path, f"the format {version!r} is no number")
    if version > FORMAT:
        raise Newer(path, version)
    groups = found.get("groups")
    named = isinstance(groups, list) and all(isinstance(group, str) for group in groups)
    if not named or "meta" not in found or (version > 1 and "sha256" not in found):
        raise unreadable(path, "its header is incomplete")
    return dict(found)


def hash_of(*values: Any) -> str:
    """Return a hash of arbitrarily nested tensors and JSON values."""
    total = hashlib.sha256()
    _feed(total, list(values))
    return total.hexdigest()


def _feed(total: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        total.update(f"{value.dtype}{tuple(value.shape)}".encode())
        total.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        total.update(f"{{{len(value)}".encode())
        for name in sorted(value):
            total.update(json.dumps(name).encode())
            _feed(total, value[name])
    elif isinstance(value, list | tuple):
        total.update(f"[{len(value)}".encode())
        for item in value:
            _feed(total, item)
    else:
        total.update(json.dumps(value).encode())

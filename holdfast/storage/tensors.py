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

from holdfast.maths.params import Params
from holdfast.storage.files import opened, write_bytes
from holdfast.storage.headers import FORMAT as FORMAT
from holdfast.storage.headers import header_of, length_of, unreadable
from holdfast.storage.headers import read_meta as read_meta

Tensors = Mapping[str, Params]  # groups of tensors: "weights", "alpha", ...


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
    header = header_of(path, data[8 : 8 + length_of(path, data[:8])])
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

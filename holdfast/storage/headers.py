"""The JSON in the header of a tensor file, which is read without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.storage.files import opened, parse_json

FORMAT = 2
LONGEST_HEADER = 32_000_000  # bytes of JSON, which take up to twenty times as much memory


class Newer(HoldfastError):
    """A file has a format that only a later version of Holdfast can read."""

    def __init__(self, path: Path, version: int) -> None:
        super().__init__(f"{path} was written by a newer Holdfast (format {version}); upgrade Holdfast")


def read_meta(path: Path) -> Any:
    """Return the JSON of a tensor file without reading the tensors."""
    try:
        with opened(path) as file:
            start = file.read(8)
            return header_of(path, file.read(length_of(path, start)))["meta"]
    except OSError as error:
        raise unreadable(path, error.strerror or error) from error


def unreadable(path: Path, reason: object) -> HoldfastError:
    """Return the error about a damaged file."""
    return HoldfastError(f"{path} is not a readable Holdfast state ({reason}); restore it or start again")


def length_of(path: Path, start: bytes) -> int:
    """Return the length of the header from the first eight bytes."""
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > LONGEST_HEADER:
        raise unreadable(path, "it has no header")
    return length


def header_of(path: Path, data: bytes) -> dict[str, Any]:
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

"""The manifest of an exported artefact, and its files, which are checked before they are used.

An artefact is a folder with a manifest and the files it names: ONNX graphs with a tokenizer, or the tensors
of a head and of trained weights. The manifest holds the size and the hash of every file, and a hash of
itself. A file may be kept beside the artefact, in a folder that the artefacts of one encoder share. No path
is absolute, so that the folder can be moved; one that shares files moves together with its neighbours.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from holdfast.data.tasks import check_labels, printable
from holdfast.errors import HoldfastError
from holdfast.fields import built
from holdfast.storage.files import parse_json, read_bytes, seal, sealed, write_bytes

MANIFEST = "manifest.json"
SHARED = ".encoders"
"""Folder beside an artefact with the files that several artefacts use."""
KIND = "holdfast classifier"
VERSION = 1
LONGEST_MANIFEST = 32_000_000
LARGEST = 8_000_000_000
"""Most bytes of all files together."""
LONGEST_TEXT = 100_000
"""Most tokens of a sentence."""
NAME = re.compile(r"[a-z]+(-[0-9a-f]{16}){1,2}\.(onnx|json|safetensors)")
"""Role, for a shared file a hash of what it was made from, a hash of the content."""
DIGEST = re.compile(r"[0-9a-f]{64}")
Precision = Literal["float32", "int8"]


@dataclass(frozen=True)
class FileNote:
    """What the manifest says of a file."""

    bytes: int
    sha256: str
    shared: bool = False
    """Whether it lies in the shared folder beside the artefact."""


@dataclass(frozen=True)
class Thresholds:
    """Thresholds at some shares of known sentences, between which they are interpolated."""

    levels: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    why: str = ""
    """Why there are none."""

    def at(self, level: float, what: str) -> float:
        """Return the threshold at a level; `what` can keep that share of known inputs."""
        if not self.levels:
            raise HoldfastError(self.why or f"this artefact has no thresholds for {what}")
        low, high = self.levels[0], self.levels[-1]
        if not low <= level <= high:
            raise HoldfastError(f"{what} can keep between {low} and {high} of known inputs, not {level}")
        for (left, before), (right, after) in pairwise(zip(self.levels, self.values, strict=True)):
            if level <= right:
                return before + (after - before) * (level - left) / (right - left)
        return self.values[-1]


@dataclass(frozen=True)
class EncoderNote:
    """Which encoder, and how a sentence vector is read from it."""

    name: str | None
    """A name that any machine understands; None for a folder of the user's."""
    weights: str
    tokenizer: str
    config: str
    vector: str
    layers: int
    normalise: bool
    max_length: int
    pad: int
    adapter: str | None = None
    """The kind of the adapters, if they are on."""
    adapt_layers: int | None = None
    """The number of top layers with adapters; None for all."""


@dataclass(frozen=True)
class Manifest:
    """What an artefact is and which files it has."""

    kind: str
    format: int
    holdfast: str | None
    generation: int
    labels: list[str]
    encoder: dict[str, Any]
    reject: dict[str, Any]
    sets: dict[str, Any]
    precision: Precision
    graphs: list[str]
    """ONNX graphs in the order in which they run; empty for an artefact that torch runs."""
    files: dict[str, dict[str, Any]]
    sha256: str = ""


class Artefact:
    """An artefact on disk, its manifest checked."""

    def __init__(self, root: Path) -> None:
        self.root = root
        path = root / MANIFEST
        if path.is_symlink():
            raise HoldfastError(f"{path} is a link; an artefact holds no links: replace it with a copy")
        if not path.is_file():
            raise HoldfastError(f"{root} holds no exported artefact; check the path")
        value = parse_json(read_bytes(path, LONGEST_MANIFEST), path)
        if isinstance(value, dict) and value.get("kind") == KIND:
            version = value.get("format")
            if isinstance(version, int) and version > VERSION:
                raise HoldfastError(f"{root} was exported by a newer Holdfast; upgrade Holdfast")
        if not isinstance(value, dict) or value.get("sha256") != seal(value):
            raise damaged(root, "its manifest has changed since it was written")
        where = f"{path}"
        self.manifest = built(Manifest, value, where)
        self.encoder = built(EncoderNote, self.manifest.encoder, f"{where}, 'encoder'")
        self.reject = _thresholds(self.manifest.reject, f"{where}, 'reject'")
        self.sets = _thresholds(self.manifest.sets, f"{where}, 'sets'")
        self.files = {
            name: built(FileNote, note, f"{where}, {name!r}") for name, note in self.manifest.files.items()
        }
        if wrong := self._wrong():
            raise damaged(root, wrong)

    def _wrong(self) -> str:
        """Return what types alone do not say, or an empty string."""
        manifest, labels = self.manifest, self.manifest.labels
        if manifest.kind != KIND or manifest.format != VERSION:
            return "it is of another kind"
        if not labels or len(set(labels)) != len(labels):
            return "it has no labels, or some repeat"
        try:
            check_labels(labels)
        except HoldfastError as error:
            return str(error)
        if (
            not 1 <= self.encoder.max_length <= LONGEST_TEXT
            or self.encoder.pad < 0
            or manifest.generation < 0
        ):
            return "it has a number that is negative or too large"
        for name, note in self.files.items():
            if not NAME.fullmatch(name) or not DIGEST.fullmatch(note.sha256) or note.bytes < 0:
                return f"its file {printable(name)!r} has an invalid name, size or hash"
        if sum(note.bytes for note in self.files.values()) > LARGEST:
            return f"its files have more than {LARGEST:,} bytes"
        if not set(manifest.graphs) <= set(self.files):
            return "a graph is missing"
        return ""

    @property
    def runs_without_torch(self) -> bool:
        """Whether it holds ONNX graphs."""
        return bool(self.manifest.graphs)

    @property
    def tokenizer(self) -> str:
        """Name of the tokenizer's file."""
        return self.named("tokenizer")

    @property
    def own_bytes(self) -> int:
        """Bytes of the files that are not shared."""
        return sum(note.bytes for note in self.files.values() if not note.shared)

    def named(self, role: str) -> str:
        """Return the name of the file with a role, which its name begins with."""
        for name in self.files:
            if name.startswith(f"{role}-"):
                return name
        raise damaged(self.root, f"it has no {role}")

    def read(self, name: str) -> bytes:
        """Return the content of a file, checked against its size and hash."""
        note = self.files[name]
        folder = self.root.resolve().parent / SHARED if note.shared else self.root
        path = folder / name
        for place in (folder, path) if note.shared else (path,):
            if place.is_symlink():
                raise HoldfastError(f"{place} is a link; an artefact holds no links: replace it with a copy")
        if not path.exists():
            move = f"; move {SHARED} along with the artefact" if note.shared else ""
            raise damaged(self.root, f"{path} is missing{move}")
        data = read_bytes(path, note.bytes)
        if len(data) != note.bytes or hashlib.sha256(data).hexdigest() != note.sha256:
            raise damaged(self.root, f"{name} has changed since it was written")
        return data


def is_artefact(path: Path) -> bool:
    """Return whether a directory looks like an exported artefact. A state has no manifest of its own."""
    return (path / MANIFEST).is_file()


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Write the manifest atomically, with its own hash."""
    value = asdict(manifest)
    value.pop("sha256")
    write_bytes(root / MANIFEST, sealed(value))


def damaged(root: Path, what: str) -> HoldfastError:
    """Return the error about an artefact that cannot be used."""
    return HoldfastError(f"the artefact {root} cannot be used: {what}; export it again")


def _thresholds(value: Any, where: str) -> Thresholds:
    found = built(Thresholds, value, where)
    rising = all(left < right for left, right in pairwise(found.levels))
    if len(found.levels) != len(found.values) or not rising or printable(found.why) != found.why:
        raise HoldfastError(f"{where} is damaged: its levels do not rise, or have no values")
    return found

"""Export a learner as an artefact: what prediction needs, and nothing else."""

from __future__ import annotations

import dataclasses
import hashlib
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.everyday.graphs import CLOSE, encoder_graph, head_graph, joined, lift_graph
from holdfast.everyday.scoring import fixed
from holdfast.heads import Head, calibration, discriminant
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.models import Network
from holdfast.runtime.artefact import (
    KIND,
    MANIFEST,
    NAME,
    SHARED,
    VERSION,
    EncoderNote,
    FileNote,
    Manifest,
    Thresholds,
    is_artefact,
    write_manifest,
)
from holdfast.runtime.decisions import Numbers
from holdfast.runtime.kept import kept_path
from holdfast.runtime.sessions import Graph
from holdfast.storage.files import (
    locked,
    make_directory,
    read_bytes,
    refuse_links,
    sync_directory,
    write_bytes,
)
from holdfast.storage.scratch import Scratch
from holdfast.storage.tensors import hash_of

LEVELS_ASKED = sorted({*calibration.LEVELS, *discriminant.LEVELS})
TRIED = ("", "a", "turn on the lights in the kitchen, please", "Ünïcode — 東京 🙂", "one two three " * 30)
"""Sentences on which an export is compared with the learner, along with the names of its labels."""
MOST_TRIED = 50


@dataclass(frozen=True)
class Exported:
    """What was exported."""

    directory: Path
    generation: int
    labels: int
    bytes: int
    """Size of the artefact without what it shares."""
    shared: int
    """Size of what it shares with its neighbours."""


@dataclass(frozen=True)
class Piece:
    """A file to write: its content, how its name ends, and its name if several artefacts share it."""

    data: bytes
    ending: Literal["onnx", "json", "safetensors"]
    shared: str = ""


def export(
    path: str | Path,
    directory: str | Path | None = None,
    *,
    generation: int | None = None,
    onnx: bool = False,
    int8: bool = False,
    share: bool = False,
    force: bool = False,
    model: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write the current generation of a learner, or the given one, to a new directory, for prediction only.

    With `onnx` the artefact holds one graph and a tokenizer, which `holdfast.runtime.Classifier` runs without
    torch; with `int8` the encoder's weights have 8 bits. Otherwise torch runs it, with the learner's encoder.
    `share` keeps the encoder in a folder beside the directory, for all artefacts there. `force` replaces an
    artefact. The directory appears, or changes, in one step. Without a directory, the artefact is kept with
    its generation, in the learner's own directory, and `holdfast predict` answers from it.
    """
    path, directory = Path(path), None if directory is None else Path(directory)
    if (int8 or share) and not onnx:
        raise HoldfastError(f"{'int8' if int8 else 'share'} is about ONNX graphs; add onnx")
    if directory is None and (share or int8 or not onnx):
        raise HoldfastError(
            "only an exact ONNX export is kept with the learner; name a directory for another"
        )
    if directory is not None:
        _check_place(path, directory, force=force)
    learner = Learner.load(path, generation, model=model)
    if directory is None:
        directory = kept_path(path, learner.generation)
        _check_free(directory, force=force)
    if onnx:
        (progress or Progress()).note(
            "writing the encoder and the head as graphs, and comparing them with torch"
        )
        pieces, graphs = _onnx_pieces(learner, int8=int8, into=directory if share else None)
        _compare(learner, [pieces[role].data for role in graphs], exact=not int8)
    else:
        pieces, graphs = _torch_pieces(learner), []
    notes = {role: _noted(role, piece) for role, piece in pieces.items()}
    names = dict(notes.values())
    manifest = Manifest(
        kind=KIND,
        format=VERSION,
        holdfast=version("holdfast"),
        generation=learner.generation,
        labels=learner.classes_,
        encoder=dataclasses.asdict(_encoder_note(learner)),
        reject=dataclasses.asdict(_thresholds(learner.model.head, "threshold")),
        sets=dataclasses.asdict(_thresholds(learner.model.head, "set_threshold")),
        precision="int8" if int8 else "float32",
        graphs=[notes[role][0] for role in graphs],
        files={name: dataclasses.asdict(note) for name, note in names.items()},
    )
    own = {name: pieces[role].data for role, (name, note) in notes.items() if not note.shared}
    _write(directory, own, manifest)
    sizes = [(note.bytes, note.shared) for note in names.values()]
    return Exported(
        directory,
        learner.generation,
        len(manifest.labels),
        sum(size for size, shared in sizes if not shared),
        sum(size for size, shared in sizes if shared),
    )


# ---- pieces -----------------------------------------------------------------------------------------------


def _onnx_pieces(learner: Learner, *, int8: bool, into: Path | None) -> tuple[dict[str, Piece], list[str]]:
    """Return the tokenizer and the graphs by role, and the roles of the graphs in the order they run.

    With `into`, the directory of the artefact, all but the head is shared: read from beside it, or put there.
    """
    model = learner.model
    words, reading = _tokenizer(model), _reading(learner, int8=int8)
    lift, scoring = fixed(model.head, far=_has_distances(model.head))
    width = model.encoder.config.hidden_size * model.reading.layers
    whole = partial(encoder_graph, model, int8=int8)
    if into is None:
        one = joined(whole(), head_graph(scoring, lift, width, whole=True))
        return {"model": Piece(one, "onnx"), "tokenizer": Piece(words, "json")}, ["model"]
    folder = into.resolve().parent / SHARED
    pieces = {
        "encoder": _kept(folder, "encoder", reading, whole),
        "tokenizer": _kept(folder, "tokenizer", hashlib.sha256(words).hexdigest(), lambda: words),
    }
    if lift is not None:
        key = hash_of(dict(lift.named_buffers()), VERSION)
        pieces["lift"] = _kept(folder, "lift", key, partial(lift_graph, lift))
    pieces["head"] = Piece(head_graph(scoring, lift, width, whole=False), "onnx")
    return pieces, [role for role in ("encoder", "lift", "head") if role in pieces]


def _kept(folder: Path, role: str, source: str, make: Callable[[], bytes]) -> Piece:
    """Return a shared file, made and written if there is no sound one from this source yet."""
    ending: Literal["json", "onnx"] = "json" if role == "tokenizer" else "onnx"
    if folder.is_symlink():
        raise HoldfastError(f"{folder} is a link; replace it with a copy")
    for path in sorted(folder.glob(f"{role}-{source[:16]}-*.{ending}")):
        if path.is_symlink():
            raise HoldfastError(f"{path} is a link; replace it with a copy")
        data = read_bytes(path)
        if path.name == _shared_name(role, source, data, ending):
            return Piece(data, ending, path.name)
    data = make()
    name = _shared_name(role, source, data, ending)
    write_bytes(folder / name, data)
    return Piece(data, ending, name)


def _shared_name(role: str, source: str, data: bytes, ending: str) -> str:
    return f"{role}-{source[:16]}-{hashlib.sha256(data).hexdigest()[:16]}.{ending}"


def _torch_pieces(learner: Learner) -> dict[str, Piece]:
    """Return the head and, if the encoder was trained, what has changed in it."""
    lift, scoring = fixed(learner.model.head, far=_has_distances(learner.model.head))
    tensors = {f"scoring.{name}": tensor for name, tensor in scoring.named_buffers()}
    tensors |= {f"lift.{name}": tensor for name, tensor in lift.named_buffers()} if lift else {}
    pieces = {"head": Piece(save(tensors), "safetensors")}
    if learner.model.adapted:
        pieces["weights"] = Piece(save(trained_weights(learner.model)), "safetensors")
    return pieces


def trained_weights(model: Network) -> dict[str, Tensor]:
    """Return the trainable weights of an encoder, by name."""
    every = P.trainable(model)
    return {name: value.detach() for name, value in every.items() if name.startswith("encoder.")}


def _tokenizer(model: Network) -> bytes:
    """Return the tokenizer in the format of the library `tokenizers`, with the learner's truncation."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        raise HoldfastError(
            f"the tokenizer of this encoder, {type(model.tokenizer).__name__}, has no form that runs without "
            "transformers; export without --onnx"
        )
    own = type(backend).from_str(backend.to_str())
    side = getattr(model.tokenizer, "truncation_side", "right")
    own.enable_truncation(model.max_length, stride=0, strategy="longest_first", direction=side)
    own.no_padding()
    text: str = own.to_str()
    return text.encode()


def _reading(learner: Learner, *, int8: bool) -> str:
    """Return a hash of everything that decides what the graph of the encoder computes."""
    model, origin = learner.model, learner.made_of
    own = trained_weights(model) if model.adapted else {}
    adapter = [learner.settings.adapter, learner.settings.adapt_layers] if model.adapted else None
    releases = [VERSION, torch.__version__, version("onnxruntime"), version("transformers")]
    how = [model.vector, *model.reading, int8, adapter, *releases]
    return hash_of(list(origin.fingerprint), how, own)


def _has_distances(head: Head) -> bool:
    return bool(_thresholds(head, "threshold").levels)


def _thresholds(head: Head, which: str) -> Thresholds:
    """Return the thresholds of a head at all levels it has them for, or why it has none."""
    found: dict[float, float] = {}
    why = ""
    for level in LEVELS_ASKED:
        try:
            value = float(getattr(head, which)(level))
        except HoldfastError as error:
            why = why or str(error)
            continue
        if math.isfinite(value):
            found[level] = value
    return Thresholds(list(found), list(found.values()), "" if found else why)


def _encoder_note(learner: Learner) -> EncoderNote:
    model, origin = learner.model, learner.made_of
    own_folder = os.path.isabs(origin.model)
    return EncoderNote(
        None if own_folder else origin.model,
        *origin.fingerprint,
        vector=model.vector,
        layers=model.reading.layers,
        normalise=model.reading.normalise,
        max_length=model.max_length,
        pad=int(model.tokenizer.pad_token_id or 0),
        adapter=learner.settings.adapter if model.adapted else None,
        adapt_layers=learner.settings.adapt_layers if model.adapted else None,
    )


@torch.no_grad()
def _compare(learner: Learner, graphs: Sequence[bytes], *, exact: bool) -> None:
    """Raise an error unless the graphs give the learner's probabilities on some sentences.

    Rounded graphs only have to give probabilities.
    """
    texts = [*TRIED, *learner.classes_[:MOST_TRIED]]
    expected = learner.probabilities(learner.model.embed(texts)).numpy()
    ready = [Graph(data, 1, arena=False) for data in graphs]
    for row, ids in enumerate(learner.model.tokenize(texts)):
        tokens = np.array([ids], dtype=np.int64)
        values: dict[str, Numbers] = {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}
        for graph in ready:
            values |= graph.run(values)
        apart = np.abs(values["probabilities"][0] - expected[row]).max()
        if not apart <= (CLOSE if exact else 1.0):
            raise HoldfastError(
                f"the graph differs from the learner by {apart:.2g} in a probability; export without --onnx"
            )


# ---- writing ----------------------------------------------------------------------------------------------


def _noted(role: str, piece: Piece) -> tuple[str, FileNote]:
    """Return the name of a file and what the manifest says of it."""
    digest = hashlib.sha256(piece.data).hexdigest()
    name = piece.shared or f"{role}-{digest[:16]}.{piece.ending}"
    return name, FileNote(len(piece.data), digest, bool(piece.shared))


def _check_place(path: Path, directory: Path, *, force: bool) -> None:
    if directory.is_symlink():
        raise HoldfastError(f"{directory} is a link; name the directory itself")
    if directory.resolve().is_relative_to(path.resolve()):
        raise HoldfastError(f"{directory} lies in the learner's own directory; choose another")
    _check_free(directory, force=force)


def _check_free(directory: Path, *, force: bool) -> None:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not is_artefact(directory):
        raise HoldfastError(f"{directory} exists and is no artefact; choose a new or empty directory")
    if not force:
        raise HoldfastError(f"{directory} holds an artefact already; --force replaces it")
    refuse_links(directory)


def _write(directory: Path, files: Mapping[str, bytes], manifest: Manifest) -> None:
    """Write an artefact beside its place, then move it there; one that exists changes with its manifest."""
    parent = directory.resolve().parent
    try:
        make_directory(parent)
        with Scratch(parent) as scratch:
            made = scratch / "artefact"
            made.mkdir()
            for name, data in files.items():
                write_bytes(made / name, data)
            write_manifest(made, manifest)
            if not is_artefact(directory):
                os.rename(made, directory)
            else:
                _replace(directory, made, manifest)
        sync_directory(parent)
    except OSError as error:
        raise HoldfastError(f"cannot write {directory}: {error.strerror or error}") from error


def _replace(directory: Path, made: Path, manifest: Manifest) -> None:
    """Replace an artefact: its new files have other names, and the manifest is swapped last."""
    with locked(directory):
        for file in made.iterdir():
            if file.name != MANIFEST:
                os.replace(file, directory / file.name)
        sync_directory(directory)
        os.replace(made / MANIFEST, directory / MANIFEST)
        sync_directory(directory)
        for file in directory.iterdir():
            if NAME.fullmatch(file.name) and file.name not in manifest.files:
                file.unlink()

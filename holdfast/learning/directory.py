"""The directory of a learner: its origin, its lock, its model card."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from holdfast.data.tasks import printable
from holdfast.errors import HoldfastError
from holdfast.heads import Head
from holdfast.learning.sections import Fingerprint, Origin
from holdfast.models import Network
from holdfast.models.adapters import Adapter
from holdfast.models.sources import is_own
from holdfast.settings import preset
from holdfast.storage.files import locked, make_directory, refuse_links
from holdfast.storage.generations import NAMED, POINTER, Store

OURS = re.compile(r"\.lock|\.trials|\..*\.tmp|generation-000001")  # files that a killed first lesson leaves
PASSING = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")  # no part of a model's identity
# For training on two CPU cores, with all of the data.
EVERYDAY = dataclasses.replace(preset("small"), train_per_class=None, valid_per_class=None)


def named(model: str) -> str:
    """Return the name of an encoder in a form that is valid in any working directory."""
    return str(Path(model).resolve()) if is_own(model) else model


def check_new(path: Path, *, new: bool = True) -> None:
    """Refuse a directory without a learner that has lost its pointer or, with `new`, holds other files."""
    refuse_links(path)
    if path.is_dir() and Store(path).current is None:
        foreign = [file.name for file in path.iterdir() if not OURS.fullmatch(file.name)]
        if any(NAMED.fullmatch(name) for name in foreign):
            raise HoldfastError(f"{path} has lost its file {POINTER}{Store(path).advice()}")
        if foreign and new:
            raise HoldfastError(
                f"{path} contains other files, such as {min(foreign)}; choose a new or empty directory"
            )


@contextmanager
def working_in(path: Path, *, new: bool = True) -> Iterator[None]:
    """Lock a directory against other writers; a new one is removed again if it stays empty.

    With `new`, a directory without a learner must hold no other files. Without `new`, it must hold a learner.
    """
    fresh = not path.exists()
    check_new(path, new=new)
    if not new and (fresh or Store(path).current is None):
        raise HoldfastError(f"{path} holds no Holdfast state; check the path")
    try:
        make_directory(path, private=True)
    except OSError as error:
        raise HoldfastError(f"cannot write to {path}: {error.strerror or error}") from error
    with suppress(OSError):  # a directory of somebody else, to which this user may write
        path.chmod(0o700)
    with locked(path):
        try:
            Store(path).sweep()  # what a killed process has left
            yield
        finally:
            if fresh and Store(path).current is None and {file.name for file in path.iterdir()} == {".lock"}:
                shutil.rmtree(path)


def encoder_fingerprint(model: Network) -> Fingerprint:
    """Return hashes of the encoder's own weights (without adapters), tokenizer and configuration."""
    inside = {
        id(weight)
        for module in model.encoder.modules()
        if isinstance(module, Adapter)
        for weight in module.parameters()
    }
    total = hashlib.sha256()
    for name, weight in model.encoder.named_parameters():
        unread = name.startswith("pooler.") and model.vector != "pooler"  # the pooler may be random
        if id(weight) not in inside and not unread:
            total.update(str(tuple(weight.shape)).encode())
            total.update(weight.detach().cpu().contiguous().numpy().data)
    config = {
        name: value for name, value in model.encoder.config.to_diff_dict().items() if name not in PASSING
    }
    return Fingerprint(total.hexdigest()[:16], _hash(_tokenizing(model)), _hash(config))


def _tokenizing(model: Network) -> Any:
    """Return what determines the tokens of a text; truncation and padding are set at each call."""
    backend = getattr(model.tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [type(model.tokenizer).__name__, sorted(model.tokenizer.get_vocab().items())]
    described = json.loads(backend.to_str())
    return {
        name: value for name, value in described.items() if name not in ("truncation", "padding", "version")
    }


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]


def called(origin: Origin) -> str:
    """Return the name of an encoder for people, without the path of its folder."""
    return Path(origin.model).name if Path(origin.model).is_absolute() else origin.model


def card(origin: Origin, head: Head, history: Sequence[dict[str, Any]], labels: Sequence[str]) -> str:
    """Return the model card: origin, usage, lessons, labels, and what is kept of the training text."""
    traces = "trained weights" if head.trained else "sums of sentence vectors"
    lessons = sum(not entry.get("correction") for entry in history)
    lines = [
        "---",
        "library_name: holdfast",
        "pipeline_tag: text-classification",
        f"base_model: {called(origin)}",
        "---",
        "",
        "# A Holdfast learner",
        "",
        f"Method `{origin.method}` on the encoder `{called(origin)}` "
        f"(fingerprint {origin.fingerprint.weights}), {len(labels)} labels, {lessons} lessons, "
        f"Holdfast {version_of('holdfast')}.",
        "",
        "```python",
        "from holdfast import Learner",
        "",
        'learner = Learner.load("<this folder>")',
        'learner.predict(["a sentence"])',
        "```",
        "",
        f"No training text is kept, only numbers, such as {traces}, and the names of labels and lessons.",
        "",
        "## Lessons",
        "",
        "| lesson | sentences | new labels | validation macro-F1 | drift |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {_cell(entry['task'])} | {entry['sentences']} | {entry['new']} | {_percent(entry['score'])} | "
        f"{'-' if entry['drift'] is None else format(entry['drift'], '.3f')} |"
        for entry in history
    ]
    names = ", ".join(f"`{_flat(label)}`" for label in labels)
    return "\n".join([*lines, "", "## Labels", "", names, ""])


def _cell(text: str) -> str:
    """Return a name as a cell of a Markdown table, with its markup escaped."""
    return re.sub(r"([\\|*_\[\]~#])", r"\\\1", escape(_flat(text), quote=False))


def _flat(text: str) -> str:
    return printable(" ".join(text.split())).replace("`", "'")


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{100 * score:.1f}"


def version_of(package: str) -> str | None:
    """Return the installed version of a package; None if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None

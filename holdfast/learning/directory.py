"""The directory of a learner: its origin, its lock, its model card."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from holdfast.data.tasks import printable
from holdfast.errors import HoldfastError
from holdfast.heads import Head
from holdfast.methods import METHODS
from holdfast.models import Classifier
from holdfast.models.adapters import Adapter
from holdfast.models.sources import is_own
from holdfast.settings import Settings, preset
from holdfast.storage.files import locked, refuse_links
from holdfast.storage.generations import Store

KEEP = 5
OURS = re.compile(r"\.lock|\.trials|\..*\.tmp|generation-000001")  # files that a killed first lesson leaves
GENERATION = re.compile(r"generation-(\d{6})")
# For training on two CPU cores, with all of the data.
EVERYDAY = dataclasses.replace(preset("small"), train_per_class=None, valid_per_class=None)


@dataclass
class Origin:
    """What a learner was created from: enough to create it again."""

    method: str
    model: str
    fingerprint: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    keep: int = KEEP


def named(model: str) -> str:
    """Return the name of an encoder in a form that is valid in any working directory."""
    return str(Path(model).resolve()) if is_own(model) else model


@contextmanager
def working_in(path: Path, *, new: bool = True) -> Iterator[None]:
    """Lock a directory against other writers; a new one is removed again if it stays empty.

    With `new`, a directory without a learner must hold no other files. Without `new`, it must hold a learner.
    """
    fresh = not path.exists()
    refuse_links(path)
    if path.is_dir() and Store(path).current is None:
        foreign = [file.name for file in path.iterdir() if not OURS.fullmatch(file.name)]
        if any(GENERATION.fullmatch(name) for name in foreign):
            found = filter(None, (GENERATION.fullmatch(file.name) for file in path.iterdir()))
            numbers = sorted(int(name[1]) for name in found)
            pointer = json.dumps({"current": numbers[-1], "generations": numbers})
            raise HoldfastError(f"{path} has lost its file CURRENT; create it with the content {pointer}")
        if foreign and new:
            raise HoldfastError(
                f"{path} contains other files, such as {min(foreign)}; choose a new or empty directory"
            )
    if not new and (fresh or Store(path).current is None):
        raise HoldfastError(f"{path} holds no Holdfast state; check the path")
    with locked(path):
        try:
            yield
        finally:
            if fresh and Store(path).current is None and {file.name for file in path.iterdir()} == {".lock"}:
                shutil.rmtree(path)


def origin_of(meta: Any, path: Path) -> Origin:
    """Return the origin of a saved learner; raise if a field is missing or unknown to this version."""
    try:
        made, hparams, _ = meta["origin"], meta["learner"]["hparams"], meta["fixed"]
        origin = Origin(**{name: made[name] for name in made if name in _names(Origin)})
    except (KeyError, TypeError) as error:
        raise HoldfastError(f"{path} holds a run's state, not a learner's; use `holdfast learn`") from error
    method = METHODS.get(origin.method)
    for said, owner in ((made, Origin), (origin.settings, Settings), (hparams, method)):
        if owner is not None and (strange := sorted(set(said) - set(_names(owner)))):
            raise HoldfastError(
                f"{path} contains {strange[0]!r}, which Holdfast {version_of('holdfast')} does not know: "
                f"it is damaged, or was made by another version ({meta.get('holdfast')}); use that version"
            )
    return origin


def _names(owner: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(owner)]


def encoder_fingerprint(model: Classifier) -> str:
    """Return a hash of the encoder's own weights, without adapters."""
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
    return total.hexdigest()[:16]


def card(origin: Origin, head: Head, history: Sequence[dict[str, Any]], labels: Sequence[str]) -> str:
    """Return the model card: origin, usage, lessons, labels, and what is kept of the training text."""
    traces = "trained weights" if head.trained else "sums of sentence vectors"
    lines = [
        "---",
        "library_name: holdfast",
        "pipeline_tag: text-classification",
        f"base_model: {origin.model}",
        "---",
        "",
        "# A Holdfast learner",
        "",
        f"Method `{origin.method}` on the encoder `{origin.model}` (fingerprint {origin.fingerprint}), "
        f"{len(labels)} labels, {len(history)} lessons, Holdfast {version_of('holdfast')}.",
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

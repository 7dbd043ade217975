"""A learner in a directory: made, opened, saved, and described by a model card."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.heads import ClosedFormHead
from holdfast.learning.learner import Learner
from holdfast.methods import METHODS
from holdfast.models import build_classifier
from holdfast.models.adapters import Adapter
from holdfast.models.classifier import Classifier
from holdfast.models.sources import is_own
from holdfast.settings import Settings, from_json, preset, to_json, unknown
from holdfast.storage.files import locked, write_bytes
from holdfast.storage.generations import Store

KEEP = 5
OURS = re.compile(r"\.lock|\.trials|\..*\.tmp|generation-000001")  # what a killed first lesson may leave
GENERATION = re.compile(r"generation-(\d{6})")
# Training that two cores can bear, on all the data there is.
EVERYDAY = dataclasses.replace(preset("small"), train_per_class=None, valid_per_class=None)


@dataclass
class Origin:
    """What a learner was made of: enough to make its like again."""

    method: str
    model: str
    fingerprint: str
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    keep: int = KEEP


def create(
    model: str = "minilm",
    method: str = "auto",
    *,
    settings: Settings = EVERYDAY,
    seed: int = 0,
    generations: int = KEEP,
    **hyper_parameters: Any,
) -> Learner:
    """A learner that has learnt nothing yet; `generations` of it are kept on disk."""
    if method not in METHODS:
        raise HoldfastError(unknown(method, list(METHODS), "method"))
    if method == "mtl":
        raise HoldfastError("mtl learns all tasks at once and needs all their data; choose another method")
    if strange := sorted(set(hyper_parameters) - set(METHODS[method].hyper_parameters())):
        known = list(METHODS[method].hyper_parameters())
        raise HoldfastError(unknown(strange[0], known, "hyper-parameter"))
    made = METHODS[method](**hyper_parameters)
    model = named(model)
    classifier = build_classifier(model, settings, seed=seed, method=made)
    origin = Origin(method, model, fingerprint(classifier), dict(_json(settings)), seed, generations)
    learner = Learner(
        classifier, made, settings=settings, seed=seed, fixed=frozenset(hyper_parameters), origin=origin
    )
    return learner


def named(model: str) -> str:
    """The name of an encoder that holds from any working directory."""
    return str(Path(model).resolve()) if is_own(model) else model


def load(path: Path, generation: int | None = None) -> Learner:
    """The learner of a directory, as it was saved last or at a generation."""
    tensors, meta = Store(path).load(generation)
    origin = origin_of(meta, path)
    if origin.method not in METHODS:
        raise HoldfastError(f"{path} was made with the method {origin.method!r}, which this Holdfast has not")
    values = from_json(METHODS[origin.method], meta["learner"]["hparams"])
    fixed = {name: values[name] for name in meta["fixed"]}
    settings = dataclasses.replace(Settings(), **from_json(Settings, origin.settings))
    learner = create(origin.model, origin.method, settings=settings, seed=origin.seed, **fixed)
    found = learner.origin.fingerprint
    if found != origin.fingerprint:
        raise HoldfastError(
            f"{path} was made with another model than the one now called {origin.model!r} "
            f"(fingerprint {origin.fingerprint}, here {found}); put that model back"
        )
    learner.load_state(tensors, meta["learner"])
    learner.origin = origin
    return learner


def save(learner: Learner, path: Path) -> int:
    """Commit what the learner is now as the next generation; its number."""
    with working_in(path):
        return commit(learner, path)


def commit(learner: Learner, path: Path, *, keep: int | None = None) -> int:
    """The same for a caller that holds the lock already, who may want fewer generations to stay this once."""
    if learner.origin is None:
        raise HoldfastError("this learner does not know what it was made of; make it with Learner.create")
    tensors, state = learner.state()
    meta = {
        "holdfast": __version__,
        "origin": dataclasses.asdict(learner.origin),
        "fixed": sorted(learner.fixed),
        "learner": state,
    }
    number = Store(path, keep or learner.origin.keep).commit(tensors, _json(meta))
    # The lesson is learnt: a card that cannot be written is no reason to repeat it.
    with suppress(HoldfastError):
        write_bytes(path / "README.md", card(learner).encode())
    return number


@contextmanager
def working_in(path: Path, *, new: bool = True) -> Iterator[None]:
    """Keep other writers out of a directory; one that nothing was saved in is left as it was found.

    It may be a `new` one, or must hold a learner already.
    """
    fresh = not path.exists()
    if path.is_dir() and Store(path).current is None:
        foreign = [file.name for file in path.iterdir() if not OURS.fullmatch(file.name)]
        if any(GENERATION.fullmatch(name) for name in foreign):
            found = filter(None, (GENERATION.fullmatch(file.name) for file in path.iterdir()))
            numbers = sorted(int(name[1]) for name in found)
            pointer = json.dumps({"current": numbers[-1], "generations": numbers})
            raise HoldfastError(f"{path} has lost its file CURRENT; write {pointer} into it")
        if foreign and new:
            raise HoldfastError(
                f"{path} holds other things, such as {min(foreign)}; choose a new or an empty directory"
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
    """What a saved learner was made of, if it says so in words that this version knows."""
    try:
        made, hparams, _ = meta["origin"], meta["learner"]["hparams"], meta["fixed"]
        origin = Origin(**{name: made[name] for name in made if name in _names(Origin)})
    except (KeyError, TypeError) as error:
        raise HoldfastError(f"{path} is a run's own state, not a learner's; use `holdfast learn`") from error
    method = METHODS.get(origin.method)
    for said, owner in ((made, Origin), (origin.settings, Settings), (hparams, method)):
        if owner is not None and (strange := sorted(set(said) - set(_names(owner)))):
            raise HoldfastError(
                f"{path} says {strange[0]!r}, which this Holdfast ({__version__}) does not know: damaged, "
                f"or made by another version ({meta.get('holdfast')}); use that one"
            )
    return origin


def _names(owner: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(owner)]


def fingerprint(model: Classifier) -> str:
    """A hash of the encoder's own weights as they come, adapters left out."""
    inside = {
        id(weight)
        for module in model.encoder.modules()
        if isinstance(module, Adapter)
        for weight in module.parameters()
    }
    total = hashlib.sha256()
    for name, weight in model.encoder.named_parameters():
        unread = name.startswith("pooler.") and model.vector != "pooler"  # random where a checkpoint has none
        if id(weight) not in inside and not unread:
            total.update(str(tuple(weight.shape)).encode())
            total.update(weight.detach().cpu().contiguous().numpy().data)
    return total.hexdigest()[:16]


def card(learner: Learner) -> str:
    """The model card: what it knows, from what it was made, how to use it and what it keeps."""
    origin, head = learner.origin, learner.model.head
    traces = "sums per label" if isinstance(head, ClosedFormHead) else "trained weights"
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
        f"{len(learner.classes_)} labels, {learner.tasks_seen} lessons, Holdfast {__version__}.",
        "",
        "```python",
        "from holdfast import Learner",
        "",
        'learner = Learner.load("<this folder>")',
        'learner.predict(["a sentence"])',
        "```",
        "",
        f"No training text is kept: what remains of it are {traces} and the names of the labels.",
        "",
        "## Lessons",
        "",
        "| lesson | sentences | new labels | validation macro-F1 | drift |",
        "|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {_cell(entry['task'])} | {entry['sentences']} | {entry['new']} | {_percent(entry['score'])} | "
        f"{'-' if entry['drift'] is None else format(entry['drift'], '.3f')} |"
        for entry in learner.history
    ]
    labels = ", ".join(f"`{_cell(label)}`" for label in learner.classes_)
    return "\n".join([*lines, "", "## Labels", "", labels, ""])


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("`", "'").split())


def _percent(score: float | None) -> str:
    return "-" if score is None else f"{100 * score:.1f}"


def _json(value: Any) -> Any:
    return to_json(dataclasses.asdict(value) if dataclasses.is_dataclass(value) else value)  # type: ignore[arg-type]

"""A learner in a directory: made, opened, saved, and described by a model card."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast import __version__
from holdfast.errors import HoldfastError
from holdfast.files import locked, write_bytes
from holdfast.heads import ClosedFormHead
from holdfast.learner import Learner
from holdfast.methods import METHODS
from holdfast.models import build_classifier
from holdfast.models.adapters import Adapter
from holdfast.models.classifier import Classifier
from holdfast.settings import Settings, from_json, preset, to_json, unknown
from holdfast.store import FILE, Store, read_meta

KEEP = 5
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
    keep: int = KEEP,
    **hyper_parameters: Any,
) -> Learner:
    """A learner that has learnt nothing yet."""
    if method not in METHODS:
        raise HoldfastError(unknown(method, list(METHODS), "method"))
    if method == "mtl":
        raise HoldfastError("mtl learns all tasks at once and needs all their data; choose another method")
    made = METHODS[method](**hyper_parameters)
    classifier = build_classifier(model, settings, seed=seed, method=made)
    origin = Origin(method, model, fingerprint(classifier), dict(_json(settings)), seed, keep)
    learner = Learner(
        classifier, made, settings=settings, seed=seed, fixed=frozenset(hyper_parameters), origin=origin
    )
    return learner


def load(path: Path, generation: int | None = None) -> Learner:
    """The learner of a directory, as it was saved last or at a generation."""
    tensors, meta = Store(path).load(generation)
    origin = origin_of(meta, path)
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
    with locked(path):
        return commit(learner, path)


def commit(learner: Learner, path: Path) -> int:
    """The same for a caller that holds the lock already."""
    tensors, state = learner.state()
    meta = {
        "holdfast": __version__,
        "origin": dataclasses.asdict(learner.origin),
        "fixed": sorted(learner.fixed),
        "learner": state,
    }
    number = Store(path, learner.origin.keep).commit(tensors, _json(meta))
    write_bytes(path / "README.md", card(learner).encode())
    return number


@contextmanager
def working_in(path: Path) -> Iterator[None]:
    """Keep other writers out of a directory; one that nothing was saved in is left as it was found."""
    fresh = not path.exists()
    try:
        with locked(path):
            yield
    finally:
        if fresh and Store(path).current is None and path.is_dir():
            for leftover in (path / ".lock",):
                leftover.unlink(missing_ok=True)
            if not any(path.iterdir()):
                path.rmdir()


def origin_of(meta: Any, path: Path) -> Origin:
    """What a saved learner was made of."""
    try:
        return Origin(**meta["origin"])
    except (KeyError, TypeError) as error:
        raise HoldfastError(f"{path} is a run's own state, not a learner's; use `holdfast learn`") from error


def meta_of(path: Path, generation: int | None = None) -> Any:
    """The JSON of a saved learner, without its tensors."""
    store = Store(path)
    number = store.current if generation is None else generation
    if number is None:
        raise HoldfastError(f"{path} holds no Holdfast state; make one with `holdfast learn {path} FILE`")
    return read_meta(store.path(number) / FILE)


def fingerprint(model: Classifier) -> str:
    """A hash of the encoder's own weights as they come, adapters left out."""
    inside = {
        id(weight)
        for module in model.encoder.modules()
        if isinstance(module, Adapter)
        for weight in module.parameters()
    }
    total = hashlib.sha256()
    for weight in model.encoder.parameters():
        if id(weight) not in inside:
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

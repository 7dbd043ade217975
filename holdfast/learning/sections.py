"""The sections of a saved learner: what its generations hold, and how it is checked before it is used.

JSON sections: `encoder` (which encoder, and hashes of it), `learner` (method, settings, labels), `history`
(one entry per lesson) and `secret` (the key of the lesson ids). Tensor sections: `weights`, `head.<kind>`
(the statistics of a computed head), `calibration` (what validation sentences have decided) and
`method.<name>` (what the method keeps). A new head or feature adds a section; an unknown one is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import os
import re
import secrets
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch

from holdfast.errors import HoldfastError
from holdfast.fields import built, check, check_json, fields_of, from_json, to_json
from holdfast.maths.params import Params
from holdfast.methods import METHODS
from holdfast.settings import Settings
from holdfast.storage.generations import Generation

CALIBRATION = ("heat", "evidence", "chosen", "calibration", "offsets", "marks")
"""Statistics of heads that validation sentences have decided."""
JSON_SECTIONS = ("encoder", "learner", "history", "secret")
HEX = re.compile(r"(?:[0-9a-f]{2}){1,64}")
KEEP = 5
LONGEST_PATH = 1000
USUAL_SECONDS, SENTENCES_A_SECOND = 60.0, 200  # the former budget of auto, and how fast two cores train
MOST_SEED = 2**40  # generators of random numbers are seeded with multiples of it, which must fit into 64 bits


class Fingerprint(NamedTuple):
    """Hashes of an encoder; those that a state of format 1 lacks are empty."""

    weights: str
    tokenizer: str = ""
    config: str = ""

    def differences(self, other: Fingerprint) -> list[str]:
        """Return the names of the parts that differ."""
        pairs = zip(self._fields, self, other, strict=True)
        return [name for name, mine, its in pairs if mine and its and mine != its]


@dataclass
class Origin:
    """What a learner was created from: enough to create it again."""

    method: str
    model: str
    fingerprint: Fingerprint
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    keep: int = KEEP


@dataclass
class EncoderSection:
    """Which encoder, without any absolute path: a name, or a folder relative to the state."""

    name: str | None
    folder: str | None
    weights: str
    tokenizer: str
    config: str
    adapted: bool


@dataclass
class LearnerSection:
    """Method, settings and labels."""

    method: str
    seed: int
    keep: int
    settings: dict[str, Any]
    hparams: dict[str, Any]
    fixed: list[str]
    labels: list[str]
    seen: list[str]
    tasks_seen: int
    numbers: dict[str, float]


@dataclass
class Entry:
    """One lesson in the history. It contains no text."""

    task: str
    sentences: int
    labels: int
    new: int
    score: float | None
    drift: float | None
    chose: str = ""
    why: str = ""
    rho: dict[str, float] = field(default_factory=dict)
    id: str = ""
    """Keyed hash of the rows, by which a lesson is recognised."""
    serial: str = ""
    """Random number, by which a lesson is recognised in a copy that lacks ids; older entries have none."""
    generation: int = 0
    """The generation that the lesson was committed as."""
    correction: str = ""
    """The kind of a correction, of which `task` says what it did; empty for a lesson."""
    gone: list[str] = field(default_factory=list)
    """Keyed hashes of the labels that a correction has renamed, merged or emptied."""


@dataclass
class SecretSection:
    """The key of the lesson ids: without it, an id says nothing about the rows."""

    key: str
    merged: list[str] = field(default_factory=list)
    """Keys of the learners that were merged into this one; left out if there are none."""


@dataclass
class Saved:
    """A saved learner: what it was created from, and its state."""

    origin: Origin
    fixed: list[str]
    key: str
    state: tuple[dict[str, Params], dict[str, Any]]
    """The arguments of `Learner.load_state`."""
    format: int = 2
    of_head: list[str] = field(default_factory=list)
    """Names of the sections of its computed head."""
    keys: list[str] = field(default_factory=list)
    """Keys of the learners that were merged into this one."""


def new_key() -> str:
    """Return a new key for lesson ids."""
    return secrets.token_hex(32)


def serial_of(origin: Origin | None) -> dict[str, str]:
    """Return the serial number of a new entry of the history, which says nothing about the rows.

    Learners of a study have no origin and get none: they repeat bit for bit.
    """
    return {} if origin is None else {"serial": secrets.token_hex(8)}


def written(saved: Saved, path: Path, kind: str) -> tuple[dict[str, Params], dict[str, Any]]:
    """Return the tensor sections and JSON sections of a learner with a head of this kind."""
    origin, (tensors, meta) = saved.origin, saved.state
    own = os.path.isabs(origin.model)
    memory = tensors.get("memory", {})
    sections: dict[str, Any] = {
        "encoder": EncoderSection(
            name=None if own else origin.model,
            folder=_relative(origin.model, path) if own else None,
            **origin.fingerprint._asdict(),
            adapted=bool(memory.get("adapted", True)),
        ),
        "learner": LearnerSection(
            method=origin.method,
            seed=origin.seed,
            keep=origin.keep,
            settings=origin.settings,
            fixed=sorted(saved.fixed),
            **{name: meta[name] for name in ("hparams", "labels", "seen", "tasks_seen", "numbers")},
        ),
        "secret": SecretSection(saved.key, saved.keys),
    }
    groups: dict[str, Params] = {"weights": tensors["weights"]}
    if memory:
        decided = {name for name in memory if name.rpartition(".")[2] in CALIBRATION}
        groups[f"head.{kind}"] = {n: t for n, t in memory.items() if n not in {*decided, "adapted"}}
        groups["calibration"] = {name: memory[name] for name in decided}
    groups |= {f"method.{n}": group for n, group in tensors.items() if n not in ("weights", "memory")}
    plain: dict[str, Any] = {name: asdict(section) for name, section in sections.items()}
    if not saved.keys:
        del plain["secret"]["merged"]
    plain["history"] = meta["history"]
    return groups, dict(to_json(plain))  # type: ignore[arg-type]


def read(generation: Generation, path: Path) -> Saved:
    """Return the learner of a generation; raise HoldfastError unless every field is known and valid."""
    if generation.format == 1:
        return _read_format_1(generation, path)
    sections, tensors = generation.sections, generation.tensors
    if "run" in sections:
        raise HoldfastError(f"{path} holds a run's state, not a learner's; use `holdfast learn`")
    for name in JSON_SECTIONS:
        if name not in sections:
            raise _refused(path, f"lacks the section {name!r}")
    strange = [name for name in sections if name not in JSON_SECTIONS]
    strange += [name for name in tensors if not _known_group(name)]
    if strange:
        raise _refused(path, f"has the unknown section {strange[0]!r}")
    encoder = built(EncoderSection, sections["encoder"], f"{path}, section 'encoder'")
    learner = built(LearnerSection, sections["learner"], f"{path}, section 'learner'")
    secret = built(SecretSection, sections["secret"], f"{path}, section 'secret'")
    if not all(HEX.fullmatch(key) for key in (secret.key, *secret.merged)):
        raise _refused(path, "has a key that is no hexadecimal number")
    named = [one for one in (encoder.name, encoder.folder) if one is not None]
    if len(named) != 1 or len(named[0]) > LONGEST_PATH or not named[0].isprintable():
        raise _refused(path, "names no encoder, or a strange one")
    folder = os.path.normpath(path.resolve() / (encoder.folder or ""))
    model = encoder.name if encoder.name is not None else folder
    origin = Origin(
        learner.method,
        model,
        Fingerprint(encoder.weights, encoder.tokenizer, encoder.config),
        learner.settings,
        learner.seed,
        learner.keep,
    )
    history = sections["history"]
    groups = {"weights": tensors.get("weights", {})}
    of_head = [name for name in tensors if name == "calibration" or name.startswith("head.")]
    if of_head:
        memory = {name: value for section in of_head for name, value in tensors[section].items()}
        groups["memory"] = memory | {"adapted": torch.tensor(encoder.adapted)}
    groups |= {n.removeprefix("method."): t for n, t in tensors.items() if n.startswith("method.")}
    names = ("labels", "seen", "tasks_seen", "hparams", "numbers")
    meta = {name: getattr(learner, name) for name in names} | {"history": history}
    found = Saved(origin, learner.fixed, secret.key, (groups, meta), of_head=of_head, keys=secret.merged)
    return _checked(found, path)


def check_head(saved: Saved, kind: str, path: Path) -> None:
    """Raise HoldfastError if the state has sections of another kind of head."""
    own = (f"head.{kind}", "calibration") if f"head.{kind}" in saved.of_head else ()
    if strange := [name for name in saved.of_head if name not in own]:
        raise _refused(path, f"has the unknown section {strange[0]!r}")


def _read_format_1(generation: Generation, path: Path) -> Saved:
    """Return a learner of format 1, whose file held the origin and the learner in two nested objects."""
    meta = generation.sections
    if "run" in meta or not {"origin", "fixed", "learner"} <= set(meta):
        raise HoldfastError(f"{path} holds a run's state, not a learner's; use `holdfast learn`")
    made = dict(meta["origin"]) if isinstance(meta["origin"], dict) else {}
    made["fingerprint"] = [made.get("fingerprint", "")]
    old = built(_Origin1, made, f"{path}, 'origin'")
    state = built(_Learner1, meta["learner"], f"{path}, 'learner'")
    origin = Origin(old.method, old.model, Fingerprint(*old.fingerprint), old.settings, old.seed, old.keep)
    key = new_key()
    history = []
    for entry in state.history:
        entry = dict(entry) if isinstance(entry, dict) else {}
        if mark := entry.pop("rows", ""):
            entry["id"] = lesson_id(key, str(mark))
        history.append(entry)
    tensors = dict(generation.tensors)
    tensors.setdefault("weights", {})
    fixed = meta["fixed"] if isinstance(meta["fixed"], list) else []
    return _checked(Saved(origin, fixed, key, (tensors, asdict(state) | {"history": history}), 1), path)


@dataclass
class _Origin1:
    method: str
    model: str
    fingerprint: list[str]
    settings: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    keep: int = KEEP


@dataclass
class _Learner1:
    labels: list[str]
    seen: list[str]
    tasks_seen: int
    hparams: dict[str, Any]
    numbers: dict[str, float]
    history: list[Any] = field(default_factory=list)


def _checked(saved: Saved, path: Path) -> Saved:
    """Check what types alone do not say: the method, its settings, labels and history."""
    origin, (tensors, meta) = saved.origin, saved.state
    if origin.method not in METHODS or origin.method == "mtl":
        raise HoldfastError(
            f"{path} was made with the unknown method {origin.method!r}; use the version that made it"
        )
    method = METHODS[origin.method]
    meta["hparams"], saved.fixed = _renamed(origin.method, meta["hparams"], saved.fixed)
    for owner, values in ((Settings, origin.settings), (method, meta["hparams"])):
        if strange := sorted(set(values) - set(fields_of(owner))):
            raise _refused(path, f"has the unknown field {strange[0]!r}")
        try:
            check(owner, from_json(owner, values))
        except HoldfastError as error:
            raise _refused(path, f"has an invalid value: {error}") from error
    labels, seen = meta["labels"], meta["seen"]
    if len(set(labels)) != len(labels) or len(set(seen)) != len(seen) or not set(seen) <= set(labels):
        raise _refused(path, "has labels that repeat or are unknown")
    if not all(isinstance(name, str) and name in meta["hparams"] for name in saved.fixed):
        raise _refused(path, "has fixed hyper-parameters that do not exist")
    if origin.keep < 1 or meta["tasks_seen"] < 0 or not 0 <= origin.seed <= MOST_SEED:
        raise _refused(path, "has a number that is negative or too large")
    if not isinstance(meta["history"], list):
        raise _refused(path, "has a history that is no list")
    for number, entry in enumerate(meta["history"], start=1):
        check_json(Entry, entry, f"{path}, lesson {number}")
    numbers = {name for name, kind in method.state.items() if kind == "number"}
    if set(meta["numbers"]) != numbers:
        raise _refused(path, "lacks numbers of its method, or has others")
    groups = {name for name, kind in method.state.items() if kind != "number"}
    if strange := sorted(set(tensors) - {"weights", "memory"} - groups):
        raise _refused(path, f"has the unknown section 'method.{strange[0]}'")
    if missing := sorted(groups - set(tensors)):
        raise _refused(path, f"lacks the section 'method.{missing[0]}'")
    for group, params in tensors.items():
        for name, value in params.items():
            if value.is_floating_point() and not torch.isfinite(value).all():
                raise _refused(path, f"has values that are not finite in {group}/{name}")
            if group == "alpha" and (value < 0).any():
                raise _refused(path, f"has a negative importance in {group}/{name}")
    return saved


def _renamed(method: str, hparams: dict[str, Any], fixed: list[str]) -> tuple[dict[str, Any], list[str]]:
    """Return the hyper-parameters of an earlier version's state under the names of today.

    `auto` had a budget in seconds, and a head on the last layer as it is, without random features.
    """
    if method != "auto" or "columns" in hparams:
        return hparams, fixed
    kept = {name: value for name, value in hparams.items() if name != "seconds"}
    seconds = hparams.get("seconds")
    own = seconds != USUAL_SECONDS or "seconds" in fixed
    if own and isinstance(seconds, int | float) and math.isfinite(seconds):
        kept["sentences"] = int(min(SENTENCES_A_SECOND * abs(seconds), 2**31))
    as_it_was = {"layers": 1, "normalise": False, "columns": 0}
    return kept | as_it_was, ["sentences" if name == "seconds" else name for name in fixed]


def lesson_id(key: str, mark: str) -> str:
    """Return the id of a lesson: a keyed hash of the mark of its rows."""
    return hmac.new(bytes.fromhex(key), mark.encode(), hashlib.sha256).hexdigest()[:16]


def label_counts(saved: Saved) -> dict[str, int | None]:
    """Return how many sentences of each label a saved learner knows; None where its head does not count."""
    tensors, meta = saved.state
    memory = tensors.get("memory", {})
    counts = memory.get("counts", memory.get("0.counts"))  # klda has several members of equal counts
    if counts is None or len(counts) != len(meta["labels"]):
        return dict.fromkeys(meta["seen"])
    return {label: int(n) for label, n in zip(meta["labels"], counts.tolist(), strict=True) if n > 0}


def _known_group(name: str) -> bool:
    first, _, rest = name.partition(".")
    return name in ("weights", "calibration") or (first in ("head", "method") and bool(rest))


def _relative(model: str, path: Path) -> str:
    """Return an encoder's folder relative to the state, or only its name if they are on different drives."""
    try:
        return Path(os.path.relpath(model, path.resolve())).as_posix()
    except ValueError:
        return Path(model).name


def _refused(path: Path, what: str) -> HoldfastError:
    return HoldfastError(
        f"{path} {what}: it is damaged, or was made by another version; restore it, or use that version"
    )

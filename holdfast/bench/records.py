"""Read and check records: a file may be incomplete, edited, or no record at all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from numbers import Real
from pathlib import Path
from typing import Any

from holdfast.bench.spec import Spec
from holdfast.data import STREAMS
from holdfast.errors import HoldfastError
from holdfast.fields import check, fields_of, from_json
from holdfast.methods import METHODS
from holdfast.models.sources import is_own
from holdfast.settings import Settings
from holdfast.storage.files import read_json

Record = dict[str, Any]
"""The JSON of one run: its spec, the chosen hyper-parameters, the scores and the costs."""
KNOBS = ("lr", "lam", "lam_a", "down", "up")
WRONG = (KeyError, TypeError, AttributeError, ValueError, OverflowError, HoldfastError)
"""Exceptions raised by content that is not a record."""


class NotARecord(HoldfastError):
    """The content is not a valid record."""


def spec_of(content: Any) -> Spec:
    """Return the spec that JSON content holds, or raise `NotARecord`."""
    try:
        spec = Spec.from_json(content)
        kinds: dict[str, Any] = {"set": dict, "seed": int, "threads": int, "order": str | None}
        kinds |= dict.fromkeys(("stream", "preset", "model"), str)
        kinds |= dict.fromkeys(("per_class", "tasks"), int | None)
        if not all(isinstance(getattr(spec, name), kind) for name, kind in kinds.items()):
            raise TypeError("a field has the wrong type")
        for owner in (METHODS[spec.method], Settings):  # settings of another version are not checked
            own = {name: value for name, value in spec.set.items() if name in fields_of(owner)}
            check(owner, from_json(owner, own))
    except WRONG as error:
        raise NotARecord(f"not a run of Holdfast ({error})") from None
    return spec


def check_record(content: Any) -> Spec:
    """Check that a record is complete and consistent; return its spec."""
    try:
        spec = spec_of(content["spec"])
        _check_scores(content)
        if not all(map(_is_number, _numbers(content))):
            raise TypeError("a value is not a finite number")
        if not all(isinstance(text, str) for text in _texts(content)):
            raise TypeError("a name is not text")
    except WRONG as error:
        raise NotARecord(f"not a record of Holdfast ({error})") from None
    return spec


def read_record(path: Path, spec: Spec) -> dict[str, Any]:
    """Read the record of this run, or raise an error."""
    record: dict[str, Any] = read_json(path)
    try:
        found = check_record(record)
        # The user's files may have moved; the digest in the record's name identifies their contents.
        found = found if spec.stream in STREAMS else replace(found, stream=spec.stream)
        found = replace(found, model=spec.model) if is_own(spec.model) else found
        if found != spec:
            raise NotARecord("it belongs to another run")
    except NotARecord as error:
        raise HoldfastError(
            f"{path} is not the record of this run ({error}); delete it to write it again"
        ) from None
    return record


def _check_scores(content: Mapping[str, Any]) -> None:
    """Check that F is a lower triangle, or only a last row if joint, with one lesson per filled row."""
    F, tasks, lessons = content["scores"]["test"], content["tasks"], content["trials"]
    joint = all(cell is None for row in F[:-1] for cell in row)
    for k, row in enumerate(F):
        last = k == len(F) - 1
        expected = [i <= k for i in range(len(F))] if last or not joint else [False] * len(F)
        if [cell is not None for cell in row] != expected:
            raise ValueError(f"row {k + 1} of the score matrix has the wrong entries")
    if not F or len(tasks) != len(F):
        raise ValueError("tasks and scores differ in number")
    if not len(lessons) == len(content["chosen"]) == (1 if joint else len(F)):
        raise ValueError("lessons and scores differ in number")


def _numbers(content: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values that reports use as numbers."""
    yield from (content["seconds"], content["peak_memory"])
    yield from (cell for row in content["scores"]["test"] for cell in row if cell is not None)
    for phase in content["passes"]["chosen"].values():
        yield from (phase["forward"], phase["backward"])
    chosen: list[dict[str, Any]] = content["chosen"]
    trials = [trial for lesson in content["trials"] for trial in lesson["trials"]]
    for one in (*chosen, *trials):
        yield from () if one["score"] is None else (one["score"],)
        yield from one.get("old") or ()
    for choice in (*chosen, *(trial["choice"] for trial in trials)):
        yield from (choice[name] for name in KNOBS if choice.get(name) not in (None, "inf"))
    for one in chosen:
        yield from (one["gold"],) if one.get("gold") is not None else ()
        for tensor in (one.get("spread") or {}).values():
            yield from (*tensor["bins"], tensor["mean"], tensor["tau"])
    for task in content.get("confusion") or ():
        for guesses in task.values():
            yield from guesses.values()


def _texts(content: Mapping[str, Any]) -> Iterator[Any]:
    yield from content["tasks"]
    for lesson in content["trials"]:
        yield lesson["task"]
    for one in content["chosen"]:
        yield from (one["task"], *one.get("flags", ()))
    for own in content.get("predictions") or ():
        yield from own


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)

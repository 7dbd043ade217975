"""Dataclass fields that users set: typed, documented and bounded; conversion from text and JSON."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
import types
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import field
from numbers import Real
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.errors import HoldfastError, did_you_mean

MOST = 1_000_000  # items or characters of a value in a file
Made = TypeVar("Made")
Json = None | bool | int | float | str | list["Json"] | dict[str, "Json"]


BOUNDS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "least": ("of at least", operator.ge),
    "above": ("above", operator.gt),
    "most": ("of at most", operator.le),
    "below": ("below", operator.lt),
}


def setting(
    default: Any,
    help: str,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare a field with its help, for the command line and the docs, and the bounds of its value.

    In a tuple the bounds apply to each number.
    """
    bounds = {"least": least, "above": above, "most": most, "below": below}
    return field(default=default, metadata={"help": help} | bounds)


def parse(owner: type, name: str, text: str) -> Any:
    """Return the value of a dataclass field from the text that a user typed."""
    with suppress(ValueError):
        value = _parse(_hints(owner)[name], text)
        if _fits(owner, name, value):
            return value
    raise HoldfastError(f"--set {name}={text}: expected {_expected(owner, name)}")


def check(owner: type, values: Mapping[str, Any]) -> None:
    """Refuse unknown fields and invalid values."""
    for name, value in values.items():
        if name not in (known := fields_of(owner)):
            raise HoldfastError(unknown(name, sorted(known), "setting"))
        if not _fits(owner, name, value):
            raise HoldfastError(f"{name}={value!r}: expected {_expected(owner, name)}")


def built(owner: Callable[..., Made], values: Any, where: str) -> Made:
    """Return a dataclass from JSON of unknown origin; refuse missing, unknown and invalid fields."""
    check_json(owner, values, where)
    return owner(**values)


def check_json(owner: Callable[..., Any], values: Any, where: str) -> None:
    """Raise HoldfastError unless JSON of unknown origin has the fields of a dataclass, with valid values."""
    hints, required = _schema(owner)
    if not isinstance(values, dict):
        raise HoldfastError(f"{where} is damaged: it is no object but {type(values).__name__}")
    if not values.keys() <= hints.keys():
        strange = min(values.keys() - hints.keys())
        raise HoldfastError(
            f"{where} has the unknown field {strange!r}: it is damaged, or was made by another version"
        )
    if not required <= values.keys():
        raise HoldfastError(f"{where} lacks the field {min(required - values.keys())!r}: it is damaged")
    for name, value in values.items():
        hint = hints[name]
        plain = type(value) is hint and hint is not float
        if not ((plain or _is(hint, value)) and _bounded(value)):
            raise HoldfastError(f"{where} is damaged: {name!r} has an invalid value")


@functools.cache
def _schema(owner: type) -> tuple[dict[str, Any], set[str]]:
    """Return the types of a dataclass's fields, and the names of those without a default."""
    absent, fields = dataclasses.MISSING, dataclasses.fields(owner)
    required = {one.name for one in fields if one.default is absent and one.default_factory is absent}
    return {one.name: _hints(owner)[one.name] for one in fields}, required


def _bounded(value: Any) -> bool:
    """Return whether numbers are finite and fit into 64 bits, and nothing is of absurd size."""
    kind = type(value)
    if kind is int or kind is float:
        return bool(abs(value) < 2**63)
    if kind is str:
        return len(value) <= MOST
    if kind is dict:
        return len(value) <= MOST and all(map(_bounded, (*value, *value.values())))
    return kind is not list or (len(value) <= MOST and all(map(_bounded, value)))


def check_all(holder: Any) -> None:
    """Check all fields of an object."""
    check(type(holder), {name: getattr(holder, name) for name in fields_of(type(holder))})


def _fits(owner: type, name: str, value: Any) -> bool:
    """Return whether a value has the field's type and is within its bounds."""
    bounds = [(BOUNDS[key][1], bound) for key, bound in _bounds(owner, name).items()]
    numbers = value if isinstance(value, tuple | list) else () if value is None else (value,)
    return _is(_hints(owner)[name], value) and all(
        holds(number, bound) for number in numbers for holds, bound in bounds
    )


def _is(hint: Any, value: Any) -> bool:
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return value in options
    if get_origin(hint) in (Union, types.UnionType):
        return any(_is(option, value) for option in options)
    if get_origin(hint) is tuple:
        return (
            isinstance(value, tuple | list) and bool(value) and all(_is(options[0], item) for item in value)
        )
    if hint is Any:
        return True
    if get_origin(hint) is list:
        return isinstance(value, list) and all(_is(options[0], item) for item in value)
    if get_origin(hint) is dict:
        return isinstance(value, dict) and all(_is(options[1], item) for item in value.values())
    if hint is float:
        return isinstance(value, Real) and not isinstance(value, bool) and not math.isnan(value)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _bounds(owner: type, name: str) -> dict[str, float]:
    metadata = fields_of(owner)[name].metadata
    return {key: metadata[key] for key in BOUNDS if metadata[key] is not None}


def _expected(owner: type, name: str) -> str:
    bounds = [f"{BOUNDS[key][0]} {bound:g}" for key, bound in _bounds(owner, name).items()]
    return f"{_describe(_hints(owner)[name])} {', '.join(bounds)}".rstrip()


def parse_setting(item: str, *owners: type) -> tuple[str, Any]:
    """Return name and value from `name=value`; the first of these classes with that field gives its type."""
    name, equals, text = item.partition("=")
    owner = next((one for one in owners if name in fields_of(one)), None)
    if not equals or owner is None:
        known = sorted({field for one in owners for field in fields_of(one)})
        raise HoldfastError(
            f"--set {item}: " + (unknown(name, known, "setting") if equals else "use name=value")
        )
    return name, parse(owner, name, text)


def _parse(hint: Any, text: str) -> Any:
    options = get_args(hint)
    if get_origin(hint) is Literal:
        if text not in options:
            raise ValueError(text)
        return text
    if get_origin(hint) in (Union, types.UnionType):
        if text.lower() == "none" and type(None) in options:
            return None
        return _parse(next(option for option in options if option is not type(None)), text)
    if get_origin(hint) is tuple:
        return tuple(_parse(options[0], part) for part in text.split(",") if part)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError(text)
        return text.lower() == "true"
    value = hint(text)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(text)
    return value


def _describe(hint: Any) -> str:
    options = get_args(hint)
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(options)
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join("none" if option is type(None) else _describe(option) for option in options)
    if get_origin(hint) is tuple:
        return f"{_describe(options[0]).removeprefix('a ')}s separated by commas"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[hint]


def to_json(value: Any) -> Json:
    """Return a value as JSON: infinity becomes the string "inf", NaN becomes null, a tuple a list."""
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf"
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    return value  # type: ignore[no-any-return]


def from_json(owner: type, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a dataclass from their JSON."""
    hints = _hints(owner)
    return {name: value if hints.get(name) is str else _from_json(value) for name, value in values.items()}


@functools.cache
def _hints(owner: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, cached because reading them is slow."""
    return get_type_hints(owner)


def _from_json(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_from_json, value))
    return math.inf if value == "inf" else value


def unknown(word: str, known: list[str], kind: str) -> str:
    """Return the message for an unknown name, with the nearest and all known ones."""
    return f"unknown {kind} {word!r}{did_you_mean(word, known)}; known: {', '.join(known)}"


def fields_of(owner: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the fields that a user may set, by name."""
    return {f.name: f for f in dataclasses.fields(owner) if f.init and "help" in f.metadata}


def check_word(word: str, choices: Any, kind: str) -> None:
    """Refuse a word that is not a choice of a `Literal`."""
    if word not in (known := get_args(choices)):
        raise HoldfastError(unknown(str(word), list(known), kind))

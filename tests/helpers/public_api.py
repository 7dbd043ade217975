"""The public API as text: `python tests/helpers/public_api.py` writes the snapshot that a test compares."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import holdfast

FORWARD = re.compile(r"ForwardRef\('([^']*)'[^)]*\)")  # its repr differs between versions of Python
SNAPSHOT = Path(__file__).parents[1] / "public_api.txt"


def members(thing: Any) -> Iterator[tuple[str, Any]]:
    """Yield the public members that a class or module of ours defines, by name."""
    for name, one in sorted(vars(thing).items()):
        own = not isinstance(thing, ModuleType) or getattr(one, "__module__", None) == thing.__name__
        if not name.startswith("_") and (own or name in getattr(thing, "__all__", ())):
            yield name, one


def snapshot() -> str:
    """Return a line for each public name and for each of its members."""
    lines = []
    for name in sorted(holdfast.__all__):
        thing = getattr(holdfast, name)
        if isinstance(thing, ModuleType):
            lines.append(name)
            lines += [f"  {inner}{_signature(one)}" for inner, one in members(thing) if callable(one)]
        elif isinstance(thing, dict):
            lines += [name, *(f"  {key}" for key in thing)]
        else:
            lines.append(f"{name}{_signature(thing)}")
            if inspect.isclass(thing):
                lines += [f"  {line}" for line in _class_members(thing)]
    return "\n".join([*lines, ""])


def _class_members(cls: type) -> Iterator[str]:
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    for name, one in members(cls):
        if name in fields:
            continue  # the signature of the class has it
        one = one.__func__ if isinstance(one, classmethod | staticmethod) else one
        yield f"{name}{_signature(one)}" if callable(one) else name


def _signature(thing: Any) -> str:
    try:
        return FORWARD.sub(r"'\1'", str(inspect.signature(thing)))
    except (TypeError, ValueError):
        return ""


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot())

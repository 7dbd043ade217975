"""Damaged and hostile states: one change each to the sections or tensors of a sound one."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from typing import Any

import torch

from holdfast.storage.generations import Generation

STRANGE: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1.5, -0.5, 1e308, "", "x", "\x1b[2J", "../../etc", "\ud800"),
    *([], {}, ["x"], {"x": 1}, [[]] * 3, "y" * 100_000),
)
Place = tuple[Any, ...]
Change = tuple[str, dict[str, Any], dict[str, dict[str, torch.Tensor]]]


def places(value: Any, here: Place = ()) -> Iterator[Place]:
    """Yield the path of every value in nested JSON."""
    if here:
        yield here
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*here, key))


def put(value: Any, place: Place, new: Any) -> Any:
    """Return a copy of nested JSON with another value at a place; `...` removes it."""
    changed = copy.deepcopy(value)
    inner = changed
    for key in place[:-1]:
        inner = inner[key]
    if new is ...:
        del inner[place[-1]]
    else:
        inner[place[-1]] = new
    return changed


def in_json(saved: Generation) -> Iterator[Change]:
    """Yield the state with one JSON value changed, removed or added."""
    for place in places(saved.sections):
        for new in (..., *STRANGE):
            yield f"{place} = {new!r:.40}", put(saved.sections, place, new), saved.tensors
        yield (
            f"{place} + zeal",
            put(saved.sections, (*place[:-1], "zeal"), 1)
            if not isinstance(place[-1], int)
            else saved.sections,
            saved.tensors,
        )


def in_tensors(saved: Generation) -> Iterator[Change]:
    """Yield the state with one tensor changed, removed, renamed or added."""
    for group, params in saved.tensors.items():
        yield f"{group} removed", saved.sections, {g: p for g, p in saved.tensors.items() if g != group}
        for name, value in params.items():
            changes: dict[str, Any] = {
                "removed": None,
                "flat": value.reshape(-1),
                "longer": torch.cat([value.reshape(-1), value.reshape(-1)[:1]]),
                "empty": torch.empty(0, dtype=value.dtype),
                "negative": -value.double().abs().to(value.dtype) - 1,
                "whole numbers": value.to(torch.int8),
                "half": value.to(torch.float16),
            }
            if value.is_floating_point():
                changes |= {"nan": value * torch.nan, "inf": value + torch.inf, "huge": value * 0 + 1e30}
            for how, new in changes.items():
                rest = {n: v for n, v in params.items() if n != name}
                changed = rest if new is None else {**rest, name: new}
                yield f"{group}/{name} {how}", saved.sections, {**saved.tensors, group: changed}
        yield f"{group} + zeal", saved.sections, {**saved.tensors, group: {**params, "zeal": torch.ones(1)}}


def some(changes: Iterator[Change], number: int, seed: int = 0) -> list[Change]:
    """Return some of the changes, drawn at random."""
    every = list(changes)
    return random.Random(seed).sample(every, min(number, len(every)))

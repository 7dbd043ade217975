"""A suite is a small TOML file: which methods over which streams, orders and seeds.

Keys at the top hold for every `[[runs]]` block and are overruled by the block's own; `set` tables add up. A
block stands for all combinations of its lists. `variants` are further `set` tables, each of which makes
runs of its own; an empty one is the method as it is, and shares its record with other suites. `grid` is a
table of lists: every combination of their values is such a variant too.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from holdfast.bench.spec import Spec
from holdfast.errors import HoldfastError
from holdfast.fields import unknown

LISTS = {"streams": str, "orders": (int, str), "methods": str, "seeds": int, "variants": dict}
ONES = {
    "preset": str,
    "per_class": int,
    "model": str,
    "threads": int,
    "tasks": int,
    "set": dict,
    "grid": dict,
}
TOP = {"about": str, "view": str, "share": bool, "runs": list}


@dataclass(frozen=True)
class Suite:
    """Runs that belong together, and how a report shows them."""

    name: str
    specs: tuple[Spec, ...]
    about: str = ""
    view: str = "main"
    share: bool = True
    """Whether runs may share trainings; not where seconds are what is measured."""
    narrowed: bool = False
    """Whether parts were replaced or picked: the rest of the suite is still wanted."""

    def manifest(self) -> dict[str, Any]:
        """What a report has to know: which runs there should be."""
        runs = [{"digest": spec.digest(), "spec": spec.to_json()} for spec in self.specs]
        return {"suite": self.name, "about": self.about, "view": self.view, "runs": runs}


def read_suite(
    name: str,
    instead: Mapping[str, Any] | None = None,
    methods: Sequence[str] = (),
    *,
    named: Mapping[str, Path],
    views: Mapping[str, bool],
) -> Suite:
    """A suite by its name, if it is one of `named`, or by the path of its file.

    `instead` replaces keys in every block; of the methods only those in `methods` are kept, if any are given.
    `views` are the ways a report may show it, and whether its runs then share trainings.
    """
    path = named.get(name) or Path(name)
    if not path.is_file():
        known = unknown(name, list(named), "suite")
        raise HoldfastError(f"{known}; or give the path of a TOML file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # bytes or numbers that are none, depths without end
        raise HoldfastError(f"{name}: not a TOML file ({error}); see docs/benchmark.md") from None
    _check(name, content, {**TOP, **LISTS, **ONES})
    blocks = content.pop("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise HoldfastError(f"{name}: runs are tables; begin each with a line [[runs]]")
    view = content.pop("view", "main")
    if view not in views:
        raise HoldfastError(f"{name}: {unknown(view, list(views), 'view')}")
    about, share = content.pop("about", ""), content.pop("share", views[view])
    specs: dict[str, Spec] = {}
    for number, block in enumerate(blocks, start=1):
        where = f"{name}, runs {number}"
        _check(where, block, {**LISTS, **ONES})
        common = {**content, **block, "set": content.get("set", {}) | block.get("set", {})}
        try:
            found = {spec.digest(): spec for spec in _expand(common | dict(instead or {}))}
        except HoldfastError as error:
            raise HoldfastError(f"{where}: {error}") from None
        specs |= found
    for method in methods:
        if method not in (own := {spec.method for spec in specs.values()}):
            raise HoldfastError(f"{name}: {unknown(method, sorted(own), 'method')}")
    specs = {digest: spec for digest, spec in specs.items() if not methods or spec.method in methods}
    if not specs:
        raise HoldfastError(f"{name}: no runs are left; a suite needs methods and streams")
    return Suite(path.stem, tuple(specs.values()), about, view, share, bool(instead or methods))


def _expand(block: dict[str, Any]) -> Iterator[Spec]:
    """All combinations, the orders innermost: runs side by side then seldom wait for the same training."""
    needed = {"streams": [], "methods": [], "seeds": [0], "orders": [None], "variants": [{}]}
    if missing := [key for key, usual in needed.items() if not block.get(key, usual)]:
        raise HoldfastError(f"no {missing[0]} are given")
    rest = {key: block[key] for key in ("preset", "per_class", "model", "threads", "tasks") if key in block}
    combinations = product(
        block["streams"],
        block["methods"],
        [
            variant | point
            for variant in block.get("variants", [{}])
            for point in _grid(block.get("grid", {}))
        ],
        block.get("seeds", [0]),
        block.get("orders", [None]),
    )
    for stream, method, variant, seed, order in combinations:
        settings = [f"{name}={_text(value)}" for name, value in (block["set"] | variant).items()]
        yield Spec.create(
            method=method,
            stream=stream,
            order=None if order is None else str(order),
            seed=seed,
            settings=settings,
            **rest,
        )


def _grid(axes: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Every point of a grid; the one empty point if there are no axes."""
    for name, values in axes.items():
        if not isinstance(values, list):
            raise HoldfastError(f"grid: {name} takes a list")
        if not values:
            raise HoldfastError(f"grid: {name} has no values")
    return [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]


def _text(value: Any) -> str:
    """A TOML value as a user would type it after `--set name=`."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _check(where: str, content: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    for key, value in content.items():
        if key not in keys:
            raise HoldfastError(f"{where}: {unknown(key, list(keys), 'key')}")
        listed: Sequence[Any] = value if isinstance(value, list) else [value]
        if (key in LISTS) != isinstance(value, list) and key != "runs":
            raise HoldfastError(f"{where}: {key} takes {'a list' if key in LISTS else 'one value'}")
        for item in listed if key != "runs" else ():
            if not isinstance(item, keys[key]) or (isinstance(item, bool) and keys[key] is not bool):
                raise HoldfastError(f"{where}: {key} cannot be {item!r}")

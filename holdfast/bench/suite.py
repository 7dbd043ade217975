"""A suite is a small TOML file that names methods, streams, orders and seeds.

Top-level keys apply to every `[[runs]]` block; a block's own keys override them, and `set` tables are
merged. A block stands for all combinations of its lists. `variants` are further `set` tables, one set of
runs each; an empty one changes nothing. `grid` is a table of lists: every combination of their values is
added to every variant.
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
    """A set of runs, and how a report shows them."""

    name: str
    specs: tuple[Spec, ...]
    about: str = ""
    view: str = "main"
    share: bool = True
    """Whether runs reuse each other's training; false if the suite measures time."""
    narrowed: bool = False
    """Whether options replaced or filtered its runs; those of earlier calls are then still wanted."""

    def manifest(self) -> dict[str, Any]:
        """Return the list of wanted runs, for the report."""
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
    """Read a suite by its name in `named`, or by the path of its file.

    `instead` replaces keys in every block; `methods`, if given, keeps only the runs of these methods.
    `views` maps the name of each report view to whether its runs reuse each other's training by default.
    """
    path = named.get(name) or Path(name)
    if not path.is_file():
        if path.suffix == ".toml":
            raise HoldfastError(f"{name} does not exist; give the path of a TOML file")
        known = unknown(name, list(named), "suite")
        raise HoldfastError(f"{known}; or give the path of a TOML file")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # RecursionError: tables nested too deeply
        raise HoldfastError(f"{name}: not a TOML file ({error}); see docs/benchmark.md") from None
    _check(name, content, {**TOP, **LISTS, **ONES})
    blocks = content.pop("runs", [{}])
    if not isinstance(blocks, list) or not all(isinstance(block, dict) for block in blocks):
        raise HoldfastError(f"{name}: runs must be tables; begin each with a line [[runs]]")
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
        raise HoldfastError(f"{name}: no runs; give methods and streams")
    return Suite(path.stem, tuple(specs.values()), about, view, share, bool(instead or methods))


def _expand(block: dict[str, Any]) -> Iterator[Spec]:
    """Yield all combinations; orders vary fastest, so that parallel runs seldom need the same training."""
    needed = {"streams": [], "methods": [], "seeds": [0], "orders": [None], "variants": [{}]}
    if missing := [key for key, usual in needed.items() if not block.get(key, usual)]:
        raise HoldfastError(f"no {missing[0]}; add a list of them")
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
    """Return every point of a grid; one empty point if there are no axes."""
    for name, values in axes.items():
        if not isinstance(values, list):
            raise HoldfastError(f"grid: {name} must be a list")
        if not values:
            raise HoldfastError(f"grid: {name} is empty; give at least one value")
    return [dict(zip(axes, point, strict=True)) for point in product(*axes.values())]


def _text(value: Any) -> str:
    """Return a TOML value as a user would type it after `--set name=`."""
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _check(where: str, content: Mapping[str, Any], keys: Mapping[str, Any]) -> None:
    for key, value in content.items():
        if key not in keys:
            raise HoldfastError(f"{where}: {unknown(key, list(keys), 'key')}")
        listed: Sequence[Any] = value if isinstance(value, list) else [value]
        if (key in LISTS) != isinstance(value, list) and key != "runs":
            kind = "a list" if key in LISTS else "a table" if keys[key] is dict else "a single value"
            raise HoldfastError(f"{where}: {key} must be {kind}")
        for item in listed if key != "runs" else ():
            if not isinstance(item, keys[key]) or (isinstance(item, bool) and keys[key] is not bool):
                raise HoldfastError(f"{where}: {key} cannot be {item!r}")

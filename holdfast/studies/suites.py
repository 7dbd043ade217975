"""The built-in suites and the views of their reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from holdfast.bench.suite import Suite, read_suite

SUITES = {path.stem: path for path in sorted((Path(__file__).parent / "suites").glob("*.toml"))}
VIEWS = {"main": True, "thresholds": True, "tau": True, "strategies": True, "cost": False}
"""Report views, and whether their runs share training results by default; sharing distorts run times."""


def load_suite(name: str, instead: Mapping[str, Any] | None = None, methods: Sequence[str] = ()) -> Suite:
    """Load a suite by its name or the path of its TOML file; see `read_suite`."""
    return read_suite(name, instead, methods, named=SUITES, views=VIEWS)

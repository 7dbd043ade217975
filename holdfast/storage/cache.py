"""The folder of downloads."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """The directory that keeps downloads: `HOLDFAST_CACHE`, else the platform's own place for caches."""
    if chosen := os.environ.get("HOLDFAST_CACHE"):
        return Path(chosen)
    home = Path.home()
    usual = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return (home / "Library" / "Caches" if sys.platform == "darwin" else Path(usual)) / "holdfast"


def data_home(given: str | Path | None = None) -> Path:
    """The directory with the paper's data: the one given, else `HOLDFAST_DATA`, else what was downloaded."""
    return Path(given or os.environ.get("HOLDFAST_DATA") or cache_dir() / "data")

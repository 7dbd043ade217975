"""Directories of downloads and data."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """Return the directory of downloads: `HOLDFAST_CACHE`, else the platform's cache directory."""
    if chosen := os.environ.get("HOLDFAST_CACHE"):
        return Path(chosen)
    home = Path.home()
    usual = os.environ.get("XDG_CACHE_HOME") or home / ".cache"
    return (home / "Library" / "Caches" if sys.platform == "darwin" else Path(usual)) / "holdfast"


def data_home(given: str | Path | None = None) -> Path:
    """Return the directory of the data sets: the given one, else `HOLDFAST_DATA`, else one in the cache."""
    return Path(given or os.environ.get("HOLDFAST_DATA") or cache_dir() / "data")

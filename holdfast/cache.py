"""Where downloads are kept."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_dir() -> Path:
    """The directory that keeps downloads: `HOLDFAST_CACHE`, else the platform's own place for caches."""
    if chosen := os.environ.get("HOLDFAST_CACHE"):
        return Path(chosen)
    home = Path.home()
    native = {
        "darwin": home / "Library" / "Caches",
        "win32": Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local"),
    }
    return native.get(sys.platform, Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")) / "holdfast"

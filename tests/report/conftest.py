"""A folder of records to report on."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.records_by_hand import joint, matrix
from helpers.reports import put, spec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """seq, la and mtl over orders 1 and 2; la has a third."""
    for order, ends in {1: (0.0, 0.3, 0.9), 2: (0.0, 0.0, 0.9)}.items():
        put(tmp_path, spec("seq", order), matrix(*ends))
        put(tmp_path, spec("mtl", order), joint(0.95))
    for order, ends in {1: (0.6, 0.6, 0.6), 2: (0.3, 0.6, 0.9), 3: (0.9, 0.9, 0.9)}.items():
        put(tmp_path, spec("la", order), matrix(*ends))
    return tmp_path

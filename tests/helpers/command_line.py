"""The command line, run in this process or in another."""

from __future__ import annotations

import os
import re
import sys

import pytest
from helpers.paths import ROOT

from holdfast.app import main as cli


def call(*arguments: str) -> int:
    """Run the command line in this process and return its exit code."""
    old, sys.argv = sys.argv, ["holdfast", *arguments]
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    finally:
        sys.argv = old
    return 0


def refused(capsys: pytest.CaptureFixture[str], expected: str, *arguments: str) -> None:
    """Expect one line on stderr and exit code 2."""
    capsys.readouterr()
    assert call(*arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert re.search(expected, lines[0]), lines[0]


def environment() -> dict[str, str]:
    """Return the environment for a process that runs the command line."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

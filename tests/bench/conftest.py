"""Toy streams as files, and the environment of runs in worker processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.runs import write_stream
from helpers.suites import Quiet, suite_of
from helpers.toys import class_stream

from holdfast.bench.bench import bench
from holdfast.bench.engine import Local
from holdfast.bench.suite import Suite


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory):
    """Pretend that holdfast is installed if it is not: records contain the versions of packages."""
    try:
        version("holdfast")
        yield
    except PackageNotFoundError:
        place = tmp_path_factory.mktemp("site")
        about = place / "holdfast-0.1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: holdfast\nVersion: 0.1.0\n")
        sys.path.append(str(place))
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [before, str(ROOT), str(place)]))
        yield
        sys.path.remove(str(place))
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before


@pytest.fixture(autouse=True, scope="module")
def importable() -> Iterator[None]:
    """Let worker processes import the package from this repository."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    yield
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return three class-incremental tasks as CSV files."""
    return write_stream(tmp_path_factory.mktemp("streams") / "toy", class_stream(), 3)


@pytest.fixture(scope="session")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return two class-incremental tasks as CSV files."""
    return write_stream(tmp_path_factory.mktemp("streams") / "toy", class_stream(), 2)


@pytest.fixture(scope="module")
def whole(two_files: Path, one_layer: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Suite, Path]:
    """Return a suite and the directory of its records, made by two workers without interruption."""
    suite, out = suite_of(two_files, one_layer, "mas", "slda"), tmp_path_factory.mktemp("whole")
    assert bench(suite, out, Local(2), Quiet) == []
    return suite, out

"""Toy streams as files, and what runs in processes of their own need to find."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
from conftest import ROOT, class_stream
from helpers.runs import write_stream
from helpers.suites import Quiet, suite_of

from holdfast.bench.bench import bench
from holdfast.bench.engine import Local
from holdfast.bench.suite import Suite


@pytest.fixture(scope="module", autouse=True)
def installed(tmp_path_factory: pytest.TempPathFactory):
    """Records name the versions of packages, this one's too: act as if it were installed where it is not."""
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
    """Workers are processes of their own: they find the package where this one has it."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), before]))
    yield
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three class-incremental tasks as CSV files."""
    return write_stream(tmp_path_factory.mktemp("streams") / "toy", class_stream(), 3)


@pytest.fixture(scope="session")
def two_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two of them."""
    return write_stream(tmp_path_factory.mktemp("streams") / "toy", class_stream(), 2)


@pytest.fixture(scope="module")
def whole(two_files: Path, one_layer: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Suite, Path]:
    """A suite, and its records made in one go by two workers."""
    suite, out = suite_of(two_files, one_layer, "mas", "slda"), tmp_path_factory.mktemp("whole")
    assert bench(suite, out, Local(2), Quiet) == []
    return suite, out

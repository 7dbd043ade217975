"""A learner that was taught twice, a copy that may change, and a service of it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from helpers.everyday import learnt_twice
from helpers.serving import served


@pytest.fixture(scope="package")
def made(one_layer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner of two lessons; nobody may change it."""
    return learnt_twice(tmp_path_factory.mktemp("made"), one_layer)


@pytest.fixture
def mine(made: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    copy = tmp_path / "mine"
    shutil.copytree(made, copy)
    return copy


@pytest.fixture(scope="module")
def client(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service of the learner that nobody may change."""
    with served(made, tmp_path_factory.mktemp("service") / "jobs") as client:
        yield client

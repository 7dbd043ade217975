"""A learner that was taught twice, and a place to work in."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from helpers.everyday import learnt_twice


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of one's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="package")
def made(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner of two lessons; nobody may change it."""
    return learnt_twice(tmp_path_factory.mktemp("made"), tiny_bert)


@pytest.fixture
def mine(made: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    copy = tmp_path / "mine"
    shutil.copytree(made, copy)
    return copy

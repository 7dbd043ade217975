"""Generated requests, from the schema: no 5xx, no traceback, nothing written without the token."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.schema_attacks import Attack

from holdfast.learning.learner import Learner
from holdfast.storage.generations import Store


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


@pytest.mark.slow
def test_generated_requests_without_the_token_write_nothing(mine: Path, tmp_path: Path) -> None:
    before, attack = tree(mine), Attack(mine, tmp_path / "jobs")
    assert attack.run(12) > 250
    assert attack.wrong == []
    assert {status for (route, status) in attack.statuses if "predict" in route} >= {200, 422}
    assert tree(mine) == before
    assert not (tmp_path / "jobs").exists()


@pytest.mark.slow
def test_generated_requests_with_the_token_leave_a_sound_learner(mine: Path, tmp_path: Path) -> None:
    attack = Attack(mine, tmp_path / "jobs", writing=True)
    assert attack.run(12) > 250
    assert attack.wrong == []
    assert {status for (route, status) in attack.statuses if "learn" in route} >= {422}
    assert not any(Store(mine).verify().values())
    assert Learner.load(mine).predict(["music0"])

"""The public names: they are documented by examples that run, and change only on purpose."""

from __future__ import annotations

import doctest
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.public_api import SNAPSHOT, members, snapshot
from helpers.toys import save_tiny_bert

import holdfast

WORDS = ["wake", "me", "at", "six", "nine", "play", "some", "jazz", "a", "song"]
FINDER = doctest.DocTestFinder()


def examples(name: str) -> list[doctest.DocTest]:
    """Return the examples of a public name and of its members."""
    thing = getattr(holdfast, name)
    found = FINDER.find(thing, name)
    if isinstance(thing, ModuleType):
        found += [test for n, one in members(thing) for test in FINDER.find(one, n)]
    unique = {(test.name, test.lineno): test for test in found if test.examples}
    return list(unique.values())


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an encoder and a stream, for examples to run in."""
    place = tmp_path_factory.mktemp("doctests")
    save_tiny_bert(place / "encoder", layers=1, more_words=sorted({*WORDS} - {"a"}))
    shutil.copytree(ROOT / "examples", place / "tasks", ignore=shutil.ignore_patterns("*.py", "*.md"))
    return place


@pytest.fixture
def there(workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(workplace, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


DOCUMENTED = [n for n in holdfast.__all__ if callable(getattr(holdfast, n)) or n == "metrics"]


@pytest.mark.parametrize("name", DOCUMENTED)
def test_the_examples_of_a_public_name_run(name: str, there: None) -> None:
    tests = examples(name)
    assert tests, f"{name} has no example"
    for test in tests:
        said: list[str] = []
        runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
        failed, tried = runner.run(test, out=said.append)
        assert tried
        assert not failed, "".join(said)


def test_the_public_names_have_the_signatures_of_the_snapshot() -> None:
    assert SNAPSHOT.read_text() == snapshot(), (
        "the public API has changed; if that is intended, write it in CHANGELOG.md and run: make docs"
    )


def test_the_snapshot_sees_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    def changed(self: Any, texts: list[str], *, top: int = 3) -> list[str]:
        return texts

    before = snapshot()
    monkeypatch.setattr(holdfast.Learner, "predict", changed)
    assert snapshot() != before

"""Every file-system step of the commands that write a state may be the last, may fail, may be lost."""

from __future__ import annotations

import random
import re
import resource
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from helpers import faults
from helpers.command_line import call
from helpers.everyday import rows_of, table
from helpers.learners import create, taught

from holdfast.errors import HoldfastError
from holdfast.learning.learner import Learner
from holdfast.storage.generations import Store

OURS = re.compile(
    r"CURRENT|README\.md|\.lock|generation-\d{6}|generation-\d{6}/(manifest\.json|state\.safetensors)"
)


@dataclass
class Scene:
    """A state, what is done to it, and what must come of it."""

    start: Path
    """The state before the command; it may not exist."""
    act: Callable[[Path], int]
    done: Callable[[Path], bool]
    """Whether the command has already had its effect."""
    gone: str = ""
    """A label that no file may contain in the end."""


def truth(state: Path) -> Any:
    """Return what a state knows: labels, counts and lessons."""
    learner = Learner.load(state)
    return learner.classes_, learner.model.head.past.counts.tolist(), [e["task"] for e in learner.history]


@pytest.fixture(scope="module")
def scenes(one_layer: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    place = tmp_path_factory.mktemp("scenes") / "place"  # as deep as the copies: the encoder is found
    place.mkdir()
    sources = [table(place / f"week{n}.csv", rows_of(n)) for n in range(3)]
    empty, two = place / "none", place / "two"

    def learn(number: int) -> Callable[[Path], int]:
        options = ("--model", one_layer, "--method", "slda", "--threads", "1")
        return lambda state: call("learn", str(state), sources[number], *options)

    for number in (0, 1):
        assert learn(number)(two) == 0
    label = Learner.load(two).classes_[0]

    def knows(words: int) -> Callable[[Path], bool]:
        return lambda state: len(Learner.load(state).classes_) == words

    def save(state: Path) -> int:
        learner = Learner.load(state, model=one_layer)
        try:
            if len(learner.classes_) < 6:
                learner.learn(*zip(*rows_of(2), strict=True))  # type: ignore[arg-type]
            learner.save(state)
        except HoldfastError as error:
            print(error, file=sys.stderr)
            return 2
        return 0

    def forget(*options: str) -> Callable[[Path], int]:
        command = ("forget-label", str(label), "--model", one_layer)
        return lambda state: call(command[0], str(state), *command[1:], *options)

    other = place / "other"
    assert learn(2)(other) == 0

    def correct(command: str, what: str) -> Callable[[Path], int]:
        return lambda state: call(command, str(state), what, "--model", one_layer)

    return {
        "first lesson": Scene(empty, learn(0), knows(2)),
        "later lesson": Scene(two, learn(2), knows(6)),
        "save": Scene(two, save, knows(6)),
        "rollback": Scene(two, lambda state: call("rollback", str(state), "1"), knows(2)),
        "forget": Scene(two, forget(), knows(3)),
        "purge": Scene(two, forget("--purge"), knows(3), gone=label),
        "remove": Scene(two, correct("remove", sources[1]), knows(2)),
        "merge": Scene(two, correct("merge", str(other)), knows(6)),
    }


NAMES = ["first lesson", "later lesson", "save", "rollback", "forget", "purge", "remove", "merge"]
MOST = [pytest.param(2, id="some"), pytest.param(10_000, marks=pytest.mark.slow, id="all")]


def prepared(scene: Scene, place: Path) -> Path:
    """Return a fresh copy of the state before the command."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    if scene.start.exists():
        shutil.copytree(scene.start, place / "state")
    return place / "state"


def check(scene: Scene, state: Path, before: Any, after: Any, what: str) -> None:
    """The state is whole, old or new; the command, repeated, has its effect once and leaves nothing over."""
    current = Store(state).current
    if current is not None:
        assert truth(state) in (before, after), what
    if current is None or truth(state) != after or not scene.done(state):
        assert scene.act(state) == 0, what
    assert truth(state) == after, what
    assert scene.act(state) in (0, 2), what  # a second time: nothing, or nothing left to forget
    left = sorted(path.relative_to(state).as_posix() for path in state.rglob("*"))
    assert not [name for name in left if not OURS.fullmatch(name)], what
    files = [path for path in state.rglob("*") if path.is_file()]
    assert not [path for path in files if scene.gone and scene.gone.encode() in path.read_bytes()], what
    assert {p.name for p in state.glob("generation-*")} == {
        Store(state).path(number).name for number in Store(state).generations
    }, what


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("name", NAMES)
def test_a_kill_or_an_error_before_any_step(
    name: str, most: int, scenes: dict[str, Scene], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene, place = scenes[name], tmp_path / "place"
    state = prepared(scene, place)
    before = truth(state) if state.exists() else None
    whole = faults.run(lambda: scene.act(state), place)
    assert whole.code == 0, whole.errors
    after, total = truth(state), len(whole.steps)
    assert total > 5
    points = [(how, step) for how in ("kill", *faults.ERRORS) for step in range(total)]
    for how, step in random.Random(name).sample(points, min(most, len(points))):
        what = f"{name}: {how} before step {step}, {whole.steps[step].what} {whole.steps[step].path}"
        state = prepared(scene, place)
        found = faults.run(lambda state=state: scene.act(state), place, fail_at=step, how=how)
        if how == "kill":
            assert found.code == faults.KILLED, what
        else:
            assert found.code in (0, 2), f"{what}: {found.errors}"
            assert found.errors.count("\n") == (1 if found.code else 0), f"{what}: {found.errors}"
        check(scene, state, before, after, what)


@pytest.mark.parametrize("size", [400, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["first lesson", "later lesson", "save", "forget", "purge"])
def test_a_write_that_fails_part_way(
    name: str, size: int, scenes: dict[str, Scene], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A full disk fails in the middle of a file, here at a limit of its size, not when it is opened."""
    scene, place = scenes[name], tmp_path / "place"
    state = prepared(scene, place)
    before = truth(state) if state.exists() else None

    def limited() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
        try:
            return scene.act(state)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    found = faults.run(limited, place)
    assert (found.code, found.errors.count("\n")) == (2, 1), found.errors
    assert (truth(state) if Store(state).current is not None else None) == before
    assert scene.act(state) == 0
    check(scene, state, before, truth(state), f"{name}: files of at most {size} bytes")


@pytest.mark.parametrize("most", MOST)
@pytest.mark.parametrize("name", NAMES)
def test_a_power_failure_after_any_step(
    name: str, most: int, scenes: dict[str, Scene], tmp_path: Path
) -> None:
    """What was not synced is lost, or some of it."""
    scene, place, crashed = scenes[name], tmp_path / "place", tmp_path / "crashed"
    state = prepared(scene, place)
    before = truth(state) if state.exists() else None
    shutil.copytree(place, tmp_path / "copy")
    whole = faults.run(lambda: scene.act(state), place)
    after = truth(state)
    points = [(step, luck) for step in range(len(whole.steps) + 1) for luck in (None, 1, 2)]
    for step, luck in random.Random(name).sample(points, min(most, len(points))):
        shutil.rmtree(crashed, ignore_errors=True)
        rng = None if luck is None else random.Random(f"{luck}/{step}")
        faults.after_crash(tmp_path / "copy", place, whole.steps[:step], crashed, rng)
        shutil.rmtree(place)
        crashed.rename(place)
        check(scene, state, before, after, f"{name}: power failure after step {step}, luck {luck}")


def test_the_harness_notices_a_file_that_is_not_written_atomically(tmp_path: Path) -> None:
    """A test of the test: an action that rewrites a file in place loses it."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "x").write_text("old")
    root = tmp_path / "root"
    shutil.copytree(tmp_path / "copy", root)

    def careless() -> int:
        (root / "x").write_text("new")
        return 0

    steps = faults.run(careless, root).steps
    assert [step.what for step in steps] == ["create"]
    faults.after_crash(tmp_path / "copy", root, steps, tmp_path / "after", random.Random(2))
    faults.after_crash(tmp_path / "copy", root, steps, tmp_path / "lost", random.Random(1))
    assert "" in {(tmp_path / place / "x").read_text() for place in ("after", "lost")}
    assert faults.run(careless, root, fail_at=0).code == faults.KILLED
    assert faults.run(careless, root, fail_at=0, how="ENOSPC").code == 70


def test_a_learner_that_was_never_saved_leaves_nothing(one_layer: str, tmp_path: Path) -> None:
    assert create(one_layer).classes_ == []
    taught(one_layer, tasks=1)
    assert not list(tmp_path.iterdir())

"""Failures around a run: each is reported in one line, and no finished work is lost."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.runs import Killed, Killer, spec, told
from helpers.suites import Quiet, Scripted, suite_of, workers_of
from rich.console import Console

from holdfast.app.display import SuiteDisplay
from holdfast.bench import run
from holdfast.bench.bench import bench
from holdfast.bench.engine import Local
from holdfast.bench.suite import Suite
from holdfast.errors import HoldfastError
from holdfast.events import Progress


class Heard(Progress):
    """Progress that records the messages to the user."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.fixture(scope="module")
def undisturbed(two_files: Path, one_layer: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return told(run(spec(two_files, one_layer, "mas"), tmp_path_factory.mktemp("undisturbed")))


@pytest.mark.parametrize(
    "what",
    [".trial", *(pytest.param(w, marks=pytest.mark.slow) for w in ("generation-", "CURRENT", ".json"))],
)
def test_a_disk_that_is_full_anywhere(
    two_files: Path,
    one_layer: str,
    tmp_path: Path,
    undisturbed: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    what: str,
) -> None:
    """The first rename to a trial, a state, the pointer or the record fails."""
    asked, replace, there = spec(two_files, one_layer, "mas"), os.replace, 0

    def fits(source: Any, target: Any) -> None:
        nonlocal there
        there += what in Path(target).name
        if there == 1 and what in Path(target).name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        replace(source, target)

    monkeypatch.setattr(os, "replace", fits)
    with pytest.raises(HoldfastError, match="No space left") as caught:
        run(asked, tmp_path)
    monkeypatch.undo()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*.json"))
    assert told(run(asked, tmp_path)) == undisturbed


@pytest.mark.slow
def test_a_trial_that_a_disk_has_spoilt_is_made_again(
    two_files: Path, one_layer: str, tmp_path: Path, undisturbed: dict[str, Any]
) -> None:
    asked = spec(two_files, one_layer, "mas")
    with pytest.raises(Killed):
        run(asked, tmp_path, progress=Killer(12))
    trials = list((tmp_path / ".trials").rglob("*.trial"))
    assert trials
    for path in trials:
        path.write_bytes(path.read_bytes()[:-10])
    assert told(run(asked, tmp_path)) == undisturbed


def test_a_run_that_was_killed_counts_what_it_had_done(
    two_files: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, ticks = spec(two_files, one_layer, "mas"), itertools.count(step=1000.0)
    monkeypatch.setattr("holdfast.learning.at_hand.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    with pytest.raises(Killed):
        run(asked, tmp_path, progress=Killer(12))
    monkeypatch.undo()
    done = len(list((tmp_path / ".trials").rglob("*.trial")))
    assert done
    assert 1000 * done < run(asked, tmp_path)["seconds"] < 1000 * (done + 1)


@pytest.mark.parametrize("content", ["[1]", "{}", "half a rec"])
def test_something_else_under_a_record_s_name(
    two_files: Path, one_layer: str, tmp_path: Path, content: str
) -> None:
    asked = spec(two_files, one_layer)
    path = tmp_path / f"{asked.digest()}.json"
    path.write_text(content)
    with pytest.raises(HoldfastError, match="delete it to write it again"):
        run(asked, tmp_path)
    assert path.read_text() == content


def test_a_record_that_was_half_written_is_cleared_away(
    two_files: Path, one_layer: str, tmp_path: Path
) -> None:
    asked = spec(two_files, one_layer)
    run(asked, tmp_path)
    half = tmp_path / f".{asked.digest()}.json.0a1b2c3d.tmp"
    half.write_text("{")
    assert bench(Suite("s", (asked,)), tmp_path, Scripted(), Quiet) == []
    assert not half.exists()


def test_a_misspelt_model_is_said_before_anything_is_run(two_files: Path, tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="did you mean 'minilm'"):
        bench(suite_of(two_files, "minllm", "seq"), tmp_path, Scripted(), Quiet)
    assert not list(tmp_path.iterdir())


def test_lines_that_cannot_be_written_stop_nothing() -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    console = Console(file=Full())
    with pytest.raises(OSError, match="No space left"):
        console.print("a line")
    board = SuiteDisplay(console, 1, 1)
    for _ in range(3):
        board.say("a line")


def test_a_tracker_that_fails_is_told_once(
    two_files: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    asked, heard, logged = spec(two_files, one_layer), Heard(), []

    def log(self: Any, values: Any, **_: Any) -> None:
        logged.append(values)
        raise ConnectionError("nobody answers\nat all")

    monkeypatch.setattr("accelerate.Accelerator.log", log)
    record = run(asked, tmp_path, track="tensorboard", progress=heard)
    assert record["metrics"]["Ov"] > 0
    assert len(logged) == 1
    assert [note for note in heard.notes if "nobody answers" in note] == [
        "tracking failed (nobody answers); the run continues without it"
    ]


def test_a_tracker_that_cannot_end_leaves_a_record(
    two_files: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")
    asked, heard = spec(two_files, one_layer), Heard()

    def refuse(*_: Any) -> None:
        raise ConnectionError("nobody answers")

    monkeypatch.setattr("accelerate.Accelerator.end_training", refuse)
    run(asked, tmp_path, track="tensorboard", progress=heard)
    assert (tmp_path / f"{asked.digest()}.json").exists()
    assert heard.notes[-1] == "the tracker could not be closed (nobody answers)"


def test_a_tracker_that_cannot_begin_is_one_line(
    two_files: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("tensorboard")

    def refuse(*_: Any, **__: Any) -> None:
        raise ConnectionError("nobody answers\nat all")

    monkeypatch.setattr("accelerate.Accelerator.init_trackers", refuse)
    with pytest.raises(HoldfastError, match=r"^--track tensorboard: nobody answers; fix that"):
        run(spec(two_files, one_layer), tmp_path, track="tensorboard")


@pytest.mark.slow
def test_ctrl_c_ends_a_suite_and_its_workers(two_files: Path, one_layer: str, tmp_path: Path) -> None:
    suite = tmp_path / "mine.toml"
    suite.write_text(
        f"streams = [{json.dumps(str(two_files))}]\nmethods = ['la', 'mas']\n"
        f"model = {json.dumps(one_layer)}\nset = {{ epochs = 200, patience = 200 }}\n"
    )
    asked = [sys.executable, "-m", "holdfast", "bench", str(suite), "--out", str(tmp_path / "out")]
    with subprocess.Popen(
        [*asked, "--jobs", "2"],
        cwd=ROOT,
        env=os.environ | {"HOLDFAST_CACHE": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        begun = 0
        for line in process.stdout:
            begun += "task 1/" in line
            if begun == 2:
                break
        assert len(workers_of(tmp_path)) == 2
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.strip().count("\n") == 0
    assert "run the same command again to resume" in errors
    assert not list((tmp_path / "out").glob("[0-9a-f]*[0-9a-f].json"))
    assert not workers_of(tmp_path), "no worker is left"
    # A worker would hold the lock.
    assert bench(suite_of(two_files, one_layer, "slda"), tmp_path / "out", Local(1), Quiet) == []

"""Runs: the record of a run, and runs that are killed."""

from __future__ import annotations

import dataclasses
import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.runs import SETTINGS, Killed, Killer, spec, told

from holdfast.bench import run
from holdfast.bench.run import data_of
from holdfast.data.tasks import Stream
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.maths.metrics import macro_f1

RUN = sys.modules["holdfast.bench.run"]
"""The module, whose name in the package is that of a function."""


@pytest.fixture(scope="module")
def undisturbed(files: Path, one_layer: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the record of a `mas` run that was not interrupted."""
    return run(spec(files, one_layer, "mas"), tmp_path_factory.mktemp("undisturbed"))


def test_the_record(undisturbed, files, one_layer):
    record = undisturbed
    assert set(record) >= {
        *(
            "data",
            "scenario",
            "spec",
            "chosen",
            "trials",
            "scores",
            "metrics",
            "passes",
            "seconds",
            "peak_memory",
        ),
        *("versions", "revision"),
    }
    page = (ROOT / "docs/record-format.md").read_text()
    named = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE)))
    assert set(record) == set(named), "docs/record-format.md"
    assert set(record["spec"]) == {
        *("method", "stream", "order", "seed", "preset", "per_class", "model", "set", "threads")
    }
    assert record["spec"]["method"] == "mas"
    assert record["tasks"] == ["task0", "task1", "task2"]
    assert [entry["task"] for entry in record["chosen"]] == record["tasks"]
    assert all({"lr", "lam", "score"} <= set(entry) for entry in record["chosen"])
    for entry in record["trials"]:
        assert entry["trials"]
        assert all({"choice", "score", "epochs", "best_epoch"} <= set(trial) for trial in entry["trials"])
    assert set(record["scores"]) == {"test", "valid"}
    for F in record["scores"].values():
        assert [len(row) for row in F] == [3, 3, 3]
        for k, row in enumerate(F):
            assert all(isinstance(cell, float) and 0 <= cell <= 1 for cell in row[: k + 1])
            assert row[k + 1 :] == [None] * (2 - k), "nothing above the diagonal"
    F = record["scores"]["test"]
    assert record["metrics"]["Ov"] == pytest.approx(sum(F[2]) / 3)
    lost = max(F[0][0], F[1][0]) - F[2][0] + F[1][1] - F[2][1]
    assert record["metrics"]["CF"] == pytest.approx(lost / 2)
    assert record["metrics"]["FWT"] is None
    assert set(record["passes"]) == {"chosen", "search"}
    stream = spec(files, one_layer, "mas").load_stream(None)
    for task, said, score in zip(stream, record["predictions"], F[2], strict=True):
        assert macro_f1(task.test.labels, said) == pytest.approx(score), (
            "the recorded predictions have the recorded scores"
        )
    for task, said, counts in zip(stream, record["predictions"], record["confusion"], strict=True):
        pairs = list(zip(task.test.labels, said, strict=True))
        assert counts == {
            gold: {guess: pairs.count((gold, guess)) for guess in set(said) if (gold, guess) in pairs}
            for gold in set(task.test.labels)
        }
    assert record["seconds"] > 0
    assert record["peak_memory"] > 2**20
    assert "torch" in record["versions"]
    for number, entry in enumerate(record["chosen"]):
        assert entry["score"] == record["scores"]["valid"][number][number], (
            "the recorded choice is the one that was scored"
        )


def test_the_file_is_the_record(undisturbed, files, one_layer, tmp_path):
    asked = spec(files, one_layer, "seq")
    record = run(asked, tmp_path)
    assert json.loads((tmp_path / f"{asked.digest()}.json").read_text()) == json.loads(json.dumps(record))
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [f"{asked.digest()}.json"]
    left = [path for path in (tmp_path / ".trials").rglob("*") if path.is_file()]
    assert not left, "trial files are deleted at the end of a run"


def test_mtl_has_one_row(files, one_layer, tmp_path):
    record = run(spec(files, one_layer, "mtl"), tmp_path)
    for F in record["scores"].values():
        assert F[:2] == [[None] * 3] * 2
        assert all(isinstance(cell, float) for cell in F[2])
    assert record["metrics"]["Ov"] == pytest.approx(sum(record["scores"]["test"][2]) / 3)
    assert {record["metrics"][name] for name in ("CF", "BWT+", "FWT")} == {None}


def test_a_finished_run_is_not_run_again(files, one_layer, tmp_path, monkeypatch):
    asked = spec(files, one_layer)
    record = run(asked, tmp_path)

    def never(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("it ran again")

    module = sys.modules[run.__module__]
    monkeypatch.setattr(module, "build_classifier", never)
    monkeypatch.setattr(module, "Learner", never)
    assert run(asked, tmp_path) == json.loads(json.dumps(record))


@pytest.mark.slow
def test_a_second_process_is_refused(files, one_layer, tmp_path):
    asked = spec(files, one_layer)
    workspace = tmp_path / ".trials" / asked.digest()
    workspace.mkdir(parents=True)
    script = f"""
import sys
from pathlib import Path
from holdfast.bench import run
locked = sys.modules[run.__module__].locked
with locked(Path({str(workspace)!r})):
    print("locked", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout.readline() == "locked\n"
        with pytest.raises(HoldfastError, match="another process"):
            run(asked, tmp_path)
        other.kill()
    with sys.modules[run.__module__].locked(workspace):
        pass  # the lock was released with the process


def test_fixed_hyper_parameters(files, one_layer, tmp_path):
    record = run(spec(files, one_layer, "seq", "lr=0.004", "rates=0.01,0.02"), tmp_path)
    assert [entry["lr"] for entry in record["chosen"]] == [0.004] * 3
    assert [len(entry["trials"]) for entry in record["trials"]] == [1, 1, 1]


@pytest.mark.parametrize("lam", ["5.0", "inf"])
def test_fixed_lam(files, one_layer, tmp_path, lam):
    record = run(spec(files, one_layer, "mas", f"lam={lam}"), tmp_path)
    assert [str(entry["lam"]) for entry in record["chosen"][1:]] == [lam, lam]


# ---- kill and resume ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_run_cut_off_anywhere_ends_with_the_same_record(files, one_layer, tmp_path, undisturbed):
    asked, cuts = spec(files, one_layer, "mas"), 0
    rng = random.Random(5)
    while cuts < 40:
        try:
            record = run(
                asked, tmp_path, progress=Killer(rng.randint(2, 9) + cuts)
            )  # finished trials emit events too
            break
        except Killed:
            cuts += 1
            assert not list(tmp_path.glob("*.json"))
    assert cuts > 5, "it must have been interrupted several times"
    assert told(json.loads(json.dumps(record))) == told(json.loads(json.dumps(undisturbed)))
    assert not [path for path in (tmp_path / ".trials").rglob("*") if path.is_file()]


def command(files: Path, model: str, out: Path, method: str) -> list[str]:
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    return [
        *(sys.executable, "-m", "holdfast", "run", "--method", method, "--stream", str(files)),
        *("--model", model, "--out", str(out), *settings),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["mas", "la"])
def test_sigkill_at_random_moments(files, one_layer, tmp_path, method):
    expected = run(spec(files, one_layer, method), tmp_path / "whole")
    out, rng, kills = tmp_path / "killed", random.Random(7), 0
    while kills < 4:
        with subprocess.Popen(
            command(files, one_layer, out, method), cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as process:
            for _ in range(rng.randint(2, 6)):  # this many lines of progress, then a short delay
                process.stdout.readline()
            time.sleep(rng.random() / 3)
            if process.poll() is not None:
                break
            process.send_signal(signal.SIGKILL)
            kills += 1
    assert kills > 1
    done = subprocess.run(command(files, one_layer, out, method), cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [path] = out.glob("*.json")
    assert told(json.loads(path.read_text())) == told(json.loads(json.dumps(expected)))
    assert not [path for path in (out / ".trials").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_ctrl_c_is_clean(files, one_layer, tmp_path):
    out = tmp_path / "out"
    with subprocess.Popen(
        command(files, one_layer, out, "la"),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        for line in process.stdout:
            if "training 1" in line:
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert errors.strip() == "stopped; run the same command again to resume"
    assert not list(out.glob("*.json"))


class Once(Progress):
    """Progress that interrupts a run when its second task begins."""

    def task(self, number: int, name: str) -> None:
        if number == 2:
            raise KeyboardInterrupt


def test_a_run_does_not_go_on_with_other_data(
    files: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data of a named stream may have changed: its folder is not in the spec."""
    asked, out = spec(files, one_layer, "seq"), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(asked, out, progress=Once())
    monkeypatch.setattr(RUN, "data_of", lambda _: "0" * 12)
    with pytest.raises(HoldfastError, match="has changed since this run began"):
        run(asked, out)


def test_a_state_of_another_version_is_one_line(
    files: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, out = spec(files, one_layer, "seq"), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        run(asked, out, progress=Once())

    def unheard_of(*_: Any) -> None:
        raise KeyError("trace")

    monkeypatch.setattr("holdfast.learning.learner.Learner.load_state", unheard_of)
    with pytest.raises(HoldfastError, match=r"another version.*delete .*trials"):
        run(asked, out)


def test_the_same_sentences_are_the_same_data_in_any_order(classes: Stream) -> None:
    turned = dataclasses.replace(classes, tasks=classes.tasks[::-1])
    fewer = dataclasses.replace(
        classes, tasks=(classes.tasks[0].capped(train=1, valid=None), *classes.tasks[1:])
    )
    assert data_of(turned) == data_of(classes) != data_of(fewer)


def test_another_repository_has_no_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The revision of a project that holdfast is installed in is not recorded."""
    place = tmp_path / "project" / "holdfast" / "bench"
    place.mkdir(parents=True)
    for words in (
        ["init", "-q"],
        ["-c", "user.name=x", "-c", "user.email=x@y", "commit", "-q", "--allow-empty", "-m", "x"],
    ):
        subprocess.run(["git", "-C", str(tmp_path / "project"), *words], check=True)
    assert bool(RUN._revision()) == (ROOT / ".git").exists()
    monkeypatch.setattr(RUN, "__file__", str(place / "run.py"))
    assert RUN._revision() is None


def test_a_record_tells_what_each_trial_kept_of_earlier_tasks(files, one_layer, tmp_path):
    """On validation sentences, which is what a plan may be judged by; the chosen trial's are those of F."""
    record = run(spec(files, one_layer, "mas"), tmp_path)
    first, second = record["trials"][:2]
    assert all("old" not in trial for trial in first["trials"])
    assert all(len(trial["old"]) == 1 for trial in second["trials"])
    chosen = {name: record["chosen"][1][name] for name in ("lr", "lam")}
    [kept] = [trial["old"] for trial in second["trials"] if trial["choice"] == chosen]
    assert kept == [record["scores"]["valid"][1][0]]
    assert len({trial["moved"] for trial in second["trials"]}) > 1

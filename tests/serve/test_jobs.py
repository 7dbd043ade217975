"""Jobs: what stops them and when, and what a report says of a learner that changed."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.everyday import rows_of
from helpers.serving import until, worked

from holdfast.errors import HoldfastError
from holdfast.serve import jobs as jobs_module
from holdfast.serve import worker
from holdfast.serve.jobs import Jobs, in_use
from holdfast.storage.generations import Store


def commit_again(path: Path) -> int:
    store = Store(path)
    found = store.load()
    return store.commit(found.tensors, found.sections)


def test_a_queued_job_that_is_stopped_never_runs(mine: Path, tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs")
    (tmp_path / "jobs" / "state-").mkdir(parents=True)
    with (tmp_path / "jobs" / "state-" / "000001.lock").open("w") as earlier:
        fcntl.flock(earlier, fcntl.LOCK_EX)
        arguments = {"label": "music", "purge": True, "model": None}
        number = jobs.start("", "forget", mine, arguments)["id"]
        assert number == "000002"
        assert jobs.stop("", number) is not None
        until(lambda: not in_use(tmp_path / "jobs" / "state-" / f"{number}.lock"), 60)
    report = jobs.report("", number)
    assert report is not None
    assert report["status"] == "stopped"
    assert report["error"] == "the job was stopped; the learner is as it was before"
    assert Store(mine).generations == [1, 2]
    jobs.end(5)


@pytest.mark.slow
def test_a_waiting_job_can_be_signalled(mine: Path, tmp_path: Path) -> None:
    jobs = Jobs(tmp_path / "jobs")
    folder = tmp_path / "jobs" / "state-"
    folder.mkdir(parents=True)
    with (folder / "000001.lock").open("w") as earlier:
        fcntl.flock(earlier, fcntl.LOCK_EX)
        arguments = {"label": "music", "purge": True, "model": None}
        number = jobs.start("", "forget", mine, arguments)["id"]
        until(lambda: "pid" in (jobs.report("", number) or {}), 60)
        jobs.stop("", number)
        until(lambda: not in_use(folder / f"{number}.lock"), 60)
    assert (jobs.report("", number) or {})["status"] == "stopped"


def test_a_signal_before_the_work_is_only_noted_and_later_ends_it_once(tmp_path: Path) -> None:
    stopping = worker.Stopping(tmp_path / "000001.stop")
    stopping.check()
    stopping.signal(signal.SIGTERM, None)
    with pytest.raises(worker.Stopped):
        stopping.check()
    stopping.working = True
    with pytest.raises(worker.Stopped):
        stopping.signal(signal.SIGTERM, None)
    stopping.signal(signal.SIGTERM, None)


@pytest.mark.parametrize(
    ("error", "status"),
    [(worker.Stopped(), "stopped"), (HoldfastError("no room"), "failed"), (OSError("x"), "failed")],
)
@pytest.mark.parametrize("commits", [False, True])
def test_a_report_knows_whether_the_learner_changed(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, status: str, commits: bool
) -> None:
    def broken(path: Path, arguments: Any, progress: Any) -> dict[str, Any]:
        if commits:
            commit_again(path)
        raise error

    monkeypatch.setitem(worker.KINDS, "learn", broken)
    report = worked(tmp_path / "job", "learn", mine)
    assert report["status"] == status
    assert ("generation 3 was committed" in report["error"]) == commits
    assert ("as it was before" in report["error"]) == (status == "stopped" and not commits)


@pytest.mark.parametrize("lost", [HoldfastError("cannot write"), None])
def test_a_job_that_is_done_says_so_though_its_report_cannot_be_written_whole(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: Exception | None
) -> None:
    write: Callable[[Path, Any], None] = worker.write_json

    def fails_once(path: Path, value: Any) -> None:
        if lost is not None and value["status"] == "done":
            monkeypatch.setattr(worker, "write_json", write)
            raise lost
        write(path, value)

    def done(path: Path, arguments: Any, progress: Any) -> dict[str, Any]:
        return {"generation": commit_again(path), "score": float("nan") if lost is None else 1.0}

    monkeypatch.setattr(worker, "write_json", fails_once)
    monkeypatch.setitem(worker.KINDS, "learn", done)
    report = worked(tmp_path / "job", "learn", mine)
    assert report["status"] == "done"
    assert report["result"] == {"generation": 3}


def test_a_job_whose_process_vanished_promises_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "state-"
    folder.mkdir()
    (folder / "000001.lock").touch()
    (folder / "000001.json").write_text(json.dumps({"id": "000001", "kind": "learn", "status": "running"}))
    report = Jobs(tmp_path).report("", "000001")
    assert report is not None
    assert report["status"] == "stopped"
    assert "as it was before" not in report["error"]
    assert "generations" in report["error"]


def test_a_report_does_not_say_where_files_are(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: Path, arguments: Any, progress: Any) -> dict[str, Any]:
        raise HoldfastError(f"{path}/CURRENT is damaged; see '/etc/holdfast/a.toml', or keep a/b and 1/2")

    monkeypatch.setitem(worker.KINDS, "learn", broken)
    report = worked(tmp_path / "job", "learn", mine)
    assert report["error"] == "mine/CURRENT is damaged; see 'a.toml', or keep a/b and 1/2"


@pytest.mark.parametrize("number", ["9" * 300, "1", "٠٠٠٠٠١", "000001\n", "../000001"])
def test_what_is_no_number_of_a_job_is_no_job(tmp_path: Path, number: str) -> None:
    (tmp_path / "state-").mkdir()
    assert Jobs(tmp_path).report("", number) is None
    assert Jobs(tmp_path).stop("", number) is None


class Slow(list[Any]):
    """A list at whose end a reader waits a moment."""

    def __init__(self) -> None:
        self.looking, self.started = threading.Event(), threading.Event()

    def __iter__(self) -> Iterator[Any]:
        yield from tuple(super().__iter__())
        self.looking.set()
        self.started.wait(0.3)


def test_a_job_that_starts_while_ended_ones_are_dropped_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    popen = subprocess.Popen
    jobs, slow = Jobs(tmp_path), Slow()
    jobs._mine = slow
    looker = threading.Thread(target=jobs._reap)
    looker.start()
    assert slow.looking.wait(5)
    monkeypatch.setattr(jobs_module.subprocess, "Popen", lambda *_, **named: popen(["cat"], **named))
    jobs.start("", "learn", tmp_path, {})
    slow.started.set()
    looker.join()
    assert len(jobs._mine) == 1
    jobs.end(5)


def test_a_job_that_does_not_end_when_asked_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs_module, "PATIENCE", 0.2, raising=False)
    deaf = "import signal, time; signal.signal(15, signal.SIG_IGN); print(flush=True); time.sleep(20)"
    process = subprocess.Popen([sys.executable, "-c", deaf], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as said:
        said.readline()
        jobs = Jobs(tmp_path)
        jobs._mine.append(process)
        began = time.monotonic()
        jobs.end(0.1)
    assert process.returncode == -signal.SIGKILL
    assert time.monotonic() - began < 10


def test_a_job_learns_though_a_stop_of_another_was_asked(mine: Path, tmp_path: Path) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "000002.stop").touch()
    assert worked(tmp_path / "job", "learn", mine, name="w", rows=rows_of(2), again=False)["status"] == "done"


@pytest.mark.parametrize(
    ("kind", "arguments", "labels"),
    [
        ("learn", {"rows": [("a", "x", None), ("b", "y", None), ("c", "x", None)]}, ["x", "y"]),
        ("correct", {"rows": [("a", "x", None)], "to": "y"}, ["x", "y"]),
        ("correct", {"rows": [("a", "x", None)], "to": None}, ["x"]),
        ("rename", {"old": "x", "new": "y"}, ["x", "y"]),
        ("merge", {"labels": ["x", "y"], "into": "x"}, ["x", "y"]),
        ("forget", {"label": "x", "purge": False}, ["x"]),
        ("compare", {"rows": [("a", "x", None)], "first": 1, "second": 2}, []),
        ("suggest", {"texts": ["a"], "n": 3}, []),
    ],
)
def test_a_report_names_the_labels_of_its_job(kind: str, arguments: Any, labels: list[str]) -> None:
    assert jobs_module.labels_of(kind, arguments) == labels

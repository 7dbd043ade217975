"""Running a suite: missing runs only, kills, and runs that fail."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from helpers.records_by_hand import matrix, record_of
from helpers.runs import SETTINGS
from helpers.suites import Quiet, records, suite_of
from rich.console import Console

from holdfast.app.display import SuiteDisplay
from holdfast.bench import Spec
from holdfast.bench.bench import bench
from holdfast.bench.engine import Engine, JobEvent, Local, Seat, seats
from holdfast.bench.suite import Suite
from holdfast.bench.worker import Job, events_of, working
from holdfast.errors import HoldfastError


@pytest.mark.slow
def test_a_suite_leaves_its_records_and_nothing_else(whole: tuple[Suite, Path]) -> None:
    suite, out = whole
    assert set(records(out)) == {spec.digest() for spec in suite.specs}
    assert json.loads((out / "toy.suite.json").read_text()) == suite.manifest()
    assert not [path for path in (out / ".trials").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_only_what_is_missing_is_run(whole: tuple[Suite, Path], tmp_path: Path) -> None:
    suite, out = whole
    first, *rest = suite.specs
    for spec in rest:
        (tmp_path / f"{spec.digest()}.json").write_bytes((out / f"{spec.digest()}.json").read_bytes())
    asked: list[Job] = []

    class Watched(Local):
        def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
            asked.extend(jobs)
            return super().run(jobs)

    assert bench(suite, tmp_path, Watched(1), Quiet) == []
    assert [job.spec for job in asked] == [first.to_json()]
    assert records(tmp_path) == records(out)
    asked.clear()
    assert bench(suite, tmp_path, Watched(1), Quiet) == []
    assert not asked


def test_records_of_files_that_were_moved_are_still_theirs(
    two_files: Path, one_layer: str, tmp_path: Path
) -> None:
    shutil.copytree(two_files, tmp_path / "moved")
    before, after = (suite_of(where, one_layer, "slda") for where in (two_files, tmp_path / "moved"))
    for spec in before.specs:
        record = record_of(spec, matrix(0.1, 0.2, 0.3))
        (tmp_path / f"{spec.digest()}.json").write_text(json.dumps(record))
    assert bench(after, tmp_path, Local(1), Quiet) == [], "nothing runs, no record is reported as foreign"
    changes = [{"spec": {**before.specs[0].to_json(), "seed": 7}}, {"seconds": None}]
    for spec, change in zip(before.specs, changes, strict=True):
        record = record_of(spec, matrix(0.1, 0.2, 0.3)) | change
        (tmp_path / f"{spec.digest()}.json").write_text(json.dumps(record))
    found = bench(after, tmp_path, Local(1), Quiet)
    assert len(found) == len(after.specs)
    assert all("is not the record of this run" in failure.why for failure in found)


@contextmanager
def forked(work: Any, killed: list[bool]) -> Iterator[tuple[int, int]]:
    """Fork a child with everything imported; return it and the read end of its pipe.

    Whether the child was killed before it ended is appended to `killed`.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            work(writer)
        finally:
            os._exit(0)
    os.close(writer)
    try:
        yield child, reader
    finally:
        os.kill(child, signal.SIGKILL)
        killed.append(os.WIFSIGNALED(os.waitpid(child, 0)[1]))
        os.close(reader)


RENAMES = """
import os, sys
if "holdfast.bench.worker" in sys.orig_argv:
    def note(event, arguments):
        if event == "os.rename" and str(arguments[1]).endswith(".trial"):
            with open(os.environ["TRIALS_LOG"], "a") as log:
                log.write(str(arguments[1]) + chr(10))
    sys.addaudithook(note)
"""


@pytest.mark.slow
def test_sigkill_at_twenty_random_moments(
    whole: tuple[Suite, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite, expected = whole
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(RENAMES)
    log, out = tmp_path / "trials.log", tmp_path / "out"
    monkeypatch.setenv("TRIALS_LOG", str(log))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ["PYTHONPATH"]]))

    class Beating(Quiet):
        def event(self, number: int, event: dict[str, Any], record: Any) -> None:
            super().event(number, event, record)
            # Epoch events come by the clock: on a busy machine, all counted events would be epochs.
            if event["kind"] != "epoch":
                os.write(self.writer, b".")

    def work(writer: int) -> None:
        Beating.writer = writer
        bench(suite, out, Local(2), Beating)

    def once() -> None:
        """Fail if a finished trial is trained again."""
        if log.exists():
            assert not [path for path, times in Counter(log.read_text().split()).items() if times > 1]
            log.unlink()

    rng, killed, amid = random.Random(3), [], 0
    while sum(killed) < 20:
        with forked(work, killed) as (_, reader):
            for _ in range(rng.randint(0, 9)):  # this many events, then a short delay
                if not os.read(reader, 1):
                    break
            time.sleep(rng.random() / 2)
        amid += bool(list((out / ".trials").glob("*/*.trial")))
        if len(records(out)) == len(suite.specs):  # all finished: delete two records and go on
            once()
            for spec in suite.specs[:2]:
                (out / f"{spec.digest()}.json").unlink()
    assert amid > 3, "some kills must leave trials"
    assert bench(suite, out, Local(2), Quiet) == []
    assert records(out) == records(expected)
    once()
    assert not [path for path in (out / ".trials").rglob("*") if path.is_file()]


@pytest.mark.slow
def test_what_is_wrong_with_one_run_leaves_the_others_alone(
    whole: tuple[Suite, Path], two_files: Path, one_layer: str, tmp_path: Path
) -> None:
    suite, expected = whole
    first, second, *rest = suite.specs
    (tmp_path / f"{first.digest()}.json").write_text("{half a rec")
    (tmp_path / "notes.json").write_text('["mine"]')
    (tmp_path / "no-model").mkdir()  # an unknown name would be refused before any run
    gone = Spec.create(
        method="seq", stream=str(two_files), settings=SETTINGS, model=str(tmp_path / "no-model")
    )
    failures = bench(Suite("toy", (gone, first, second, *rest)), tmp_path, Local(2), Quiet)
    why = {failure.spec.digest(): failure.why for failure in failures}
    assert why.keys() == {first.digest(), gone.digest()}
    assert "not readable JSON" in why[first.digest()]
    assert "delete it" in why[first.digest()]
    assert "no-model" in why[gone.digest()]
    assert not any("\n" in line for line in why.values())
    (tmp_path / f"{first.digest()}.json").unlink()
    (tmp_path / "notes.json").unlink()
    left = records(tmp_path)
    assert left == {digest: record for digest, record in records(expected).items() if digest in left}
    assert len(left) == len(suite.specs) - 1


def test_missing_data_is_said_before_anything_is_run(two_files: Path, one_layer: str, tmp_path: Path) -> None:
    good = Spec.create(method="seq", stream=str(two_files), settings=SETTINGS, model=one_layer)
    bad = Spec.create(method="seq", stream="hwu64", model=one_layer)
    with pytest.raises(HoldfastError, match="hwu64"):
        bench(Suite("s", (good, bad)), tmp_path / "out", Local(1), Quiet, data_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def test_tasks_beyond_the_stream_are_refused(two_files: Path, one_layer: str, tmp_path: Path) -> None:
    much = Spec.create(method="seq", stream=str(two_files), settings=SETTINGS, model=one_layer, tasks=5)
    with pytest.raises(HoldfastError, match="has only 2 tasks, not 5"):
        bench(Suite("s", (much,)), tmp_path / "out", Local(1), Quiet)


# ---- workers --------------------------------------------------------------------------------------------


def test_a_worker_has_its_threads_and_its_gpu_before_torch_starts(tmp_path: Path) -> None:
    asked = Spec.create(method="seq", stream="home", threads=3)
    job = Job(asked.to_json(), str(tmp_path), gpu="5")
    with working(job) as (process, _):
        content = b""
        while not content and process.poll() is None:  # empty until the process has started
            content = Path(f"/proc/{process.pid}/environ").read_bytes()
    found = dict(line.split(b"=", 1) for line in content.split(b"\0") if line)
    names = (b"OMP_NUM_THREADS", b"MKL_NUM_THREADS", b"CUDA_VISIBLE_DEVICES")
    assert [found[name] for name in names] == [b"3", b"3", b"5"]


def test_seats_are_cores_of_their_own_where_there_are_enough() -> None:
    assert [seat.cores for seat in seats([0, 1, 2, 3], 2, 2)] == [(0, 1), (2, 3)]
    assert [seat.cores for seat in seats([4, 7], 2, 1)] == [(4,), (7,)]
    assert [seat.cores for seat in seats([0, 1], 3, 1)] == [(), (), ()]
    assert seats([0, 1], 1, 4) == [Seat()]
    assert [seat.gpu for seat in seats(range(8), 3, 1, ["2", "5"])] == ["2", "5", "2"]
    assert seats([0, 1], 1, 1) == [Seat()], "a single job must leave the other core free"


def test_as_many_at_once_as_fit() -> None:
    assert Local(3).at_once(1) == 3
    assert Local().at_once(10_000) == 1


@pytest.mark.slow
def test_a_worker_that_dies_says_so_and_one_whose_parent_is_gone_leaves(
    two_files: Path, one_layer: str, tmp_path: Path
) -> None:
    spec = Spec.create(method="la", stream=str(two_files), settings=SETTINGS, model=one_layer)
    with working(Job(spec.to_json(), str(tmp_path))) as (process, said):
        found = []
        for event in events_of(process, said):
            found.append(event)
            if event["kind"] == "task":
                process.kill()
        assert found[-1]["kind"] == "failed"
        assert "signal 9" in found[-1]["why"]
    with working(Job(spec.to_json(), str(tmp_path))) as (process, said):
        for event in events_of(process, said):
            if event["kind"] == "task":
                process.stdin.close()  # as if the parent were killed
                break
        assert process.wait(timeout=20) == 1
    assert not list(tmp_path.glob("*.json"))


def test_a_worker_that_cannot_start_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    job = Job({"threads": 1, "method": "seq"}, str(tmp_path))
    last = list(Local(1).run([job, job]))
    ends = [(report.number, report.event) for report in last if report.event["kind"] == "failed"]
    assert [number for number, _ in ends] == [0, 1]
    assert "no-python" in ends[0][1]["why"]


def test_a_run_that_cannot_start_does_not_stop_the_board(
    two_files: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    failures = bench(suite_of(two_files, one_layer, "seq"), tmp_path / "out", Local(1), Quiet)
    assert len(failures) == 2


# ---- display --------------------------------------------------------------------------------------------


class Played(Engine):
    """An engine that replays recorded events."""

    def __init__(self, events: list[JobEvent]) -> None:
        self.events = events

    def at_once(self, threads: int) -> int:
        return 2

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        yield from self.events


def test_what_is_left_is_no_less_than_the_longest_run(
    two_files: Path, one_layer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """seq took 10 s; la started with it and has learnt one of two tasks in 60 s, so 60 s are left."""
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    board = Quiet(4, 2)
    board.start(suite_of(two_files, one_layer, "seq", "la").specs, [])
    for number in (0, 2):
        board.event(number, {"kind": "begun"}, None)
        board.event(number, {"kind": "plan", "tasks": 2}, None)
    clock[0] = 10.0
    board.event(0, {"kind": "done"}, {"metrics": {"Ov": 0.5}})
    clock[0] = 60.0
    board.event(2, {"kind": "task", "number": 2, "name": "b"}, None)
    assert board.left() == "  (about 60 s left)"
    clock[0] = 130.0  # past the estimate: only the two waiting runs can be estimated
    assert "left" in board.left()


@pytest.mark.parametrize("terminal", [False, True])
def test_the_display_shows_what_happens(
    terminal: bool, two_files: Path, one_layer: str, tmp_path: Path
) -> None:
    suite = suite_of(two_files, one_layer, "seq")
    events = [
        JobEvent(0, {"kind": "begun"}),
        JobEvent(1, {"kind": "begun"}),
        JobEvent(0, {"kind": "plan", "tasks": 2}),
        JobEvent(0, {"kind": "task", "number": 1, "name": "task0"}),
        JobEvent(0, {"kind": "trial", "number": 1, "what": "lr 0.01"}),
        JobEvent(0, {"kind": "epoch", "epoch": 1, "epochs": 2}),
        JobEvent(0, {"kind": "scored", "reused": False}),
        JobEvent(1, {"kind": "failed", "why": "no space"}),
        JobEvent(0, {"kind": "done"}),
    ]
    record = {"spec": suite.specs[0].to_json(), "metrics": {"Ov": 0.5}, "seconds": 3.0}
    shown = io.StringIO()
    boards: list[SuiteDisplay] = []

    def board(total: int, at_once: int) -> SuiteDisplay:
        console = Console(file=shown, width=200, force_terminal=terminal)
        boards.append(SuiteDisplay(console, total, at_once))
        return boards[0]

    class Writing(Played):
        def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
            for report in self.events:
                if report.event["kind"] == "done":
                    (tmp_path / f"{suite.specs[0].digest()}.json").write_text(json.dumps(record))
                elif report.event["kind"] == "scored" and terminal:
                    with boards[0].console.capture() as drawn:
                        boards[0].console.print(boards[0].bars.get_renderable())
                    assert "epoch 1/2" in drawn.get()
                    assert "0/2 runs" in drawn.get()
                yield report

    [failure] = bench(suite, tmp_path, Writing(events), board)
    assert failure.why == "no space"
    assert "0 of 2 runs exist; 2 to make, 2 in parallel" in shown.getvalue()
    assert "FAILED: no space" in shown.getvalue()
    assert "[2/2]" in shown.getvalue()
    assert "Ov 50.00" in shown.getvalue()
    assert ("task 1/2 task0" in shown.getvalue()) == (not terminal)


def test_a_run_has_a_name_people_read() -> None:
    spec = Spec.create(method="la", stream="home", settings=["fraction=0.5", "head=preallocated"], seed=2)
    assert spec.title == "la home order 1 seed 2 fraction=0.5"

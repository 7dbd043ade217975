"""Jobs: what changes a learner, each in a process of its own, with a report that every worker can read.

A report holds numbers, labels and messages, never a text. A job holds a lock as long as its process lives,
so everybody notices if it is killed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.serve.serving import TOKEN, VARIABLE
from holdfast.storage.files import read_json, write_json

KEPT = 100  # reports per learner
NAMED = 20  # labels that a report names
PATIENCE = 5.0  # seconds for a job to end after it was asked to
NUMBER = re.compile(r"[0-9]{6,9}")
CHANGING = ("learn", "correct", "rename", "merge", "forget")
DONE = ("done", "failed", "stopped")
Report = dict[str, Any]


class TooMany(HoldfastError):
    """More jobs are unfinished than the service accepts."""


def labels_of(kind: str, arguments: Mapping[str, Any]) -> list[str]:
    """Return the labels that a job changes, each once."""
    if kind not in CHANGING:
        return []
    every = [label for _, label, *_ in arguments.get("rows", ())]
    every += [arguments[name] for name in ("label", "old", "new") if name in arguments]
    every += [*arguments.get("labels", ()), arguments.get("into"), arguments.get("to")]
    return list(dict.fromkeys(label for label in every if label is not None))


def in_use(path: Path) -> bool:
    """Return whether a living process holds a job's lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def before(lock: Path) -> list[Path]:
    """Return the locks of earlier jobs of the same learner that have not ended."""
    return [one for one in sorted(lock.parent.glob("*.lock")) if one.name < lock.name and in_use(one)]


class Jobs:
    """Start jobs of one service, and report on them."""

    def __init__(self, reports: Path, *, threads: int = 1, most: int = 8) -> None:
        self.reports = reports
        self.threads = threads
        self.most = most
        self._mine: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()  # requests start jobs in several threads

    def start(self, name: str, kind: str, path: Path, arguments: Mapping[str, Any]) -> Report:
        """Start a job for a learner; return its report. Jobs of one learner run one after another."""
        folder = self._folder(name)
        folder.mkdir(0o700, parents=True, exist_ok=True)
        self._sweep(folder)
        if sum(in_use(one) for one in folder.glob("*.lock")) >= self.most:
            raise TooMany(f"{self.most} jobs are not finished; try again when one is")
        number, lock = _numbered(folder)
        try:
            report = {"id": number, "kind": kind, "status": "waiting", "started": round(time.time(), 3)}
            if labels := labels_of(kind, arguments):
                report["labels"] = labels[:NAMED]
            write_json(folder / f"{number}.json", report)
            order = {"kind": kind, "path": str(path), "report": str(folder / f"{number}.json")}
            secret = (VARIABLE, TOKEN)
            environment = {n: value for n, value in os.environ.items() if n not in secret}
            environment |= {name: str(self.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
            process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.serve.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,  # a traceback could quote a text
                pass_fds=(lock,),  # the lock is free when this process and the job have closed it
                env=environment,
                start_new_session=True,  # Ctrl-C is for the service, which stops its jobs itself
            )
        finally:
            os.close(lock)
        with self._lock:
            self._mine.append(process)
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin as order_pipe:
            order_pipe.write(json.dumps(order | {"arguments": arguments}).encode())
        return report

    def report(self, name: str, number: str) -> Report | None:
        """Return the report of a job; None if there is none."""
        self._reap()
        if not NUMBER.fullmatch(number):
            return None
        path = self._folder(name) / f"{number}.json"
        if not path.is_file():
            return None
        alive = in_use(path.with_suffix(".lock"))  # asked before the report is read
        report: Report = read_json(path)
        if not alive and report["status"] not in DONE:
            report |= {
                "status": "stopped",
                "error": "the job's process was ended before it could report; look at the generations: if it "
                "has not made a new one, send the job again",
            }
        return report

    def all(self, name: str) -> list[Report]:
        """Return the reports of a learner's jobs, newest first."""
        numbers = sorted((path.stem for path in self._folder(name).glob("*.json")), reverse=True)
        return [found for number in numbers if (found := self.report(name, number)) is not None]

    def stop(self, name: str, number: str) -> Report | None:
        """End the process of a job; return its report, or None if there is no such job."""
        report = self.report(name, number)
        lock = self._folder(name) / f"{number}.lock"
        if report is not None and in_use(lock):
            lock.with_suffix(".stop").touch(0o600)  # for a process that has not written its pid yet
            report = self.report(name, number)
            if report is not None and "pid" in report and in_use(lock):
                with suppress(ProcessLookupError):
                    os.kill(report["pid"], signal.SIGTERM)
        return report

    def end(self, grace: float) -> None:
        """Wait for the jobs of this process, then end those that still run."""
        with self._lock:
            mine = list(self._mine)
        _wait(mine, grace)
        for process in mine:
            process.terminate()  # does nothing to one that has ended
        _wait(mine, PATIENCE)
        for process in mine:
            process.kill()
            process.wait()

    def _folder(self, name: str) -> Path:
        return self.reports / f"state-{name}"

    def _reap(self) -> None:
        with self._lock:
            self._mine = [process for process in self._mine if process.poll() is None]

    def _sweep(self, folder: Path) -> None:
        for path in sorted(folder.glob("*.lock"))[:-KEPT]:
            if not in_use(path):
                path.with_suffix(".json").unlink(missing_ok=True)
                path.with_suffix(".stop").unlink(missing_ok=True)
                path.unlink(missing_ok=True)


def _wait(processes: list[subprocess.Popen[bytes]], seconds: float) -> None:
    """Wait until processes have ended, but no longer than some seconds."""
    until = time.monotonic() + seconds
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(until - time.monotonic(), 0))


def _numbered(folder: Path) -> tuple[str, int]:
    """Return the number of a new job and its lock, which is held from the moment it has its name."""
    descriptor, temporary = tempfile.mkstemp(dir=folder, suffix=".new")
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        while True:
            known = [int(path.stem) for path in folder.glob("*.lock")]
            number = f"{max(known, default=0) + 1:06d}"
            with suppress(FileExistsError):
                os.link(temporary, folder / f"{number}.lock")
                return number, descriptor
    finally:
        os.unlink(temporary)

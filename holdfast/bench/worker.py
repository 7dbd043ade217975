"""One run in its own process: it reads a job from stdin and writes events to stdout, one JSON line each.

The environment sets the number of threads before torch is imported. When stdin closes, the parent is gone
and the worker exits: no worker survives its parent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import IO, Any

from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.events import Progress

Event = dict[str, Any]
EVERY = 1.0  # minimum seconds between two events of `epoch` or `looked`


@dataclass(frozen=True)
class Job:
    """One job of a worker."""

    spec: dict[str, Any]
    """The JSON of the run's spec; its `threads` are set before torch starts."""
    out: str
    run: str = "holdfast.bench.run:run_job"
    """The function that makes the record, as module:name; its arguments are this job and a `Progress`."""
    data_dir: str | None = None
    share: bool = True
    track: str | None = None
    cores: tuple[int, ...] = ()
    """Cores to run on; any if empty."""
    gpu: str | None = None
    """GPU to use; torch chooses if None."""
    folder: str = "."
    """Folder that relative paths in the spec start from; only Ray tasks change to it."""


class Events(Progress):
    """Writes progress as events."""

    def __init__(self, write: IO[str]) -> None:
        self.write = write
        self._told = 0.0

    def tell(self, **event: Any) -> None:
        """Write one event."""
        self.write.write(json.dumps(event) + "\n")
        self.write.flush()

    @override
    def plan(self, tasks: int) -> None:
        self.tell(kind="plan", tasks=tasks)

    @override
    def note(self, text: str) -> None:
        self.tell(kind="note", text=text)

    @override
    def task(self, number: int, name: str) -> None:
        self.tell(kind="task", number=number, name=name)

    @override
    def trial(self, number: int, what: str) -> None:
        self.tell(kind="trial", number=number, what=what)

    @override
    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        if time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            self.tell(kind="epoch", epoch=epoch, epochs=epochs)

    @override
    def looked(self, done: int, total: int) -> None:
        if time.monotonic() - self._told > EVERY:
            self._told = time.monotonic()
            self.tell(kind="looked", done=done, total=total)

    @override
    def scored(self, score: float, reused: bool) -> None:
        self.tell(kind="scored", reused=reused)


@contextmanager
def working(job: Job) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
    """Run a worker on a job; yield its process and the file with its stderr."""
    threads = str(job.spec.get("threads", 1))
    environment = {"TOKENIZERS_PARALLELISM": "false"} | os.environ
    environment |= {"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    environment |= {} if job.gpu is None else {"CUDA_VISIBLE_DEVICES": job.gpu}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
        process = subprocess.Popen(
            [sys.executable, "-m", "holdfast.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            env=environment,
            start_new_session=True,  # only the parent handles Ctrl-C
        )
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(asdict(job)) + "\n")
                process.stdin.flush()
            except BrokenPipeError:
                pass  # it died at once; `events_of` reports why
            yield process, said
        finally:
            process.kill()
            process.wait()


def events_of(process: subprocess.Popen[str], said: IO[str]) -> Iterator[Event]:
    """Yield the events of a worker; the last is always "done" or "failed", even if the worker dies."""
    assert process.stdout is not None
    for line in process.stdout:
        try:
            event: Event = json.loads(line)
        except ValueError:
            continue  # an incomplete line of a killed worker
        yield event
        if event["kind"] in ("done", "failed"):
            return
    code = process.wait()
    said.seek(0)
    last = [line.strip() for line in said if line.strip()][-1:]
    why = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
    if code == -9:
        why += " (out of memory, or killed)"
    yield {"kind": "failed", "why": ": ".join([f"the worker {why}", *last]), "died": code < 0}


def main() -> None:
    """Run the job that stdin holds."""
    events = Events(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # output of libraries must not mix with the events
    job = Job(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_leave_with_parent, daemon=True).start()
    if job.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, job.cores)
    import torch

    torch.set_num_threads(job.spec["threads"])
    module, _, function = job.run.partition(":")
    try:
        getattr(import_module(module), function)(job, events)
    except HoldfastError as error:
        events.tell(kind="failed", why=str(error))
    except OSError as error:
        events.tell(kind="failed", why=f"{error.filename or job.out}: {error.strerror or error}")
    else:
        events.tell(kind="done")


def _leave_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    main()

"""Engines do jobs and tell how they go. The local one: processes of their own, on cores of their own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import NamedTuple

import torch
from typing_extensions import override

from holdfast.bench.worker import Event, Job, events_of, working
from holdfast.settings import usable_cpus

ENDED = ("done", "failed")


@dataclass(frozen=True)
class JobEvent:
    """An event of the job with this number."""

    number: int
    event: Event


class Engine:
    """Does jobs somewhere."""

    def at_once(self, threads: int) -> int:
        """How many runs of so many threads go on side by side."""
        raise NotImplementedError

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """Do the jobs; the last event of each is "done" or "failed". Leaving the loop stops the others."""
        raise NotImplementedError


class Local(Engine):
    """Processes on this machine, so many at a time."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    @override
    def at_once(self, threads: int) -> int:
        """As asked for, or one for every GPU, or one for every `threads` cores."""
        return self.jobs or len(gpus()) or max(1, usable_cpus() // threads)

    @override
    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """The first first."""
        threads = max(job.spec["threads"] for job in jobs)
        workers = self.at_once(threads)
        free: SimpleQueue[Seat] = SimpleQueue()
        for seat in seats(cores(), workers, threads, gpus()):
            free.put(seat)
        reports: SimpleQueue[JobEvent] = SimpleQueue()
        live: set[subprocess.Popen[str]] = set()
        stopped = threading.Event()

        def work(number: int, job: Job) -> None:
            seat = free.get()
            try:
                reports.put(JobEvent(number, {"kind": "begun"}))
                with working(replace(job, cores=seat.cores, gpu=seat.gpu)) as (process, said):
                    live.add(process)
                    for event in () if stopped.is_set() else events_of(process, said):
                        reports.put(JobEvent(number, event))
                    live.discard(process)
            except Exception as error:  # a run that cannot even begin must not keep the others waiting
                reports.put(JobEvent(number, {"kind": "failed", "why": str(error)}))
            finally:
                free.put(seat)

        pool = ThreadPoolExecutor(workers)
        try:
            for number, job in enumerate(jobs):
                pool.submit(work, number, job)
            left = len(jobs)
            while left:
                report = reports.get()
                left -= report.event["kind"] in ENDED
                yield report
        finally:
            stopped.set()
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(live):
                process.kill()
            pool.shutdown()


def cores() -> list[int]:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def gpus() -> list[str]:
    """The GPUs this process may use, by the names that CUDA_VISIBLE_DEVICES has for them."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    count = torch.cuda.device_count()
    return named[:count] if len(named) >= count and named[0] else [str(i) for i in range(count)]


class Seat(NamedTuple):
    """Where one of the jobs at a time works."""

    cores: tuple[int, ...] = ()
    gpu: str | None = None


def seats(available: Sequence[int], jobs: int, threads: int, cards: Sequence[str] = ()) -> list[Seat]:
    """A GPU for each of the jobs at a time, in turn; cores, where together they fill them, else any.

    Left to itself the system now and then puts two busy processes on one core beside an idle one, and torch
    all of them on the first GPU.
    """
    own = jobs * threads == len(available)
    return [
        Seat(
            tuple(available[i * threads : (i + 1) * threads]) if own else (),
            cards[i % len(cards)] if cards else None,
        )
        for i in range(jobs)
    ]

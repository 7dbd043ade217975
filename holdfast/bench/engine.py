"""Engines do jobs and tell how they go. The local one: processes of their own, on cores of their own."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from queue import SimpleQueue

import torch

from holdfast.bench.worker import Event, Job, events_of, working

ENDED = ("done", "failed")


@dataclass(frozen=True)
class Report:
    """An event of the job with this number."""

    number: int
    event: Event


class Engine:
    """Does jobs somewhere."""

    def at_once(self, threads: int) -> int:
        """How many runs of so many threads go on side by side."""
        raise NotImplementedError

    def run(self, jobs: Sequence[Job]) -> Iterator[Report]:
        """Do the jobs; the last event of each is "done" or "failed". Leaving the loop stops the others."""
        raise NotImplementedError


class Local(Engine):
    """Processes on this machine, so many at a time."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    def at_once(self, threads: int) -> int:
        """As asked for, or one for every GPU, or one for every `threads` cores."""
        return self.jobs or torch.cuda.device_count() or max(1, len(cores()) // threads)

    def run(self, jobs: Sequence[Job]) -> Iterator[Report]:
        """The first first."""
        threads = max(job.spec["threads"] for job in jobs)
        workers = self.at_once(threads)
        free: SimpleQueue[tuple[int, ...]] = SimpleQueue()
        for seat in seats(cores(), workers, threads):
            free.put(seat)
        reports: SimpleQueue[Report] = SimpleQueue()
        live: set[subprocess.Popen[str]] = set()
        stopped = threading.Event()

        def work(number: int, job: Job) -> None:
            seat = free.get()
            try:
                reports.put(Report(number, {"kind": "begun"}))
                with working(replace(job, cores=seat)) as (process, said):
                    live.add(process)
                    for event in () if stopped.is_set() else events_of(process, said):
                        reports.put(Report(number, event))
                    live.discard(process)
            except Exception as error:  # a run that cannot even begin must not keep the others waiting
                reports.put(Report(number, {"kind": "failed", "why": str(error)}))
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


def seats(available: Sequence[int], jobs: int, threads: int) -> list[tuple[int, ...]]:
    """Cores for each of the jobs at a time, where together they fill them; else all may use any.

    Left to itself the system now and then puts two busy processes on one core beside an idle one.
    """
    if jobs * threads != len(available):
        return [()] * jobs
    return [tuple(available[i * threads : (i + 1) * threads]) for i in range(jobs)]

"""Engines execute jobs and report events. The local engine runs each job in its own process."""

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
    """An event, and the number of its job."""

    number: int
    event: Event


class Engine:
    """Executes jobs."""

    def at_once(self, threads: int) -> int:
        """Return how many jobs of `threads` threads run in parallel."""
        raise NotImplementedError

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """Run the jobs; the last event of each is "done" or "failed". Closing the iterator stops the rest."""
        raise NotImplementedError


class Local(Engine):
    """Runs jobs in processes on this machine, a limited number at a time."""

    def __init__(self, jobs: int | None = None) -> None:
        self.jobs = jobs

    @override
    def at_once(self, threads: int) -> int:
        """Return the requested number, else one job per GPU, else as many as fit the CPUs, at least one."""
        return self.jobs or len(gpus()) or max(1, usable_cpus() // threads)

    @override
    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
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
            except Exception as error:  # a job that cannot start must not block the others
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
    """Return the cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def gpus() -> list[str]:
    """Return the GPUs this process may use, by their names in CUDA_VISIBLE_DEVICES or else by number."""
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    count = torch.cuda.device_count()
    return named[:count] if len(named) >= count and named[0] else [str(i) for i in range(count)]


class Seat(NamedTuple):
    """The cores and the GPU of one of the parallel jobs."""

    cores: tuple[int, ...] = ()
    gpu: str | None = None


def seats(available: Sequence[int], jobs: int, threads: int, cards: Sequence[str] = ()) -> list[Seat]:
    """Assign GPUs in turn; assign cores only if the jobs together use all of them.

    Left alone, the system sometimes puts two busy processes on one core beside an idle one, and torch puts
    every process on the first GPU.
    """
    own = jobs * threads == len(available)
    return [
        Seat(
            tuple(available[i * threads : (i + 1) * threads]) if own else (),
            cards[i % len(cards)] if cards else None,
        )
        for i in range(jobs)
    ]

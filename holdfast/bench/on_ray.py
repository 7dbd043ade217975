"""The Ray engine: each run is a Ray task with retries, on one or more machines; it returns its record.

A task starts the same worker process as the local engine. Threads are therefore set before torch starts,
and the scores are bit-identical to those of a local run on the same kind of machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import chdir, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from holdfast.bench.engine import ENDED, Engine, JobEvent
from holdfast.bench.worker import Event, Job, events_of, working
from holdfast.distributed import connect_ray
from holdfast.errors import HoldfastError, require
from holdfast.learning.trials import code_hash
from holdfast.storage.cache import cache_dir
from holdfast.storage.files import read_json, write_json

if TYPE_CHECKING:
    from holdfast.bench.spec import Spec

LOOK = 1.0  # maximum seconds to wait between two reads of the tasks' events
RETRIES = 5  # of a run whose worker or node died; on the same node it resumes


class WorkerDied(Exception):
    """The worker process of a run was killed; Ray retries the run."""


class OnRay(Engine):
    """Runs jobs on an existing cluster, or on a local one that starts and stops with this process."""

    def __init__(self, address: str | None = None) -> None:
        self.ray = require("ray", "ray")
        self.address = address

    @override
    def at_once(self, threads: int) -> int:
        """Return the number of jobs that the cluster's GPUs, or else its CPUs, can hold; at least one."""
        self._connect()
        resources: dict[str, float] = self.ray.cluster_resources()
        return int(resources.get("GPU", 0)) or max(1, int(resources.get("CPU", 1)) // threads)

    @override
    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """Submit all jobs; Ray queues those that do not fit."""
        ray = self.ray
        self._connect()
        cards = 1 if ray.cluster_resources().get("GPU") else 0
        self._check_room(max(job.spec["threads"] for job in jobs), cards)
        remote = ray.remote(max_retries=RETRIES, retry_exceptions=[WorkerDied])(_do)
        told = self._mailbox()
        waiting = {}
        for number, job in enumerate(jobs):
            needs = {"num_cpus": job.spec["threads"], "num_gpus": cards, "name": job.spec["method"]}
            waiting[remote.options(**needs).remote(job, number, told)] = number
        begun: set[int] = set()
        try:
            while waiting:
                try:
                    ready, _ = ray.wait(list(waiting), num_returns=1, timeout=LOOK)
                except ray.exceptions.RayError as error:
                    raise HoldfastError(f"lost the cluster ({error}); repeat the command to resume") from None
                for number, event in self._events(told):
                    if event["kind"] == "begun" or number in begun:
                        begun.add(number)
                        yield JobEvent(number, event)
                for reference in ready:
                    number = waiting.pop(reference)
                    if number not in begun:  # its events were lost together with a node
                        yield JobEvent(number, {"kind": "begun"})
                    begun.discard(number)
                    yield JobEvent(number, self._outcome(reference, jobs[number]))
        finally:
            for reference in waiting:
                ray.cancel(reference, force=True)

    def _mailbox(self) -> Any:
        """Return the queue for the tasks' events, on the driver's node if possible."""
        from ray.util.queue import Queue
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        here = NodeAffinitySchedulingStrategy(self.ray.get_runtime_context().get_node_id(), soft=True)
        return Queue(actor_options={"num_cpus": 0, "scheduling_strategy": here})

    def _events(self, told: Any) -> list[tuple[int, Event]]:
        """Return the new events, or none if the queue is lost: that must not stop a run."""
        try:
            found: list[tuple[int, Event]] = told.get_nowait_batch(told.size())
        except Exception:
            return []
        return found

    def _outcome(self, reference: Any, job: Job) -> Event:
        try:
            outcome = self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            last = str(getattr(error, "cause", None) or error).strip().rpartition("\n")[2]
            once = isinstance(error, self.ray.exceptions.RayTaskError) and not isinstance(
                error.cause, WorkerDied
            )
            tried = "" if once else f" after {RETRIES} retries"
            return {"kind": "failed", "why": f"lost on the cluster{tried}: {last}"}
        if "record" not in outcome:
            return {"kind": "failed", "why": outcome["why"]}
        try:
            write_json(Path(job.out) / f"{outcome['digest']}.json", outcome["record"])
        except HoldfastError as error:  # the node keeps its copy, which a retry there finds
            return {"kind": "failed", "why": str(error)}
        return {"kind": "done"}

    def _check_room(self, threads: int, cards: int) -> None:
        """Raise an error if a run does not fit on any node: it would wait forever."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        largest = max((node.get("CPU", 0) for node in nodes if node.get("GPU", 0) >= cards), default=0)
        if threads > largest:
            which = "node with a GPU" if cards else "node"
            raise HoldfastError(
                f"a run with {threads} threads does not fit on any {which} of the cluster; the largest has "
                f"{largest:g} CPUs"
            )

    def _connect(self) -> None:
        connect_ray(self.ray, self.address)


def _do(job: Job, number: int, told: Any) -> dict[str, Any]:
    """Do one run as a Ray task, in the driver's folder if the node has it."""
    with chdir(job.folder) if Path(job.folder).is_dir() else nullcontext():
        return _run(job, number, told)


def _run(job: Job, number: int, told: Any) -> dict[str, Any]:
    """Do one run in a worker process, with its trials in the node's cache; return its record."""
    from holdfast.bench.spec import Spec

    spec = Spec.from_json(job.spec)
    try:
        digest, scratch = spec.digest(), _scratch(spec, job.data_dir)
    except HoldfastError as error:  # data that this node cannot read
        return {"why": str(error)}
    last: Event = {"kind": "begun"}
    _tell(told, number, last)
    with working(replace(job, out=str(scratch), share=False)) as (process, said):
        for last in events_of(process, said):
            if last["kind"] not in ENDED:
                _tell(told, number, last)
    if last.get("died"):
        raise WorkerDied(last["why"])
    if last["kind"] == "failed":
        return {"why": last["why"]}
    return {"digest": digest, "record": read_json(scratch / f"{digest}.json")}


def _scratch(spec: Spec, data_dir: str | None) -> Path:
    """Return this node's folder for a run, specific to its data, code and library versions."""
    from holdfast.bench.run import data_of, versions

    data = data_of(spec.load_stream(Path(data_dir) if data_dir else None))
    made_of = json.dumps([data, code_hash(), versions()])
    return cache_dir() / "bench" / f"{spec.digest()}-{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"


def _tell(told: Any, number: int, event: Event) -> None:
    """Send an event; ignore a lost queue."""
    with suppress(Exception):
        told.put_nowait((number, event))

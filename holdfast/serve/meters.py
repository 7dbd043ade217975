"""Prometheus meters. None of them is labelled with anything a client sends."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from holdfast.serve.states import Happened

SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
MULTIPLE = "PROMETHEUS_MULTIPROC_DIR"


class Meters:
    """The meters of one process; those of several processes are added up by /metrics."""

    def __init__(self) -> None:
        own = self.own = CollectorRegistry()
        self.registry = own
        if MULTIPLE in os.environ:
            self.registry = CollectorRegistry()
            MultiProcessCollector(self.registry)  # type: ignore[no-untyped-call]
        self.requests = Counter(
            "holdfast_requests", "Requests by route and status.", ["route", "status"], registry=own
        )
        self.seconds = Histogram(
            "holdfast_request_seconds", "Seconds per request.", ["route"], buckets=SECONDS, registry=own
        )
        self.batches = Histogram(
            "holdfast_batch_texts", "Texts classified together.", buckets=TEXTS, registry=own
        )
        self.loads = Counter(
            "holdfast_loads", "Generations loaded, swapped in or failed.", ["outcome"], registry=own
        )
        self.loading = Histogram(
            "holdfast_load_seconds", "Seconds to load a generation.", buckets=SECONDS, registry=own
        )
        self.evictions = Counter("holdfast_evictions", "Learners evicted from memory.", registry=own)
        self.jobs = Counter("holdfast_jobs_started", "Jobs started.", ["kind"], registry=own)
        self.refused = Counter("holdfast_refused", "Requests refused, by reason.", ["reason"], registry=own)
        self.waiting = Gauge(
            "holdfast_waiting_texts",
            "Texts that wait for an answer.",
            registry=own,
            multiprocess_mode="livesum",
        )
        self.learners = Gauge(
            "holdfast_loaded_learners", "Learners in memory.", registry=own, multiprocess_mode="livesum"
        )

    @cached_property
    def generation(self) -> Gauge:
        """Made with the first generation: a process that is still loading does not count as generation 0."""
        return Gauge(
            "holdfast_generation",
            "Generation that answers, of a service with one learner.",
            registry=self.own,
            multiprocess_mode="livemin",
        )

    def happened(self, *, many: bool = False) -> Happened:
        """Return what learners report to these meters."""

        def load(outcome: str, seconds: float) -> None:
            self.loads.labels(outcome).inc()
            self.loading.observe(seconds)

        def hold(generations: Sequence[int]) -> None:
            self.learners.set(len(generations))
            if not many:
                self.generation.set(generations[0])

        evict: Callable[[], None] = self.evictions.inc
        return Happened(batch=self.batches.observe, load=load, evict=evict, wait=self.waiting.inc, hold=hold)

    def page(self) -> bytes:
        """Return all meters in the text format of Prometheus."""
        return generate_latest(self.registry)

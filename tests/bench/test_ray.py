"""The Ray engine on a real cluster of two nodes, one of which is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest
from helpers.suites import Quiet, records, suite_of, workers_of

from holdfast.bench import Spec
from holdfast.bench.bench import bench
from holdfast.bench.engine import Local
from holdfast.bench.worker import Job, working
from holdfast.errors import HoldfastError

ray = pytest.importorskip("ray", reason="the extra holdfast[ray] is not installed")


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Start two nodes with one CPU each and a head node without CPUs."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@pytest.mark.slow
def test_a_killed_node_costs_a_retry_not_a_result(
    cluster: object,
    two_files: Path,
    one_layer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from holdfast.bench.on_ray import OnRay

    monkeypatch.chdir(two_files.parent)  # the cluster has another working directory
    suite = suite_of(Path(two_files.name), one_layer, "mas", "slda")
    first, _ = (cluster.add_node(num_cpus=1) for _ in range(2))
    cluster.wait_for_nodes()

    def kill_one() -> None:
        while not list((tmp_path / "cache" / "bench").glob("*/.trials/*/*.trial")):
            time.sleep(0.05)  # until a run is under way
        for worker in workers_of(tmp_path / "cache"):
            os.kill(worker, signal.SIGKILL)  # the node itself stays alive
        cluster.remove_node(first, allow_graceful=False)

    killer = threading.Thread(target=kill_one)
    killer.start()
    engine = OnRay(cluster.address)
    assert engine.at_once(1) == 2
    assert bench(suite, tmp_path / "ray", engine, Quiet) == []
    killer.join(timeout=1)
    assert not killer.is_alive(), "the node must be killed while there is work"
    assert bench(suite, tmp_path / "local", Local(2), Quiet) == []
    assert records(tmp_path / "ray") == records(tmp_path / "local")


def test_a_worker_that_is_killed_costs_a_retry(
    two_files: Path,
    one_layer: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray retries on this exception, even if the node is alive."""
    from holdfast.bench import on_ray

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path))

    @contextmanager
    def killed(job: Job) -> Iterator[tuple[subprocess.Popen[str], IO[str]]]:
        with working(job) as (process, said):
            process.kill()
            yield process, said

    monkeypatch.setattr(on_ray, "working", killed)
    [spec, _] = suite_of(two_files, one_layer, "slda").specs
    with pytest.raises(on_ray.WorkerDied, match="signal 9"):
        on_ray._do(Job(spec.to_json(), str(tmp_path)), 0, None)


def test_a_cluster_that_is_not_there() -> None:
    from holdfast.bench.on_ray import OnRay

    with pytest.raises(HoldfastError, match="no Ray cluster answers there"):
        OnRay("127.0.0.1:1").at_once(1)


def test_a_node_keeps_other_sentences_under_another_name(
    two_files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The data of a named stream is not in its spec: a record of other sentences must not be returned."""
    from holdfast.bench.on_ray import _scratch

    asked = Spec.create(method="seq", stream=str(two_files))
    here = _scratch(asked, None)
    assert _scratch(asked, None) == here
    monkeypatch.setattr(sys.modules["holdfast.bench.run"], "data_of", lambda _: "others")
    assert _scratch(asked, None) != here

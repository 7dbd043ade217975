"""The service on Ray Serve: replicas of the same application, on one machine or on several.

Replicas answer and change nothing. A job is a process that is stopped by a signal and known by a lock, and
neither works from one machine to another; what is taught elsewhere is picked up by every replica.
"""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import Any

from holdfast.distributed import connect_ray
from holdfast.errors import HoldfastError
from holdfast.serve.application import application
from holdfast.serve.guard import Guard
from holdfast.serve.loaded import load, stamp
from holdfast.serve.mirror import Mirror
from holdfast.serve.server import bound, check_reach, is_many, names_of
from holdfast.serve.serving import ServiceLimits, Serving
from holdfast.settings import usable_cpus

NAME = "holdfast"  # of the Ray Serve application
LOOK = 5.0  # seconds between two looks at the cluster
BUSY = 32  # requests at a time for which one replica is meant, where their number changes
NOWHERE = "/dev/null"  # where jobs would be reported: there are none


def serve_on_ray(
    path: Path,
    *,
    source: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
    replicas: int = 1,
    most: int | None = None,
    address: str | None = None,
    threads: int = 1,
    many: bool = False,
    model: str | None = None,
    allow: tuple[str, ...] = (),
    limits: ServiceLimits | None = None,
    started: Callable[[str, str | None], None] = lambda address, token: None,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a learner, or a folder of learners, on Ray until the process is told to stop.

    Every node reads them at the same path, or copies them from the URL `source`. With `most`, Ray chooses the
    number of replicas, from `replicas` to `most`. Without an address, a local cluster is started. `started`
    gets the address of the service; there is no token, because nothing can be changed.
    """
    limits = limits or ServiceLimits()
    check_reach(host, token)
    ray, ray_serve = _ray()
    many = many or is_many(path)
    if not many and not load(path, model).labels:
        raise HoldfastError(f"{path} has no labels yet, and replicas on Ray do not learn; teach it first")
    if address is None:
        with bound(host, port) as free:
            port = free.getsockname()[1]
    elif not port:
        raise HoldfastError("--port 0 cannot be used on a cluster; choose a port that is free on its nodes")
    serving = Serving(
        path=str(path.resolve()),
        token="",  # there is nothing that it would open
        reports=NOWHERE,
        many=many,
        model=model,
        threads=threads,
        hosts=names_of(host, allow),
        limits=limits,
        read_only=True,
    )
    stopping, deployed = threading.Event(), False
    try:
        _connect(ray, ray_serve, address, replicas * threads)
        cpus = int(ray.cluster_resources().get("CPU", 0))
        if (needed := replicas * threads) > cpus:
            say(f"waiting: {replicas} replicas need {needed} CPUs, and the cluster has {cpus}")
        deployed = True
        _deploy(ray_serve, serving, source, host=host, port=port, replicas=replicas, most=most)
        shown = f"[{host}]" if ":" in host else host
        started(f"http://{shown}:{port}/", None)
        number = f"{replicas} to {most}" if most else f"{replicas}"
        say(f"replicas on Ray: {number}; they answer only, so teach the learner where its directory is")
        _on_signals(stopping)
        while not stopping.wait(LOOK):
            ray_serve.status()
    except (RuntimeError, ConnectionError, TimeoutError, ray.exceptions.RayError) as error:
        raise HoldfastError(f"Ray Serve: {_why(ray_serve, error)}; the logs of Ray say more") from error
    finally:
        if deployed:
            _undeploy(ray_serve, whole=address is not None)
        ray.shutdown()  # a cluster that was started here ends with it


def replica(settings: str, source: str) -> Guard:
    """Return the application of one replica, on the node where it runs."""
    serving = Serving.from_json(settings)
    if source:
        mirror = Mirror(source)
        mirror.sync()
        mirror.follow()
        serving = replace(serving, path=str(mirror.path))
    path = Path(serving.path)
    if not path.is_dir() or (not serving.many and stamp(path) is None):
        raise HoldfastError(f"a node has no learner at {path}; every node must see it there, or give a URL")
    return application(serving)


def _ray() -> tuple[Any, Any]:
    try:
        return import_module("ray"), import_module("ray.serve")
    except ModuleNotFoundError as error:  # ray alone lacks what its part `serve` needs
        raise HoldfastError(
            f"--engine ray needs the package {error.name}; install it with: pip install 'holdfast[ray,serve]'"
        ) from error


def _connect(ray: Any, ray_serve: Any, address: str | None, cpus: int) -> None:
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    if address is None:
        connect_ray(ray, None, num_cpus=max(cpus, usable_cpus()))
    else:
        connect_ray(ray, address)
        status = ray_serve.status()
        if status.proxies or status.applications:
            raise HoldfastError(
                f"Ray Serve runs on {address} already, and its address cannot be changed; "
                "stop it with: serve shutdown"
            )


def _deploy(
    ray_serve: Any, serving: Serving, source: str, *, host: str, port: int, replicas: int, most: int | None
) -> None:
    limits = serving.limits
    ray_serve.start(
        proxy_location="EveryNode",
        http_options={
            "host": host,
            "port": port,
            "request_timeout_s": limits.slow + limits.timeout + 5,  # the application answers before that
            "keep_alive_timeout_s": 15,
        },
        logging_config={"log_level": "WARNING", "enable_access_log": False},
    )
    settings = serving.to_json()

    def build() -> Guard:
        return replica(settings, source)

    threads = {name: str(serving.threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    options: dict[str, Any] = {"num_replicas": replicas}
    if most is not None:
        scaling = {"min_replicas": replicas, "max_replicas": most, "target_ongoing_requests": BUSY}
        options = {"autoscaling_config": scaling}
    deployment = ray_serve.deployment(ray_serve.ingress(build)()).options(
        name="replica",
        max_ongoing_requests=limits.connections,  # they wait in a replica, where they are batched
        graceful_shutdown_timeout_s=limits.grace,
        ray_actor_options={"num_cpus": serving.threads, "runtime_env": {"env_vars": threads}},
        **options,
    )
    ray_serve.run(deployment.bind(), name=NAME, route_prefix="/")


def _on_signals(stopping: threading.Event) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        stopping.set()

    for number in (signal.SIGINT, signal.SIGTERM):  # Ray has set handlers of its own
        signal.signal(number, stop)


def _undeploy(ray_serve: Any, *, whole: bool) -> None:
    """Stop the replicas, which finish open requests; with `whole`, then stop Serve."""
    try:
        if NAME in ray_serve.status().applications:
            ray_serve.delete(NAME)
        if whole:
            ray_serve.shutdown()
    except Exception as error:  # the cluster may have gone first
        logging.getLogger("holdfast.serve").error("Ray Serve did not stop: %s", type(error).__name__)


def _why(ray_serve: Any, error: Exception) -> str:
    """Return the reason of an error in one line: what a replica said, or what Ray says."""
    said = [str(error)]
    with suppress(Exception):  # the cluster may have gone
        deployments = ray_serve.status().applications[NAME].deployments
        said += [one.message for one in deployments.values()]
    lines = [line.strip() for text in said for line in text.splitlines() if line.strip()]
    ours = [line.partition("HoldfastError: ")[2] for line in lines if "HoldfastError: " in line]
    return (ours or lines or [type(error).__name__])[-1]

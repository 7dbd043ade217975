"""A service in this process, and one in a process of its own."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi.testclient import TestClient
from helpers.command_line import environment

from holdfast.serve.application import application
from holdfast.serve.server import PatientProtocol, configuration
from holdfast.serve.serving import ServiceLimits, Serving
from holdfast.serve.worker import work

TOKEN = "a-token-of-tests"
WRITER = {"authorization": f"Bearer {TOKEN}"}


@contextmanager
def served(
    path: Path, reports: Path, *, limits: ServiceLimits | None = None, **more: Any
) -> Iterator[TestClient]:
    """Yield a client of a service that runs in this process."""
    serving = Serving(
        path=str(path),
        token=TOKEN,
        reports=str(reports),
        hosts=("localhost",),
        limits=limits or ServiceLimits(poll=0.02, grace=5.0),
        **more,
    )
    with TestClient(application(serving), base_url="http://localhost") as client:
        yield client


@contextmanager
def listening(serving: Serving) -> Iterator[int]:
    """Yield the port of a service that a thread of this process runs with uvicorn."""
    old, PatientProtocol.limits = PatientProtocol.limits, serving.limits
    own = uvicorn.Server(configuration(application(serving), serving.limits))
    with socket.create_server(("127.0.0.1", 0)) as place:
        thread = threading.Thread(target=own.run, args=([place],))
        thread.start()
        try:
            until(lambda: own.started or not thread.is_alive(), 60)
            yield place.getsockname()[1]
        finally:
            own.should_exit = True
            thread.join()
            PatientProtocol.limits = old


@contextmanager
def running(*arguments: str, token: str = TOKEN) -> Iterator[tuple[httpx.Client, subprocess.Popen[str]]]:
    """Yield a client of `holdfast serve` in a process of its own, and the process."""
    command = [
        sys.executable,
        "-m",
        "holdfast.app.main",
        "serve",
        *arguments,
        "--port",
        "0",
        "--threads",
        "1",
    ]
    process = subprocess.Popen(
        command,
        env=environment() | {"HOLDFAST_TOKEN": token},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first.startswith("serving "):
            process.terminate()  # or the rest of what it prints would never end
            raise AssertionError(first + process.stdout.read())
        address = first.split(" at ")[1].strip().partition("#")[0]
        with httpx.Client(base_url=address, timeout=60) as client:
            ready(client)
            yield client, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(120)  # on a busy machine
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def ready(client: httpx.Client) -> None:
    """Wait until a service answers."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if client.get("/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise AssertionError("the service does not answer")


def rows_json(rows: list[tuple[str, str]]) -> dict[str, Any]:
    return {"rows": [{"text": text, "label": label} for text, label in rows]}


def finished(
    client: httpx.Client, job: dict[str, Any], seconds: float = 90, state: str = ""
) -> dict[str, Any]:
    """Wait until a job has ended; return its report."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        report: dict[str, Any] = client.get(f"/v1/jobs/{job['id']}", params={"state": state}).json()
        if report["status"] not in ("waiting", "running"):
            return report
        time.sleep(0.05)
    raise AssertionError(f"the job has not ended: {report}")


def worked(place: Path, kind: str, path: Path, **arguments: Any) -> dict[str, Any]:
    """Do the work of a job's process in this one; return its report."""
    place.mkdir(exist_ok=True)
    report = place / "000001.json"
    report.write_text(json.dumps({"id": "000001", "kind": kind, "status": "waiting", "started": 0.0}))
    work({"kind": kind, "path": str(path), "report": str(report), "arguments": {"model": None, **arguments}})
    found: dict[str, Any] = json.loads(report.read_text())
    return found


def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)

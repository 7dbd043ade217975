"""Run the service: bind, print where it is, start one process or several."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import secrets
import shutil
import signal
import socket
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from types import FrameType
from typing import Any

import h11
import uvicorn
from prometheus_client.multiprocess import mark_process_dead
from typing_extensions import override
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from holdfast.errors import HoldfastError
from holdfast.serve.application import application
from holdfast.serve.guard import Guard
from holdfast.serve.loaded import load, stamp
from holdfast.serve.meters import MULTIPLE
from holdfast.serve.serving import TOKEN, VARIABLE, ServiceLimits, Serving
from holdfast.serve.states import Ready
from holdfast.storage.generations import Store

SHORTEST = 16  # characters of a token
ENDING = (signal.SIGINT, signal.SIGTERM)


class PatientProtocol(H11Protocol):
    """HTTP with a deadline for the head of a request: a client that sends it byte by byte is cut off.

    Connections beyond the limit are closed at once. Those that are open go on, so a client that holds many
    does not silence the others.
    """

    limits = ServiceLimits()
    late: asyncio.TimerHandle | None = None

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            transport.close()
        else:
            self._watch()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Run the deadline while a head is incomplete; between two requests uvicorn's own one runs."""
        begun = self.cycle is None or bool(self.conn.trailing_data[0])
        if self.conn.their_state is not h11.IDLE or not begun:
            self._rest()
        elif self.late is None:
            self.late = self.loop.call_later(self.limits.slow, self._cut)

    def _cut(self) -> None:
        self.transport.close()

    def _rest(self) -> None:
        if self.late is not None:
            self.late.cancel()
            self.late = None

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._rest()
        super().connection_lost(exc)


class Supervisor(Multiprocess):
    """The processes of `--workers`, watched."""

    def __init__(self, config: uvicorn.Config, sockets: list[socket.socket]) -> None:
        super().__init__(config, sockets)
        self._known: set[int | None] = set()

    @override
    def keep_subprocess_alive(self) -> None:
        super().keep_subprocess_alive()
        self.forget_dead()

    def forget_dead(self) -> None:
        """Drop the gauges of workers that have ended. Their counters stay."""
        living = {process.pid for process in self.processes}
        for gone in self._known - living:
            mark_process_dead(gone)  # type: ignore[no-untyped-call]
        self._known = living

    @override
    def terminate_all(self) -> None:
        """Stop listening, then end the workers: what connects later is refused, and not left to wait."""
        for one in self.sockets:
            one.close()
        super().terminate_all()


class _Stopped(BaseException):
    """The process was told to stop."""


@contextmanager
def until_stopped() -> Iterator[None]:
    """Run a block until it ends or the process is told to stop.

    While it serves, uvicorn has signal handlers of its own. When it has ended in order it restores ours and
    sends itself the signal again.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        for one in ENDING:
            signal.signal(one, signal.SIG_IGN)  # what is left to do is short
        raise _Stopped

    before = {one: signal.signal(one, stop) for one in ENDING}
    try:
        with suppress(_Stopped):
            yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def token_from(file: Path | None) -> str:
    """Return the token of a file or of the environment; an empty string if neither is given."""
    if file is not None:
        with file.open("rb") as content:  # may be a pipe
            found, where = content.read(10_000).decode(errors="replace").strip(), str(file)
    else:
        found, where = os.environ.get(TOKEN, "").strip(), TOKEN
        if not found:
            return ""
    if len(found) < SHORTEST or not found.isascii() or not found.isprintable() or " " in found:
        raise HoldfastError(
            f"the token in {where} must be at least {SHORTEST} printable ASCII characters without spaces; "
            "make one with: openssl rand -hex 32"
        )
    return found


def is_local(host: str) -> bool:
    """Return whether a host name or address is this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"


def check_reach(host: str, token: str) -> None:
    """Raise an error if other machines can reach an address and there is no token."""
    if not token and not is_local(host):
        raise HoldfastError(
            f"{host} can be reached from other machines: give a token, with --token-file or {TOKEN}"
        )


def names_of(host: str, allow: tuple[str, ...]) -> tuple[str, ...]:
    """Return the host names that requests may be addressed to; none if they may be any."""
    local = ("localhost", "127.0.0.1", "::1", host) if is_local(host) else ()
    return tuple(name.casefold() for name in (*local, *allow))


def is_many(path: Path) -> bool:
    """Return whether a path is a folder of learners."""
    if stamp(path) is not None or not path.is_dir() or Store(path).on_disk():
        return False  # one learner, though it may have lost the file that names its current generation
    return any(stamp(inner) is not None for inner in path.iterdir() if inner.is_dir())


def bound(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.set_inheritable(True)
        return found
    except OSError as error:
        raise HoldfastError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error


def serve(
    path: Path,
    *,
    source: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    token: str = "",
    workers: int = 1,
    threads: int = 1,
    many: bool = False,
    model: str | None = None,
    allow: tuple[str, ...] = (),
    limits: ServiceLimits | None = None,
    started: Callable[[str, str | None], None] = lambda address, token: None,
) -> None:
    """Serve a learner, or a folder of learners, until the process is told to stop.

    `started` gets the address and, if none was given, the token that was made; that is done only for an
    address of this machine. `source` is the URL of which `path` is a copy, if it is one; the service then
    changes nothing.
    """
    limits = limits or ServiceLimits()
    check_reach(host, token)
    made = not token and not source
    token = token or secrets.token_urlsafe(24)
    many = many or is_many(path)
    ready: Ready = {}
    if not many:  # what is wrong with it is said here, not in a log
        if workers == 1:
            ready[""] = stamp(path), load(path, model, threads=threads)
        else:
            check_loads(path, model)
    listening = bound(host, port)
    port = listening.getsockname()[1]
    reports = tempfile.mkdtemp(prefix="holdfast-")
    serving = Serving(
        path=str(path.resolve()),
        token=token,
        reports=str(Path(reports, "jobs")),
        many=many,
        model=model,
        threads=threads,
        hosts=names_of(host, allow),
        limits=limits,
        read_only=bool(source),
        supervisor=None if workers == 1 else os.getpid(),
    )
    shown = f"[{host}]" if ":" in host else host
    started(f"http://{shown}:{port}/", token if made else None)
    start_logging()
    with until_stopped():
        try:
            if workers == 1:
                PatientProtocol.limits = limits
                config = configuration(application(serving, ready), limits)
                uvicorn.Server(config).run(sockets=[listening])
            else:
                Path(reports, "meters").mkdir()
                os.environ |= {VARIABLE: serving.to_json(), MULTIPLE: str(Path(reports, "meters"))}
                app = "holdfast.serve.server:from_environment"
                Supervisor(configuration(app, limits, workers=workers, factory=True), [listening]).run()
        finally:
            listening.close()
            shutil.rmtree(reports, ignore_errors=True)


def check_loads(path: Path, model: str | None) -> None:
    """Raise an error if a learner cannot be loaded. Another process tries it, and takes its memory along."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as other:
        try:
            wrong = other.submit(what_is_wrong, path, model).result()
        except BrokenProcessPool:
            wrong = f"{path} cannot be loaded: the process that tried was killed; is there enough memory?"
    if wrong:
        raise HoldfastError(wrong)


def what_is_wrong(path: Path, model: str | None) -> str:
    """Return why a learner cannot be loaded; an empty string if it can."""
    try:
        load(path, model)
    except HoldfastError as error:
        return str(error)
    return ""


def start_logging() -> None:
    """Log the service's own lines, and of libraries what is wrong."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)


def configuration(app: Any, limits: ServiceLimits, **more: Any) -> uvicorn.Config:
    """Return how uvicorn serves the application."""
    return uvicorn.Config(
        app,
        http=PatientProtocol,
        ws="none",
        access_log=False,
        server_header=False,
        log_level="error",  # it warns of every bad request
        log_config=None,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=round(limits.grace),
        backlog=1024,
        timeout_worker_healthcheck=120,  # a process that imports torch on a busy machine is silent for long
        **more,
    )


def from_environment() -> Guard:
    """Return the service that the environment describes, for the processes of `--workers`."""
    serving = Serving.from_json(os.environ[VARIABLE])
    PatientProtocol.limits = serving.limits
    start_logging()
    return application(serving)

"""The processes of the service: what they share, and what happens when one of them ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import psutil
import pytest
import uvicorn
from helpers.everyday import rows_of
from helpers.serving import WRITER, listening, ready, rows_json, running, until

from holdfast.runtime.answers import PLAIN
from holdfast.serve import server, states
from holdfast.serve.loaded import load, stamp
from holdfast.serve.meters import MULTIPLE
from holdfast.serve.server import Supervisor, check_loads, until_stopped
from holdfast.serve.serving import ServiceLimits, Serving
from holdfast.serve.states import Happened, States
from holdfast.storage.generations import Store


def test_connections_beyond_the_limit_are_closed_and_open_ones_go_on(made: Path, tmp_path: Path) -> None:
    limits = ServiceLimits(connections=3)
    with listening(Serving(str(made), "t" * 20, str(tmp_path), limits=limits)) as port:
        held = [HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(3)]
        for one in held:
            one.request("GET", "/healthz")
            assert one.getresponse().read() == b'{"status":"ok"}'
        with socket.create_connection(("127.0.0.1", port), timeout=60) as fourth:
            assert fourth.recv(1) == b"", "closed without a word"
        for one in held:
            one.request("GET", "/readyz")
            assert one.getresponse().status == 200
            one.close()

        def let_in() -> bool:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as next_:
                next_.sendall(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
                try:
                    return next_.recv(100).startswith(b"HTTP/1.1 200")
                except ConnectionResetError:
                    return False

        until(let_in, 60)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_block_and_leaves_what_follows_in_peace(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    seen = []
    with until_stopped():
        try:
            signal.raise_signal(number)
            seen.append("went on")
        finally:
            signal.raise_signal(number)
            seen.append("cleaned up")
    assert seen == ["cleaned up"]
    assert signal.getsignal(number) is before


class Told:
    """A process or a socket of a supervisor that notes what happens to it."""

    def __init__(self, pid: int, said: list[str]) -> None:
        self.pid, self.said = pid, said

    def close(self) -> None:
        self.said.append("closed")

    def terminate(self) -> None:
        self.said.append("terminated")

    def is_alive(self, timeout: float) -> bool:
        return True


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # uvicorn would replace the handlers of the tests
    return Supervisor(uvicorn.Config("unused"), [])


def test_the_supervisor_stops_listening_before_its_workers_end(supervisor: Supervisor) -> None:
    said: list[str] = []
    supervisor.sockets = [Told(0, said)]  # type: ignore[list-item]
    supervisor.processes = [Told(1, said), Told(2, said)]  # type: ignore[list-item]
    supervisor.terminate_all()
    assert said == ["closed", "terminated", "terminated"]


def test_the_gauges_of_a_worker_that_ended_are_dropped(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(MULTIPLE, str(tmp_path))
    for pid in (1, 2, 3):
        (tmp_path / f"gauge_livesum_{pid}.db").touch()
        (tmp_path / f"counter_{pid}.db").touch()
    supervisor.processes = [Told(1, []), Told(2, [])]  # type: ignore[list-item]
    supervisor.keep_subprocess_alive()
    supervisor.processes[0] = Told(3, [])  # type: ignore[call-overload]
    supervisor.keep_subprocess_alive()
    assert {path.name for path in tmp_path.iterdir()} == {
        "gauge_livesum_2.db",
        "gauge_livesum_3.db",
        *(f"counter_{pid}.db" for pid in (1, 2, 3)),
    }


def test_the_gauges_follow_the_learners_and_not_only_who_asks_for_them(mine: Path) -> None:
    held: list[list[int]] = []
    waited: list[int] = []

    async def main() -> None:
        happened = Happened(hold=lambda found: held.append(list(found)), wait=waited.append)
        own = States(Serving(str(mine), "token", "unused", limits=ServiceLimits(poll=60)), happened)
        await own.start()
        await own.ask("", ["music0", "mail0"], PLAIN)
        Store(mine).rollback(1)
        await own.refresh(own.loaded[0])
        await own.stop()

    asyncio.run(main())
    assert held == [[2], [1]]
    assert waited == [2, -2]


def test_a_learner_that_is_loaded_already_is_not_loaded_again(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"": (stamp(made), load(made))}
    monkeypatch.setattr(states, "load", None)

    async def main() -> None:
        own = States(Serving(str(made), "token", "unused"), Happened(), given)
        await own.start()
        assert (await own.ask("", ["music0"], PLAIN)).generation == 2
        assert not own.loaded[0].is_due()
        await own.stop()

    asyncio.run(main())
    assert not given, "it can be freed when the next generation takes over"


def test_a_worker_ends_when_its_supervisor_is_gone(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(signal, "raise_signal", raised.append)

    async def main(supervisor: int | None) -> None:
        limits = ServiceLimits(poll=0.001)
        own = States(Serving(str(made), "token", "unused", limits=limits, supervisor=supervisor), Happened())
        watching = asyncio.create_task(own._watch())
        await asyncio.wait([watching], timeout=0.05 if supervisor != 0 else 60)
        watching.cancel()

    asyncio.run(main(None))
    asyncio.run(main(os.getppid()))
    assert not raised
    asyncio.run(main(0))
    assert raised == [signal.SIGTERM]


@pytest.mark.slow
def test_another_process_finds_out_what_is_wrong(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "load", None)  # not in this one
    check_loads(mine, None)
    (mine / "CURRENT").write_text("{")
    with pytest.raises(server.HoldfastError, match="CURRENT is damaged"):
        check_loads(mine, None)


# ---- real processes -----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_service_that_is_stopped_leaves_nothing_behind(
    mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    with running(str(mine), "--grace", "0") as (client, process):
        assert client.post("/v1/learn", json=rows_json(rows_of(2)), headers=WRITER).status_code == 202
        assert list((tmp_path / "temporary").glob("holdfast-*/jobs/state-/*.json"))
        process.send_signal(number)
        assert process.wait(120) == 0
    assert not list((tmp_path / "temporary").glob("holdfast-*"))


@pytest.mark.slow
def test_workers_stop_listening_at_once_and_finish_what_is_open(made: Path) -> None:
    with running(str(made), "--workers", "2", "--slow", "100", "--grace", "100") as (client, process):
        address = ("127.0.0.1", client.base_url.port)
        body = b'{"texts": ["music0"]}'
        with socket.create_connection(address, timeout=60) as open_:
            head = f"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
            more = b"Content-Type: application/json\r\nExpect: 100-continue\r\n\r\n"
            open_.sendall(head.encode() + more)
            assert open_.recv(1000).startswith(b"HTTP/1.1 100"), "a worker has taken it"
            process.send_signal(signal.SIGTERM)

            def refused() -> bool:
                try:
                    socket.create_connection(address, timeout=1).close()
                except ConnectionRefusedError:
                    return True
                except OSError:
                    return False
                return False

            until(refused, 60)
            assert process.poll() is None, "it waits for the open request"
            open_.sendall(body)
            assert open_.recv(100).startswith(b"HTTP/1.1 200")
        assert process.wait(120) == 0


@pytest.mark.slow
def test_workers_end_with_their_supervisor(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # who is killed cleans nothing up
    with running(str(made), "--workers", "2") as (_, process):
        workers = psutil.Process(process.pid).children(recursive=True)
        assert len(workers) >= 2
        process.kill()
        _, alive = psutil.wait_procs(workers, 60)
        for one in alive:
            one.kill()
        assert not alive


@pytest.mark.slow
def test_the_meters_of_workers_survive_the_death_of_one(mine: Path) -> None:
    with running(str(mine), "--workers", "2") as (client, process):

        def meter(name: str) -> float:
            page = client.get("/metrics", headers={"connection": "close"}).text
            return next((float(line.split()[1]) for line in page.splitlines() if line.startswith(name)), -1)

        def serving() -> list[psutil.Process]:
            found = []
            for one in psutil.Process(process.pid).children():
                with suppress(psutil.Error):  # it has just ended
                    if "spawn_main" in " ".join(one.cmdline()):
                        found.append(one)
            return found

        until(lambda: meter("holdfast_loaded_learners ") == 2, 60)
        (first, *_) = known = serving()
        first.kill()
        until(lambda: set(serving()) - set(known), 60)
        ready(client)
        until(lambda: meter("holdfast_loaded_learners ") == 2, 60)
        client.post("/v1/generations/promote", json={"generation": 1}, headers=WRITER)
        until(lambda: meter("holdfast_generation ") == 1, 60)
        client.post("/v1/generations/promote", json={"generation": 2}, headers=WRITER)
        until(lambda: meter("holdfast_generation ") == 2, 60)
        assert meter("holdfast_loaded_learners ") == 2
        assert meter("holdfast_waiting_texts ") == 0

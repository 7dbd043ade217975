"""`holdfast serve` as a command: where it binds, what it refuses, how it ends."""

from __future__ import annotations

import socket
import time
from pathlib import Path

import pytest
from helpers.command_line import refused
from helpers.serving import TOKEN, WRITER, ready, running

from holdfast.errors import HoldfastError
from holdfast.serve.server import is_local, is_many, token_from


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_need_a_token(
    host: str, made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    refused(capsys, "can be reached from other machines: give a token", "serve", str(made), "--host", host)


def test_a_port_in_use_a_foreign_folder_and_a_bad_token_are_one_line(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(capsys, "cannot listen on 127.0.0.1", "serve", str(made), "--port", port)
    (tmp_path / "file").write_text("x")
    refused(capsys, "other files, such as file", "serve", str(tmp_path), "--port", "0")
    refused(capsys, "Not a directory", "serve", str(tmp_path / "file"), "--port", "0")
    refused(capsys, "No such file", "serve", str(made), "--token-file", str(tmp_path / "none"))
    for token in ("short", "spaces in a long token", "ümlaut-ümlaut-ümlaut"):
        monkeypatch.setenv("HOLDFAST_TOKEN", token)
        refused(capsys, "at least 16 printable ASCII", "serve", str(made))


def test_the_token_of_a_file_comes_before_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "b" * 20)
    assert token_from(None) == "b" * 20
    (tmp_path / "token").write_text(f"  {'a' * 20}\n")
    assert token_from(tmp_path / "token") == "a" * 20
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(HoldfastError, match="at least 16"):
        token_from(tmp_path / "empty")
    monkeypatch.delenv("HOLDFAST_TOKEN")
    assert token_from(None) == ""


def test_addresses_of_this_machine_and_folders_of_learners(made: Path, tmp_path: Path) -> None:
    assert all(map(is_local, ("localhost", "127.0.0.1", "127.8.8.8", "::1")))
    assert not any(map(is_local, ("0.0.0.0", "::", "10.0.0.1", "example.org", "")))
    assert is_many(made.parent)
    assert not is_many(made)
    assert not is_many(tmp_path)
    assert not is_many(tmp_path / "none")


@pytest.mark.slow
def test_slow_clients_are_cut_off_while_others_are_served(made: Path) -> None:
    with running(str(made), "--slow", "1") as (client, _):
        address = (client.base_url.host, client.base_url.port)
        starts = {
            "silent": b"",
            "head": b"POST /v1/predict HTTP/1.1\r\nHost: loc",
            "body": b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{",
        }
        sockets = {name: socket.create_connection(address) for name in starts for _ in range(20)}
        for name, data in starts.items():
            sockets[name].sendall(data)
        began = time.monotonic()
        assert client.post("/v1/predict", json={"texts": ["music0"]}).status_code == 200
        assert time.monotonic() - began < 1
        for name, one in sockets.items():
            one.settimeout(10)
            answer = one.recv(1000)
            assert answer == b"" if name != "body" else b" 408 " in answer
        assert client.post("/v1/predict", json={"texts": ["music0"]}).status_code == 200


@pytest.mark.slow
def test_two_workers_answer_watch_and_count_together(mine: Path) -> None:
    with running(str(mine), "--workers", "2") as (client, process):
        ready(client)
        alone = {"connection": "close"}
        body = {"texts": ["music0"]}
        for _ in range(40):
            assert client.post("/v1/predict", json=body, headers=alone).is_success
        page = client.get("/metrics").text
        line = next(
            line
            for line in page.splitlines()
            if line.startswith('holdfast_requests_total{route="/v1/predict"')
        )
        assert float(line.split()[-1]) == 40
        promoted = client.post("/v1/generations/promote", json={"generation": 1}, headers=WRITER)
        assert promoted.json()["current"] == 1
        time.sleep(2)
        seen = {client.post("/v1/predict", json=body, headers=alone).json()["generation"] for _ in range(20)}
        assert seen == {1}
        assert TOKEN not in client.get("/").text
    assert process.returncode is not None

"""The service on Ray Serve: two replicas of one learner, which a lesson taught elsewhere reaches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.command_line import call, refused
from helpers.everyday import rows_of, table
from helpers.serving import WRITER, running, until

from holdfast.learning.learner import Learner
from holdfast.serve.serving import Serving


def test_without_ray_and_with_options_that_do_not_belong_together(
    made: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    on_ray = ("serve", str(made), "--engine", "ray")
    for missing in ("ray", "ray.serve"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, missing, None)
            refused(capsys, r"pip install 'holdfast\[ray,serve\]'", *on_ray)
    refused(capsys, "give a token", *on_ray, "--host", "0.0.0.0")
    refused(capsys, "on Ray, use --replicas", *on_ray, "--workers", "2")
    refused(capsys, "is less than --replicas", *on_ray, "--replicas", "3", "--max-replicas", "2")
    for option in (["--replicas", "2"], ["--max-replicas", "2"], ["--address", "auto"]):
        refused(capsys, "add --engine ray", "serve", str(made), *option)
    refused(capsys, "leave out --many", "serve", "memory://x", "--many")
    refused(capsys, "memory://x holds neither", "serve", "memory://x")


class Asking:
    """Clients that ask without a pause, each request over a connection of its own."""

    def __init__(self, address: httpx.URL, texts: list[str]) -> None:
        self.address, self.texts = address, texts
        self.answers: list[tuple[int, list[str]]] = []
        self.failed: list[str] = []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self._ask) for _ in range(3)]

    def __enter__(self) -> Asking:
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop.set()
        for thread in self.threads:
            thread.join()

    def _ask(self) -> None:
        while not self.stop.is_set():
            try:
                found = httpx.post(self.address.join("/v1/predict"), json={"texts": self.texts}, timeout=60)
            except httpx.HTTPError as error:
                self.failed.append(repr(error))
                continue
            if found.status_code != 200:
                self.failed.append(found.text)
                continue
            value = found.json()
            self.answers.append((value["generation"], [one["label"] for one in value["answers"]]))
            time.sleep(0.01)


@pytest.fixture
def ray_serve() -> Iterator[None]:
    pytest.importorskip("ray.serve", reason="the extra holdfast[ray] is not installed")
    return


@pytest.mark.slow
def test_two_replicas_switch_to_a_new_generation_without_a_failed_or_mixed_answer(
    ray_serve: None, mine: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    rows = [*rows_of(0, "test"), *rows_of(2, "test")]
    texts = [text for text, _ in rows]
    lesson = table(tmp_path / "week2.csv", rows_of(2))
    with running(str(mine), "--engine", "ray", "--replicas", "2") as (client, process):
        every = psutil.Process(process.pid).children(recursive=True)
        assert sum("ServeReplica" in " ".join(one.cmdline()) for one in every) == 2
        assert client.get("/v1/labels").json()["fixed"], "the page offers no teaching"
        assert client.get("/").status_code == client.get("/metrics").status_code == 200
        assert client.get("/v1/jobs").json() == {"jobs": []}
        rejected = client.post("/v1/learn", json={"rows": []}, headers=WRITER)
        assert (rejected.status_code, rejected.headers["allow"]) == (405, "GET")
        assert rejected.json()["error"].startswith("this service answers only; teach the learner where")
        assert client.get("/v1/labels", headers={"host": "elsewhere.example"}).status_code == 421
        with Asking(client.base_url, texts) as asking:
            until(lambda: len(asking.answers) > 50, 120)
            assert call("learn", str(mine), lesson, "--threads", "1") == 0

            def switched() -> bool:
                return len(asking.answers) > 40 and {number for number, _ in asking.answers[-40:]} == {3}

            until(switched, 120)
        assert not asking.failed
        seen = {number: {tuple(labels) for n, labels in asking.answers if n == number} for number in (2, 3)}
        expected = {n: {tuple(Learner.load(mine, n).predict(texts))} for n in (2, 3)}
        assert seen == expected
        assert expected[2] != expected[3]
        assert {number for number, _ in asking.answers} == {2, 3}
    assert process.returncode == 0
    _, alive = psutil.wait_procs(every, timeout=60)
    assert not alive, "nothing of Ray is left"


@pytest.mark.slow
def test_replicas_copy_what_is_at_a_url(
    ray_serve: None, made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.everyday.export import export

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    export(made, tmp_path / "away" / "intents", onnx=True)
    url = f"file://{tmp_path}/away/intents"
    with running(url, "--engine", "ray", "--max-replicas", "2") as (client, process):
        found = client.post("/v1/predict", json={"texts": ["music0 the"]}).json()
        assert found["generation"] == 2
        export(made, tmp_path / "away" / "intents", onnx=True, generation=1, force=True)
        until(lambda: client.get("/v1/labels").json()["generation"] == 1, 120)
    assert process.returncode == 0


def test_a_replica_without_the_directory_does_not_start(made: Path, tmp_path: Path) -> None:
    from holdfast.errors import HoldfastError
    from holdfast.serve.on_ray import replica

    for path, many in ((tmp_path / "none", False), (tmp_path / "none", True), (tmp_path, False)):
        serving = Serving(path=str(path), token="", reports="/dev/null", many=many, read_only=True)
        with pytest.raises(HoldfastError, match="a node has no learner at"):
            replica(serving.to_json(), "")
    serving = Serving(path=str(made), token="", reports="/dev/null", read_only=True)
    assert replica(serving.to_json(), "").serving == serving

"""The service: what it answers, what it refuses, and how a new generation takes over."""

from __future__ import annotations

import logging
import os
import re
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from helpers.command_line import call
from helpers.everyday import rows_of, statistics
from helpers.serving import TOKEN, WRITER, finished, rows_json, running, served, until, worked

from holdfast.data.tasks import Split
from holdfast.everyday import predict
from holdfast.everyday.evaluate import compared
from holdfast.everyday.export import export
from holdfast.learning.learner import Learner
from holdfast.runtime.answers import Asked
from holdfast.serve import server
from holdfast.serve.jobs import Jobs
from holdfast.serve.serving import ServiceLimits
from holdfast.storage.files import locked
from holdfast.storage.generations import Store

TEXTS = ["music0 the", "light1 a light2", "mail0", "stock2 of"]


def tree(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}


# ---- answers ------------------------------------------------------------------------------------------


def test_the_answers_are_those_of_the_learner(client: TestClient, made: Path) -> None:
    learner = Learner.load(made)
    asked = Asked(3, 0.9, 0.4, 0.9)
    body = {"texts": TEXTS, "top": 3, "reject": 0.9, "min_probability": 0.4, "cover": 0.9}
    found = client.post("/v1/predict", json=body).json()
    assert found["generation"] == learner.generation == 2
    for own, one in zip(predict.answers(learner, TEXTS, asked), found["answers"], strict=True):
        assert one["label"] == own.label
        assert one["set"] == own.set
        assert [top["label"] for top in one["top"]] == [label for label, _ in own.top]
        assert one["probability"] == pytest.approx(own.probability, abs=1e-4)
        assert ("why" in one) == (own.label is None)


def test_an_unknown_text_says_why(client: TestClient) -> None:
    body = {"texts": ["in and of to"], "min_probability": 1.0}
    (one,) = client.post("/v1/predict", json=body).json()["answers"]
    assert one["label"] is None
    assert "below 1" in one["why"]
    (one,) = client.post(
        "/v1/predict", json={"texts": [" ".join(["stock0 mail1"] * 40)], "reject": 0.5}
    ).json()["answers"]
    assert one["label"] is None
    assert "farther from every label than 50 %" in one["why"]


def test_labels_generations_and_health(client: TestClient) -> None:
    found = client.get("/v1/labels").json()
    assert found["generation"] == 2
    assert {one["label"]: one["sentences"] for one in found["labels"]} == dict.fromkeys(
        ("light", "music", "mail", "stock"), 12
    )
    kept = client.get("/v1/generations").json()
    assert kept["current"] == 2
    assert [(one["generation"], one["current"], len(one["labels"])) for one in kept["generations"]] == [
        (1, False, 2),
        (2, True, 4),
    ]
    assert [one["made"] for one in kept["generations"]] == ["learn: week0", "learn: week1"]
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready", "learners": 1, "generation": 2}


def test_the_meters_count_and_name_nothing_a_client_sends(client: TestClient) -> None:
    client.post("/v1/predict", json={"texts": ["secret words"]})
    client.get("/secret/path")
    page = client.get("/metrics").text
    assert 'holdfast_requests_total{route="/v1/predict",status="200"}' in page
    assert "holdfast_generation 2.0" in page
    assert "secret" not in page


# ---- refusals -----------------------------------------------------------------------------------------

WRITES: list[tuple[str, str, Any]] = [
    ("POST", "/v1/learn", rows_json([("a", "b")])),
    ("POST", "/v1/correct", rows_json([("a", "music")])),
    ("POST", "/v1/suggest", {"texts": ["a"]}),
    ("POST", "/v1/labels/rename", {"old": "music", "new": "tunes"}),
    ("POST", "/v1/labels/merge", {"labels": ["music", "light"], "into": "home"}),
    ("POST", "/v1/labels/forget", {"label": "music"}),
    ("POST", "/v1/generations/compare?first=1&second=2", rows_json([("a", "music")])),
    ("POST", "/v1/generations/promote", {"generation": 1}),
    ("DELETE", "/v1/jobs/000001", None),
]


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
@pytest.mark.parametrize(
    "shown", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", "é"]
)
def test_nothing_changes_without_the_token(
    client: TestClient, made: Path, method: str, path: str, body: Any, shown: str | None
) -> None:
    before = tree(made)
    headers = {} if shown is None else {"authorization": shown.encode()}
    refused = client.request(method, path, json=body, headers=headers)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert tree(made) == before


def test_every_route_that_writes_needs_the_token(client: TestClient) -> None:
    """The schema says so, and a new route cannot be forgotten: only predictions may be asked without."""
    open_ = set()
    for path, operations in client.get("/openapi.json").json()["paths"].items():
        for method, operation in operations.items():
            if method != "get" and "security" not in operation:
                open_.add(path)
            elif method != "get":
                assert client.request(method, path.replace("{number}", "1")).status_code == 401
    assert open_ == {"/v1/predict"}


def test_a_page_of_another_site_may_not_write_nor_reach_the_service_by_its_own_name(
    client: TestClient,
) -> None:
    body = rows_json([("a", "b")])
    for headers in (
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"origin": "http://["},
    ):
        assert client.post("/v1/learn", json=body, headers=WRITER | headers).status_code == 403
    for host in ("evil.example", "localhost.evil.example:80", "[", ""):
        assert client.get("/v1/labels", headers={"host": host}).status_code == 421


def test_probes_reach_the_service_by_its_address(client: TestClient) -> None:
    for path in ("/healthz", "/readyz", "/metrics"):
        assert client.get(path, headers={"host": "10.1.2.3:8000"}).status_code == 200
        assert client.post(path, headers={"host": "10.1.2.3:8000"}).status_code == 421


@pytest.mark.parametrize("again", ["on", "t", "y", "1", "true", "yes"])
def test_every_way_to_say_again_is_heard(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    given: list[Any] = []

    def start(self: Jobs, name: str, kind: str, path: Path, arguments: Any) -> dict[str, Any]:
        given.append(arguments)
        return {"id": "000001", "kind": kind, "status": "waiting", "started": 0.0}

    monkeypatch.setattr(Jobs, "start", start)
    table, kind = b"utterance,intent\na,b\n", {"content-type": "text/csv"}
    names = {"text_column": "utterance", "label_column": "intent"}
    for more in ({"again": again}, {"again": "off"}, {}):
        assert client.post("/v1/learn", params=names | more, content=table, headers=WRITER | kind).is_success
    rows = rows_json([("a", "b")])
    assert client.post("/v1/learn", params={"again": again}, json=rows, headers=WRITER).is_success
    assert client.post("/v1/learn", json=rows | {"again": True}, headers=WRITER).is_success
    assert [one["again"] for one in given] == [True, False, False, True, True]
    assert given[0]["rows"] == [("a", "b", None)]
    wrong = client.post("/v1/learn", params={"again": "perhaps"}, json=rows, headers=WRITER)
    assert wrong.status_code == 422


def test_a_path_with_a_slash_at_its_end_is_not_redirected(client: TestClient) -> None:
    assert client.get("/v1/labels/", follow_redirects=False).status_code == 404


def test_bad_requests_are_not_logged_by_libraries(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\nx\r\n--b--\r\nmore'
    for body in (form, b"\r\n", b"--b\r\n\x00"):
        kind = {"content-type": "multipart/form-data; boundary=b"}
        assert client.post("/v1/learn", content=body, headers=WRITER | kind).status_code == 422
    assert caplog.text == ""
    config = server.configuration(client.app, ServiceLimits())
    with caplog.at_level(logging.DEBUG):
        config.configure_logging()
    assert not logging.getLogger("uvicorn.error").isEnabledFor(logging.WARNING)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"texts": []}, 422, "texts"),
        ({"texts": [""]}, 422, "text 1 is empty"),
        ({"texts": ["a", "\t "]}, 422, "text 2 is empty"),
        ({"texts": "a"}, 422, "texts"),
        ({"texts": ["a"], "top": 0}, 422, "top"),
        ({"texts": ["a"], "reject": 2}, 422, "reject"),
        ({"texts": ["a"], "strange": 1}, 422, "strange"),
        ({"texts": ["a" * 301]}, 413, "301 characters"),
        ({"texts": ["a"] * 11}, 413, "11 texts"),
        ([], 422, ""),
        (None, 422, ""),
    ],
)
def test_a_wrong_body_is_one_line(made: Path, tmp_path: Path, body: Any, status: int, said: str) -> None:
    with served(made, tmp_path / "jobs", limits=ServiceLimits(characters=300, texts=10)) as client:
        found = client.post("/v1/predict", json=body)
    assert found.status_code == status
    assert said in found.json()["error"]
    assert "\n" not in found.json()["error"]


BROKEN = {
    "empty": b"",
    "open": b"{",
    "surrogate": b'{"texts": ["\\ud800"]}',
    "bytes": b"\xff\xfe",
    "deep": b"[" * 5000,
    "number": b"9" * 5000,
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN)
def test_a_body_that_is_no_json_is_refused(client: TestClient, raw: bytes) -> None:
    for path in ("/v1/predict", "/v1/learn"):
        found = client.post(path, content=raw, headers=WRITER | {"content-type": "application/json"})
        assert found.status_code in (400, 422), path
        assert list(found.json()) == ["error"]
        assert not re.match(r"\d", found.json()["error"]), "no number of a character"


@pytest.mark.parametrize(
    ("kind", "raw", "said"),
    [
        ("text/csv", b"text,label\n", "no rows"),
        ("text/csv", b"a,b\n1,2\n", "no column 'text'"),
        ("text/csv", b'text,label\n"open,1\n', "row"),
        ("text/csv", b"text,label\n\xff,a\n", "UTF-8"),
        ("application/jsonl", b"[1]\n", "not a JSON object"),
        ("application/pdf", b"x", "send application/json"),
        ("multipart/form-data", b"x", "the form cannot be read"),
        ("multipart/form-data; boundary=b", b"--b--\r\n", "holds no file"),
        ("text/csv", b"text,label\na,(unknown)\n", "cannot be a label"),
        ("text/csv", f"text,label\na,{'x' * 201}\n".encode(), "201 characters"),
        ("text/csv", b"text,label\na,\x07\n", "control character"),
    ],
)
def test_a_wrong_file_is_refused_before_a_job_starts(
    client: TestClient, kind: str, raw: bytes, said: str
) -> None:
    found = client.post("/v1/learn", content=raw, headers=WRITER | {"content-type": kind})
    assert found.status_code in (413, 422)
    assert said in found.json()["error"]
    assert client.get("/v1/jobs").json() == {"jobs": []}


def test_a_missing_parameter_is_named_with_its_place(client: TestClient) -> None:
    reply = client.post("/v1/generations/compare?second=2", json={"rows": []}, headers=WRITER)
    assert (reply.status_code, reply.json()["error"]) == (422, "first is missing in the address (?first=...)")


def test_a_file_without_a_header_is_refused_without_a_word_of_it(client: TestClient) -> None:
    raw = b"I lost my card,card\nhello,greeting\n"
    found = client.post("/v1/learn", content=raw, headers=WRITER | {"content-type": "text/csv"})
    assert found.status_code == 422
    assert "no column 'text'" in found.json()["error"]
    assert "card" not in found.text


def test_a_number_that_is_too_long_for_a_file_is_no_job(client: TestClient) -> None:
    assert client.get(f"/v1/jobs/{'9' * 300}").status_code == 404


def test_a_large_body_is_refused_whether_or_not_it_says_its_size(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path / "jobs", limits=ServiceLimits(body=1000, upload=2000)) as client:
        for path, size in (("/v1/predict", 1001), ("/v1/learn", 2001)):
            large = b"x" * size
            assert client.post(path, content=large, headers=WRITER).status_code == 413
            assert client.post(path, content=iter([large]), headers=WRITER).status_code == 413


def test_a_request_that_only_reads_has_no_body(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path / "jobs", limits=ServiceLimits(body=1000, upload=2000)) as client:
        for method, size, status in (
            ("GET", 1, 413),
            ("HEAD", 1, 413),
            ("DELETE", 1001, 413),
            ("GET", 0, 405),
        ):
            for body in (b"x" * size, iter([b"x" * size])):
                sent = client.request(method, "/v1/learn", content=body, headers=WRITER)
                assert sent.status_code == status, (method, size)


def test_all_bodies_together_are_bounded(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path / "jobs", limits=ServiceLimits(reading=1000)) as client:
        for _ in range(3):  # what was held is let go again
            assert client.post("/v1/predict", json={"texts": ["a" * 900]}).status_code == 200
            full = client.post("/v1/predict", json={"texts": ["a" * 1000]})
            assert (full.status_code, full.headers["retry-after"]) == (429, "1")


def test_an_error_does_not_say_where_the_learner_is(mine: Path, tmp_path: Path) -> None:
    with served(mine, tmp_path / "jobs", limits=ServiceLimits(poll=60)) as client:
        with locked(mine):
            busy = client.post("/v1/generations/promote", json={"generation": 1}, headers=WRITER)
        (mine / "CURRENT").write_text("{")
        damaged = client.get("/v1/generations")
    assert busy.status_code == 409
    assert damaged.status_code == 503
    for answer in (busy, damaged):
        assert "/" not in answer.json()["error"]


def test_a_full_queue_says_when_to_come_back(made: Path, tmp_path: Path) -> None:
    with served(made, tmp_path / "jobs", limits=ServiceLimits(queue=3)) as client:
        assert client.post("/v1/predict", json={"texts": ["a"] * 3}).status_code == 200
        full = client.post("/v1/predict", json={"texts": ["a"] * 4})
    assert full.status_code == 429
    assert full.headers["retry-after"] == "1"


def test_answers_carry_headers_that_bind_the_page(client: TestClient) -> None:
    for path in ("/", "/docs", "/v1/labels", "/nowhere"):
        headers = client.get(path).headers
        assert "unsafe-inline" not in headers["content-security-policy"]
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert headers["x-content-type-options"] == "nosniff"


def test_a_learner_without_labels_can_be_served_and_says_so(tmp_path: Path) -> None:
    with served(tmp_path / "new", tmp_path / "jobs") as client:
        refused = client.post("/v1/predict", json={"texts": ["a"]})
        assert refused.status_code == 422
        assert "no labels yet" in refused.json()["error"]
        assert client.get("/v1/labels").json() == {"generation": 0, "labels": [], "fixed": False}
        assert client.get("/readyz").status_code == 200
    assert not (tmp_path / "new").exists()


# ---- generations --------------------------------------------------------------------------------------


def test_promoting_swaps_the_generation_that_answers(mine: Path, tmp_path: Path) -> None:
    with served(mine, tmp_path / "jobs") as client:
        for number, labels in ((1, 2), (2, 4)):
            listed = client.post("/v1/generations/promote", json={"generation": number}, headers=WRITER)
            assert listed.json()["current"] == number
            found = client.post("/v1/predict", json={"texts": TEXTS, "top": 50}).json()
            assert found["generation"] == number
            assert len(found["answers"][0]["top"]) == labels
        refused = client.post("/v1/generations/promote", json={"generation": 9}, headers=WRITER)
        assert refused.status_code == 422
        assert "generation 9" in refused.json()["error"]


def test_a_generation_of_another_process_takes_over_while_answers_go_on(mine: Path, tmp_path: Path) -> None:
    """Every answer knows exactly the labels of the generation that it names."""
    seen: dict[int, set[frozenset[str]]] = {}
    wrong: list[int] = []
    stop = threading.Event()

    with served(mine, tmp_path / "jobs") as client:

        def ask() -> None:
            while not stop.is_set():
                reply = client.post("/v1/predict", json={"texts": TEXTS, "top": 50})
                if reply.status_code != 200:
                    wrong.append(reply.status_code)
                    continue
                found = reply.json()
                for one in found["answers"]:
                    own = frozenset(top["label"] for top in one["top"])
                    seen.setdefault(found["generation"], set()).add(own)

        askers = [threading.Thread(target=ask) for _ in range(4)]
        for asker in askers:
            asker.start()
        done = worked(tmp_path / "job", "learn", mine, name="new", rows=rows_of(2), again=False)
        until(lambda: 3 in seen)
        stop.set()
        for asker in askers:
            asker.join()
    assert done["status"] == "done"
    assert not wrong
    old = frozenset(("light", "music", "mail", "stock"))
    assert seen == {2: {old}, 3: {old | {"food", "train"}}}


def test_a_damaged_generation_is_not_loaded_and_the_old_one_goes_on(mine: Path, tmp_path: Path) -> None:
    with served(mine, tmp_path / "jobs") as client:
        shutil.copytree(mine / "generation-000001", mine / "generation-000003")
        state = mine / "generation-000003" / "state.safetensors"
        state.write_bytes(state.read_bytes()[:-1] + b"x")
        Store(mine)._point(3, [1, 2, 3])
        until(lambda: "problem" in client.get("/readyz").json())
        assert client.post("/v1/predict", json={"texts": TEXTS}).json()["generation"] == 2
        assert str(mine) not in client.get("/readyz").text
        client.post("/v1/generations/promote", json={"generation": 1}, headers=WRITER)
        assert client.get("/readyz").json() == {"status": "ready", "learners": 1, "generation": 1}


# ---- jobs ---------------------------------------------------------------------------------------------


def test_a_job_learns_rows_and_its_report_holds_no_text(mine: Path, tmp_path: Path) -> None:
    rows = [*rows_of(2), ("private words", "food"), ("private words", "train")]
    report = worked(tmp_path / "job", "learn", mine, name="week", rows=rows, again=False)
    assert report["status"] == "done"
    assert report["result"]["new"] == ["train", "food"]
    assert report["result"]["generation"] == 3
    assert any("more than one label: 1" in note for note in report["notes"])
    assert "private words" not in str(report)
    again = worked(tmp_path / "job", "learn", mine, name="week", rows=rows, again=False)
    assert again["result"]["already"]
    assert Store(mine).current == 3


def test_a_job_forgets_a_label_and_says_what_remains(mine: Path, tmp_path: Path) -> None:
    report = worked(tmp_path / "job", "forget", mine, label="music", purge=True)
    assert report["status"] == "done"
    assert Store(mine).generations == [3]
    assert Learner.load(mine).classes_ == ["light", "mail", "stock"]


def test_jobs_that_correct_rows_and_labels(mine: Path, tmp_path: Path) -> None:
    place, rows = tmp_path / "job", rows_of(1)[:2]
    wrong = [(text, "music") for text, _ in rows]
    assert worked(place, "learn", mine, name="slip", rows=wrong, again=False)["status"] == "done"
    report = worked(place, "correct", mine, rows=wrong, to=None, again=False)
    assert (report["result"]["generation"], report["result"]["sentences"]) == (4, 2)
    again = worked(place, "correct", mine, rows=wrong, to=None, again=False)
    assert again["result"]["done_before"]
    assert worked(place, "rename", mine, old="music", new="tunes")["result"]["generation"] == 5
    merged = worked(place, "merge", mine, labels=["tunes", "light"], into="home")
    assert set(merged["result"]["gone"]) == {"light", "tunes"}
    learner = Learner.load(mine)
    counts = dict(zip(learner.classes_, learner.model.head.past.counts.tolist(), strict=True))
    assert counts == {"home": 24, "mail": 12, "stock": 12}


@pytest.mark.parametrize("how", ["relabel", pytest.param("remove", marks=pytest.mark.slow)])
def test_a_wrong_row_is_corrected_as_by_the_command_and_in_python(
    how: str, mine: Path, tmp_path: Path
) -> None:
    """The service, the command line and a learner end in the same bytes of statistics."""
    text, label = rows_of(0)[0]
    shell, python, before = tmp_path / "shell", tmp_path / "python", statistics(mine)
    for place in (shell, python):
        shutil.copytree(mine, place)
    to = {"to": "right"} if how == "relabel" else {}
    with served(mine, tmp_path / "jobs") as client:
        job = client.post("/v1/correct", json=rows_json([(text, label)]) | to, headers=WRITER).json()
        report = finished(client, job)
    assert report["status"] == "done", report
    options = ["--to", "right"] if how == "relabel" else []
    assert call(how, str(shell), "--text", text, "--label", label, *options) == 0
    learner = Learner.load(python)
    if how == "relabel":
        learner.relabel([text], [label], "right")
    else:
        learner.remove([text], [label])
    learner.save(python)
    expected = statistics(mine)
    assert expected != before
    assert statistics(shell) == expected
    assert statistics(python) == expected


def test_a_job_compares_two_generations_by_the_places_of_rows(mine: Path, tmp_path: Path) -> None:
    rows = [*((text, label, None) for text, label in rows_of(1, "test")), ("music0 music1", "music", None)]
    found = worked(tmp_path / "job", "compare", mine, rows=rows, first=1, second=2)["result"]
    first, second = Learner.load(mine, 1), Learner.load(mine, 2)
    texts, gold = [row[0] for row in rows], [row[1] for row in rows]
    old, new = first.predict(texts), second.predict(texts)
    assert found["changed"] == [[i, gold[i], old[i], new[i]] for i in range(len(rows)) if old[i] != new[i]]
    assert found["better"] == sum(n == g != o for o, n, g in zip(old, new, gold, strict=True)) > 0
    assert found["macro_f1"] == [pytest.approx(one.score(texts, gold)) for one in (first, second)]
    assert Store(mine).current == 2
    answer = compared(first, second, Split(tuple(texts), tuple(gold))).answer(20)
    assert found == {"generations": [1, 2], **answer, "changed": found["changed"]}, "as the command answers"


def test_a_job_suggests_texts_by_their_places(mine: Path, tmp_path: Path) -> None:
    texts = [text for text, _ in [*rows_of(2), *rows_of(0)]]
    report = worked(tmp_path / "job", "suggest", mine, texts=texts, n=5)
    found = report["result"]["suggestions"]
    assert len(found) == 5
    assert all(
        0 <= one["place"] < len(texts) and one["label"] in Learner.load(mine).classes_ for one in found
    )
    assert not any(text in str(report) for text in texts)


@pytest.mark.parametrize("onnx", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_an_exported_artefact_answers_and_cannot_change(
    mine: Path, one_layer: str, tmp_path: Path, onnx: bool
) -> None:
    export(mine, tmp_path / "exported", onnx=onnx)
    learner = Learner.load(mine)
    with served(tmp_path / "exported", tmp_path / "jobs", model=None if onnx else one_layer) as client:
        found = client.post("/v1/predict", json={"texts": TEXTS, "top": 4}).json()
        assert found["generation"] == 2
        assert [one["label"] for one in found["answers"]] == learner.predict(TEXTS)
        listed = client.get("/v1/labels").json()
        assert listed["fixed"]
        assert [one["label"] for one in listed["labels"]] == learner.classes_
        for method, path, body in WRITES:
            if method == "POST":
                refused = client.request(method, path, json=body, headers=WRITER)
                assert refused.status_code in (409, 422), path
        assert client.post("/v1/learn", json=rows_json([("a", "b")]), headers=WRITER).status_code == 409
        assert client.get("/v1/jobs").json() == {"jobs": []}


def test_a_folder_of_learners_answers_by_name_and_evicts_by_use(
    mine: Path, one_layer: str, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    for name in ("one", "two", "three"):
        shutil.copytree(mine, folder / name)
    shutil.copytree(mine, folder / ".hidden")
    Store(folder / "two").rollback(1)
    limits = ServiceLimits(loaded=2, poll=0.02)
    with served(folder, tmp_path / "jobs", limits=limits, many=True, model=one_layer) as client:
        assert client.get("/v1/states").json() == ["one", "three", "two"]

        def ask(name: str) -> Any:
            return client.post("/v1/predict", params={"state": name}, json={"texts": TEXTS, "top": 9})

        assert {name: ask(name).json()["generation"] for name in ("one", "two", "three")} == {
            "one": 2,
            "two": 1,
            "three": 2,
        }
        assert "holdfast_evictions_total 1.0" in client.get("/metrics").text
        assert client.get("/readyz").json()["learners"] == 2
        assert len(ask("one").json()["answers"][0]["top"]) == 4
        for wrong in ("", "four", "..", "../many/one", ".hidden", "one/", "a" * 101, "é"):
            assert ask(wrong).status_code in (404, 422), wrong
        moved = client.post(
            "/v1/generations/promote", params={"state": "one"}, json={"generation": 1}, headers=WRITER
        )
        assert moved.json()["current"] == 1
        assert ask("one").json()["generation"] == 1
        assert Store(folder / "three").current == 2
        shutil.rmtree(folder / "three" / "generation-000002")
        client.post("/v1/predict", params={"state": "two"}, json={"texts": TEXTS})
        broken = ask("three")
        assert broken.status_code == 503
        assert str(folder) not in broken.text


def test_a_job_that_fails_says_why_in_one_line(mine: Path, tmp_path: Path) -> None:
    report = worked(tmp_path / "job", "forget", mine, label="musik", purge=False)
    assert report["status"] == "failed"
    assert "did you mean 'music'" in report["error"]
    assert Store(mine).current == 2


@pytest.mark.slow
def test_jobs_in_their_own_processes(mine: Path, tmp_path: Path) -> None:
    """Learn, forget, a file, a kill: over HTTP, with the real processes."""
    with running(str(mine)) as (client, process):
        assert client.post("/v1/learn", json=rows_json(rows_of(2))).status_code == 401
        client.headers.update(WRITER)
        first = client.post("/v1/learn", json=rows_json(rows_of(2)))
        assert first.status_code == 202
        second = client.post("/v1/labels/forget", json={"label": "mail"})
        assert finished(client, second.json())["result"]["generation"] == 4
        assert finished(client, first.json())["result"]["generation"] == 3
        until(lambda: client.get("/readyz").json()["generation"] == 4)
        labels = {one["label"] for one in client.get("/v1/labels").json()["labels"]}
        assert labels == {"light", "music", "stock", "food", "train"}

        table = "text,label\nmail0 the,mail\nmail1 a,mail\n"
        third = client.post("/v1/learn", files={"file": ("mails.csv", table)})
        assert finished(client, third.json())["result"]["new"] == ["mail"]

        before = tree(mine)
        fourth = client.post("/v1/learn", json=rows_json(rows_of(1))).json()
        until(lambda: "pid" in client.get(f"/v1/jobs/{fourth['id']}").json(), 30)
        os.kill(client.get(f"/v1/jobs/{fourth['id']}").json()["pid"], signal.SIGKILL)
        report = finished(client, fourth)
        assert report["status"] == "stopped"
        after = {name: data for name, data in tree(mine).items() if not name.startswith(".trials")}
        assert after == before
        assert client.post("/v1/predict", json={"texts": TEXTS}).json()["generation"] == 5
    assert process.returncode in (0, -15)

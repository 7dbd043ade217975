"""Copies of URLs: whole generations only, whatever is replaced, cut off or forged at the other end."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from helpers import faults
from helpers.artefacts import changed, state_of
from helpers.everyday import rows_of
from helpers.serving import WRITER, running, served, until

from holdfast.errors import HoldfastError
from holdfast.everyday.export import export
from holdfast.learning.learner import Learner
from holdfast.runtime import Classifier
from holdfast.runtime.artefact import MANIFEST, SHARED
from holdfast.serve import mirror as mirroring
from holdfast.serve.mirror import Mirror, is_url
from holdfast.storage.files import Busy, locked, sealed
from holdfast.storage.generations import FILE, POINTER, Store

Put = Callable[[Path], str]


@pytest.fixture(params=["file", "memory"])
def put(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Put]:
    """Return a function that puts a directory at a URL, in place of what was there, and returns the URL."""
    name = uuid.uuid4().hex
    url = f"memory://{name}" if request.param == "memory" else f"file://{tmp_path}/{name}"
    files, root = fsspec.core.url_to_fs(url)

    def place(directory: Path) -> str:
        if files.exists(root):
            files.rm(root, recursive=True)
        for path in (one for one in directory.rglob("*") if one.is_file()):
            target = f"{root}/{path.relative_to(directory)}"
            files.makedirs(target.rpartition("/")[0], exist_ok=True)
            files.pipe_file(target, path.read_bytes())
        return f"{url}/learner"

    yield place
    if files.exists(root):
        files.rm(root, recursive=True)


def world(tmp_path: Path, state: Path) -> Path:
    """Return a directory that holds a copy of a state, called learner."""
    shutil.copytree(state, tmp_path / "world" / "learner", dirs_exist_ok=True)
    return tmp_path / "world"


def loaded(path: Path, model: str) -> Learner:
    return Learner.load(path, model=model)  # the encoder of these learners is a folder, which is not copied


def taught_again(state: Path, model: str) -> int:
    learner = loaded(state, model)
    learner.learn(*zip(*rows_of(2), strict=True))
    return learner.save(state)


def test_a_learner_is_copied_by_generation(put: Put, made: Path, one_layer: str, tmp_path: Path) -> None:
    here = world(tmp_path, made)
    mirror = Mirror(put(here), tmp_path / "copies")
    assert mirror.sync()
    assert not mirror.sync()
    copy = loaded(mirror.path, one_layer)
    assert copy.generation == 2
    assert copy.predict(["music0 the"]) == Learner.load(made).predict(["music0 the"])
    number = taught_again(here / "learner", one_layer)
    put(here)
    assert mirror.sync()
    assert Store(mirror.path).generations == Store(mirror.path).on_disk() == [number] == [3]
    Store(here / "learner").rollback(1)
    put(here)
    assert mirror.sync()
    assert loaded(mirror.path, one_layer).generation == 1
    assert not mirror.sync()


def test_another_learner_at_the_same_url(put: Put, made: Path, one_layer: str, tmp_path: Path) -> None:
    here = world(tmp_path, made)
    mirror = Mirror(put(here), tmp_path / "copies")
    mirror.sync()
    shutil.rmtree(here)
    other = state_of(one_layer, here / "learner", "slda")
    Learner.load(other).save(other)
    assert Store(other).current == 2
    put(here)
    assert mirror.sync(), "its generation has the same number"
    assert type(loaded(mirror.path, one_layer).method).__name__ == "SLDA"
    shutil.rmtree(here)
    export(made, here / "learner", onnx=True)
    put(here)
    assert mirror.sync()
    assert Classifier(mirror.path).generation == 2
    assert not (mirror.path / POINTER).exists()
    shutil.rmtree(here)
    put(world(tmp_path, made))
    assert mirror.sync()
    assert not (mirror.path / MANIFEST).exists()
    assert loaded(mirror.path, one_layer).generation == 2


@pytest.mark.parametrize("share", [False, True])
def test_an_artefact_is_copied_with_what_it_shares(share: bool, put: Put, made: Path, tmp_path: Path) -> None:
    here = tmp_path / "world"
    export(made, here / "learner", onnx=True, share=share, generation=1)
    mirror = Mirror(put(here), tmp_path / "copies")
    assert mirror.sync()
    assert not mirror.sync()
    assert Classifier(mirror.path).generation == 1
    assert (mirror.home / SHARED).is_dir()
    kept = {file: file.stat().st_ino for file in (mirror.home / SHARED).iterdir()}
    assert bool(kept) == share
    export(made, here / "learner", onnx=True, share=share, force=True)
    put(here)
    assert mirror.sync()
    assert Classifier(mirror.path).generation == 2
    assert len(list(mirror.path.glob("*.onnx"))) == 1, "what the older one had is gone"
    assert {file: file.stat().st_ino for file in kept} == kept, "the encoder is not copied again"


class Cut(Exception):
    """The connection was lost."""


def test_a_lost_connection_changes_nothing(
    put: Put, made: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = world(tmp_path, made)
    Store(here / "learner").rollback(1)
    mirror = Mirror(put(here), tmp_path / "copies")
    mirror.sync()
    Store(here / "learner").rollback(2)
    put(here)
    monkeypatch.setattr(mirroring, "PART", 1000)
    with monkeypatch.context() as patch:
        patch.setattr(mirror, "files", Failing(mirror.files, cut=3))
        with pytest.raises(HoldfastError, match=r"state.safetensors cannot be read \(Cut\)"):
            mirror.sync()
    assert loaded(mirror.path, one_layer).generation == 1
    assert sorted(path.name for path in mirror.home.iterdir()) == [".lock", "learner"]
    assert mirror.sync()
    assert loaded(mirror.path, one_layer).generation == 2


class Failing:
    """A file system that loses the connection after some parts of a large file."""

    def __init__(self, files: Any, cut: int) -> None:
        self.files, self.cut = files, cut

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)

    def open(self, path: str, mode: str) -> Any:
        opened = self.files.open(path, mode)
        return Losing(opened, self.cut) if path.endswith(FILE) else opened


class Losing:
    def __init__(self, file: Any, cut: int) -> None:
        self.file, self.cut = file, cut

    def __enter__(self) -> Losing:
        return self

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def read(self, size: int) -> Any:
        self.cut -= 1
        if self.cut < 0:
            raise Cut("secret")
        return self.file.read(size)


@pytest.mark.parametrize("kind", ["learner", "artefact"])
def test_a_killed_copy_leaves_the_old_or_the_new_one(
    kind: str, made: Path, one_layer: str, tmp_path: Path
) -> None:
    here, copies = tmp_path / "world", tmp_path / "copies"
    if kind == "learner":
        Store(world(tmp_path, made) / "learner").rollback(1)
    else:
        export(made, here / "learner", onnx=True, generation=1)
    url = f"file://{here}/learner"
    Mirror(url, copies).sync()
    if kind == "learner":
        Store(here / "learner").rollback(2)
    else:
        export(made, here / "learner", onnx=True, force=True)
    shutil.copytree(copies, tmp_path / "before")

    def again() -> int:
        Mirror(url, copies).sync()
        return 0

    def answering() -> int:
        path = Mirror(url, copies).path
        return loaded(path, one_layer).generation if kind == "learner" else Classifier(path).generation

    steps = faults.run(again, copies).steps
    assert len(steps) > 8
    assert answering() == 2
    seen = set()
    for step in range(0, len(steps), 2):
        shutil.rmtree(copies)
        shutil.copytree(tmp_path / "before", copies)
        assert faults.run(again, copies, fail_at=step).code == faults.KILLED
        seen.add(answering())
        assert faults.run(again, copies).code == 0
        assert answering() == 2
        (home,) = copies.iterdir()
        assert {path.name for path in home.iterdir()} <= {".lock", "learner", SHARED}
    assert seen == {1, 2}


def test_names_that_lead_elsewhere_are_refused(put: Put, made: Path, one_layer: str, tmp_path: Path) -> None:
    here = tmp_path / "world"
    export(made, here / "learner", onnx=True)
    manifest = json.loads((here / "learner" / MANIFEST).read_text())
    (graph, note), *_ = manifest["files"].items()
    for name in ("../../escaped.onnx", "/tmp/escaped.onnx", "a/b.onnx", "..", f"../{graph}"):
        changed(here / "learner", files={**manifest["files"], name: note})
        mirror = Mirror(put(here), tmp_path / "copies")
        with pytest.raises(HoldfastError, match="has an invalid name, size or hash"):
            mirror.sync()
        assert not list(mirror.path.iterdir())
    assert not list(tmp_path.rglob("escaped*"))
    changed(here / "learner", files={graph: note | {"bytes": 10**12}})
    with pytest.raises(HoldfastError, match=f"the artefact {put(here)} cannot be used: its files have more"):
        Mirror(put(here), tmp_path / "copies").sync()


@pytest.mark.parametrize(
    "pointer",
    [
        b"",
        b"{}",
        b"\xff",
        b"[" * 5000,
        json.dumps({"current": "../../x", "generations": ["../../x"]}).encode(),
        json.dumps({"current": 2, "generations": [1]}).encode(),
        sealed({"current": 2, "generations": [2]}).replace(b"2", b"1", 1),
    ],
)
def test_a_forged_pointer_is_refused(
    pointer: bytes, put: Put, made: Path, one_layer: str, tmp_path: Path
) -> None:
    here = world(tmp_path, made)
    (here / "learner" / POINTER).write_bytes(pointer)
    mirror = Mirror(put(here), tmp_path / "copies")
    with pytest.raises(HoldfastError, match="CURRENT is damaged"):
        mirror.sync()
    assert not list(mirror.path.iterdir())


def test_damaged_and_missing_files_are_refused(put: Put, made: Path, one_layer: str, tmp_path: Path) -> None:
    here = world(tmp_path, made)
    folder = here / "learner" / "generation-000002"
    whole = (folder / FILE).read_bytes()
    for data in (whole[:-1], whole + b"x", b"x" * len(whole)):
        (folder / FILE).write_bytes(data)
        with pytest.raises(HoldfastError, match="is damaged, or was replaced"):
            Mirror(put(here), tmp_path / "copies").sync()
    (folder / FILE).unlink()
    with pytest.raises(HoldfastError, match="cannot be read"):
        Mirror(put(here), tmp_path / "copies").sync()
    for found in ({}, {"files": {FILE: {"bytes": -1, "sha256": "0" * 64}}}, {"files": {FILE: 1}}, []):
        (folder / MANIFEST).write_text(json.dumps(found))
        with pytest.raises(HoldfastError, match=r"manifest.json is damaged"):
            Mirror(put(here), tmp_path / "copies").sync()
    (folder / MANIFEST).unlink()
    with pytest.raises(HoldfastError, match="has no generation-000002"):
        Mirror(put(here), tmp_path / "copies").sync()
    shutil.rmtree(here / "learner")
    (here / "learner").mkdir()
    (here / "learner" / "x").touch()
    with pytest.raises(HoldfastError, match="holds neither a learner nor an exported artefact"):
        Mirror(put(here), tmp_path / "copies").sync()


def test_what_is_no_url_and_what_nobody_can_open(tmp_path: Path) -> None:
    assert is_url("s3://bucket/intents")
    assert not is_url("intents")
    with pytest.raises(HoldfastError, match="nosuch://x cannot be opened: Protocol not known"):
        Mirror("nosuch://x", tmp_path)
    with pytest.raises(HoldfastError, match="nosuch://host/x cannot") as refused:
        Mirror("nosuch://me:secret@host/x", tmp_path)
    assert "secret" not in str(refused.value)


def test_only_one_process_copies(made: Path, tmp_path: Path) -> None:
    url = f"file://{world(tmp_path, made)}/learner"
    mirror = Mirror(url, tmp_path / "copies")
    with locked(mirror.home), pytest.raises(Busy):
        Mirror(url, tmp_path / "copies").sync(0)
    assert mirror.sync(0)


def test_a_service_follows_a_url_and_changes_nothing(
    put: Put, made: Path, one_layer: str, tmp_path: Path
) -> None:
    here = world(tmp_path, made)
    mirror = Mirror(put(here), tmp_path / "copies")
    mirror.sync()
    mirror.follow(0.02)
    with served(mirror.path, tmp_path / "jobs", model=one_layer, read_only=True) as client:
        before = client.post("/v1/predict", json={"texts": ["music0"]}).json()
        assert before["generation"] == 2
        taught_again(here / "learner", one_layer)
        put(here)
        until(lambda: client.post("/v1/predict", json={"texts": ["music0"]}).json()["generation"] == 3)
        assert client.get("/v1/labels").json()["fixed"]
        for headers in ({}, WRITER):
            for path in ("learn", "correct", "suggest", "labels/forget", "generations/promote", "unknown"):
                rejected = client.post(f"/v1/{path}", json={}, headers=headers)
                assert rejected.status_code == 405
                assert rejected.json()["error"].startswith("this service answers only; teach the learner")
            assert client.delete("/v1/jobs/000001", headers=headers).status_code == 405
        assert Store(mirror.path).current == 3


@pytest.mark.slow
def test_the_command_serves_a_url(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    away = tmp_path / "away" / "learner"
    export(made, away, onnx=True)
    with running(f"file://{away}") as (client, _):
        assert client.get("/readyz").json()["generation"] == 2
        rejected = client.post("/v1/generations/promote", json={"generation": 1}, headers=WRITER)
        assert (rejected.status_code, rejected.headers["allow"]) == (405, "GET")
        export(made, away, onnx=True, generation=1, force=True)
        until(lambda: client.get("/readyz").json()["generation"] == 1, 60)
    assert list((tmp_path / "cache" / "mirrors").iterdir())

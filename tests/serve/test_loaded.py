"""What the service loads, and what it leaves alone: ONNX artefacts need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command_line import environment

from holdfast.everyday.export import export
from holdfast.serve import loaded
from holdfast.serve.loaded import load

ASK = """
import sys
from fastapi.testclient import TestClient
import holdfast.app.main, holdfast.app.serve_commands, holdfast.serve.server
from holdfast.serve.application import application
from holdfast.serve.serving import Serving

many = sys.argv[2] == "many"
serving = Serving(path=sys.argv[1], token="t" * 20, reports=sys.argv[1] + "/jobs", many=many)
state = {"state": "exported"} if many else {}
with TestClient(application(serving)) as client:
    asked = client.post("/v1/predict", params=state, json={"texts": ["music0 the"], "top": 2})
    assert asked.json()["generation"] == 2, asked.text
    for path in ("/v1/labels", "/v1/generations", "/v1/states", "/v1/jobs", "/readyz", "/metrics", "/"):
        assert client.get(path, params=state).status_code == 200, path
print("torch" in sys.modules)
"""


@pytest.fixture(scope="module")
def exported(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an artefact of ONNX graphs."""
    folder = tmp_path_factory.mktemp("artefacts")
    export(made, folder / "exported", onnx=True)
    return folder


@pytest.mark.parametrize("many", ["many", "one"])
def test_onnx_artefacts_are_served_without_torch(exported: Path, many: str) -> None:
    path = exported if many == "many" else exported / "exported"
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(path), many], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "False", "torch was imported"


def test_an_artefact_gets_the_threads_of_the_service(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []

    class Noted(loaded.Classifier):
        def __init__(self, directory: Path, *, threads: int | None = None) -> None:
            given.append(threads)
            super().__init__(directory, threads=threads)

    monkeypatch.setattr(loaded, "Classifier", Noted)
    assert load(exported / "exported", threads=3).fixed
    assert given == [3]

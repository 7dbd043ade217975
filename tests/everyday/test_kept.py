"""An artefact that is kept with its generation, and `predict`, which answers from it while it is current."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import call, environment, refused
from helpers.everyday import rows_of, table

from holdfast.app import export_commands
from holdfast.everyday.export import export
from holdfast.learning.learner import Learner
from holdfast.runtime.kept import kept_artefact, kept_path
from holdfast.storage.generations import POINTER, Store


@pytest.fixture
def kept(mine: Path) -> Path:
    """A learner whose current generation has been exported."""
    assert export(mine, onnx=True).directory == kept_path(mine, 2)
    return mine


@pytest.mark.slow
def test_predict_answers_from_it_without_torch(kept: Path, made: Path, tmp_path: Path) -> None:
    questions = table(tmp_path / "questions.csv", [(text, "?") for text, _ in rows_of(0, "test")])
    program = (
        "import sys; from holdfast.app.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted({'torch', 'transformers', 'scipy'} & set(sys.modules)), file=sys.stderr)"
    )
    found = []
    for state in (kept, made):
        command = ["predict", str(state), "--file", questions, "--format", "jsonl", "--reject", "0.9"]
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            env=environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stderr.strip() == ("[]" if state is kept else "['scipy', 'torch', 'transformers']")
        found.append([json.loads(line) for line in done.stdout.splitlines()])
    for its, ours in zip(*found, strict=True):
        assert (its["text"], its["label"]) == (ours["text"], ours["label"])
        assert its["probability"] == pytest.approx(ours["probability"], abs=1e-4)


def test_it_is_found_for_its_own_generation_only(kept: Path, tmp_path: Path) -> None:
    assert kept_artefact(kept) == kept_path(kept, 2)
    Store(kept).rollback(1)
    assert kept_artefact(kept) is None
    Store(kept).rollback(2)
    assert kept_artefact(kept) is not None
    learner = Learner.load(kept)
    learner.learn(*zip(*rows_of(2), strict=True))
    learner.save(kept)
    assert kept_artefact(kept) is None, "a lesson has made another generation current"
    learner.save(kept)
    Store(kept, keep=1).commit(*_rest(kept))
    assert not kept_path(kept, 2).exists(), "it goes with its generation"
    moved = tmp_path / "moved"
    shutil.copytree(kept, moved)
    assert export(moved, onnx=True).generation == Store(moved).current
    assert kept_artefact(moved) is not None
    for damage in ("{}", "[", '{"current": 9}', "\0"):
        (moved / POINTER).write_text(damage)
        assert kept_artefact(moved) is None


def _rest(path: Path) -> tuple[dict, dict]:  # type: ignore[type-arg]
    found = Store(path).load()
    return found.tensors, found.sections


def test_a_state_stays_sound_with_it(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not any(Store(kept).verify().values())
    assert call("inspect", str(kept)) == 0
    capsys.readouterr()
    refused(capsys, "holds an artefact already; --force", "export", str(kept), "--onnx")
    assert call("export", str(kept), "--onnx", "--force") == 0
    assert f"{kept_path(kept, 2)}: 4 labels of generation 2" in capsys.readouterr().out
    for more in ([], ["--onnx", "--int8"], ["--onnx", "--share"]):
        refused(capsys, "name DIR; only an artefact with --onnx", "export", str(kept), *more)


def test_a_damaged_one_is_not_used(
    kept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (graph,) = kept_path(kept, 2).glob("model-*.onnx")
    graph.write_bytes(graph.read_bytes()[:-1])
    assert call("predict", str(kept), "music0 the") == 0
    said = capsys.readouterr()
    assert said.out.startswith("music")
    assert "answering from the state: the artefact" in said.err
    assert "has changed since it was written" in said.err.replace("\n", " ")
    (link := kept / "link").symlink_to(graph)
    refused(capsys, "is a link", "predict", str(kept), "music0 the")
    link.unlink()
    used: list[Path] = []
    monkeypatch.setattr(export_commands, "artefact_at", lambda path, *_: used.append(path))
    encoder = Learner.load(kept).made_of.model
    assert call("predict", str(kept), "music0 the", "--model", encoder) == 0
    assert not used, "another encoder is a question to the learner"


def test_a_killed_export_leaves_a_sound_state(
    mine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", killed)
    refused(capsys, "No space left", "export", str(mine), "--onnx")
    assert kept_artefact(mine) is None
    assert not any(Store(mine).verify().values())

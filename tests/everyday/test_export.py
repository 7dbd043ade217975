"""`holdfast export`: what an artefact holds, where it may be written, and that it appears in one step."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import faults
from helpers.artefacts import SENTENCES, changed, learners_answers, same_answers, state_of
from helpers.command_line import call, environment, refused
from helpers.everyday import rows_of, table
from helpers.families import adapted

from holdfast.errors import HoldfastError
from holdfast.everyday import export as exporting
from holdfast.everyday import graphs
from holdfast.everyday.export import export
from holdfast.everyday.exported import TorchClassifier
from holdfast.heads import LinearHead
from holdfast.learning.learner import Learner
from holdfast.models import Network, Reading
from holdfast.models.adapters import FAMILIES
from holdfast.runtime import Asked, Classifier
from holdfast.runtime.artefact import MANIFEST, SHARED

# ---- what it holds ----------------------------------------------------------------------------------------


def test_an_artefact_holds_neither_sums_nor_history_nor_paths(made: Path, tiny_bert: str, here: Path) -> None:
    learner = Learner.load(made)
    names = [entry["task"] for entry in learner.history]
    assert all(names)
    export(made, "plain")
    export(made, "one", onnx=True)
    export(made, "shared/a", onnx=True, share=True)
    sums = learner.model.head.statistics()["sums"]
    rows = [sums[row].numpy().tobytes() for row in range(len(sums))]
    rows += [sums[row].float().numpy().tobytes() for row in range(len(sums))]
    files = [file for file in here.rglob("*") if file.is_file()]
    assert len(files) == 9
    for file in files:
        content = file.read_bytes()
        for secret in (learner.key, tiny_bert, str(here), str(made), *names, "week0.csv", *rows):
            assert (secret.encode() if isinstance(secret, str) else secret) not in content, (file, secret)
    manifest = json.loads((here / "one" / MANIFEST).read_text())
    assert manifest["labels"] == learner.classes_
    assert manifest["encoder"]["name"] is None, "a folder of the user's has no name that others know"
    assert sorted(file.name for file in (here / "one").iterdir()) == sorted([MANIFEST, *manifest["files"]])


def test_a_generation_can_be_chosen(made: Path, here: Path) -> None:
    assert export(made, "first", generation=1, onnx=True).labels == 2
    assert Classifier("first").generation == 1
    with pytest.raises(HoldfastError, match="no generation 9"):
        export(made, "ninth", generation=9)
    assert not Path("ninth").exists()


@pytest.mark.parametrize("method", ["auto", "seq"])
def test_an_artefact_for_torch_gives_the_learners_answers(method: str, tiny_bert: str, here: Path) -> None:
    state = state_of(tiny_bert, here / "state", method)
    export(state, "plain")
    asked = Asked(3, 0.9, 0.2, 0.9) if method == "auto" else Asked(3)
    classifier = TorchClassifier("plain", model=tiny_bert)
    same_answers(learners_answers(state, asked), classifier.answers(SENTENCES, asked))
    assert classifier.answers([]) == []
    with pytest.raises(HoldfastError, match="the encoder of plain is a folder; name where it is"):
        TorchClassifier("plain")


def test_an_artefact_for_torch_refuses_another_encoder(
    made: Path, tiny_bert: str, one_layer: str, here: Path
) -> None:
    export(made, "plain")
    for wrong in (one_layer, "nowhere"):
        with pytest.raises(HoldfastError, match=r"layers|another encoder|unknown model"):
            TorchClassifier("plain", model=wrong)
    note = json.loads((here / "plain" / MANIFEST).read_text())
    for values, expected in (
        ({"vector": "sum"}, "unknown way"),
        ({"layers": 0}, "reads 0 layers"),
        ({"adapter": "x"}, "unknown way"),
        ({"adapter": "houlsby"}, "no weights"),
        ({"layers": 1}, "cannot be used"),
    ):
        changed(here / "plain", encoder=note["encoder"] | values)
        with pytest.raises(HoldfastError, match=expected):
            TorchClassifier("plain", model=tiny_bert)
    head = next((here / "plain").glob("head-*"))
    head.write_bytes(b"x" * head.stat().st_size)
    with pytest.raises(HoldfastError):
        TorchClassifier("plain", model=tiny_bert)


# ---- where it goes ----------------------------------------------------------------------------------------


def test_only_an_artefact_is_replaced_and_only_if_asked(made: Path, here: Path) -> None:
    export(made, "out", onnx=True, generation=1)
    before = set(os.listdir("out"))
    with pytest.raises(HoldfastError, match="holds an artefact already; --force"):
        export(made, "out", onnx=True)
    assert set(os.listdir("out")) == before
    export(made, "out", onnx=True, force=True)
    classifier = Classifier("out")
    assert (classifier.generation, len(classifier.labels)) == (2, 4)
    assert len([name for name in os.listdir("out") if name.endswith(".onnx")]) == 1, "the old one is gone"
    Path("mine").mkdir()
    export(made, "mine")
    shutil.rmtree("mine")
    Path("mine").mkdir()
    Path("mine/letter").touch()
    for force in (False, True):
        with pytest.raises(HoldfastError, match="exists and is no artefact"):
            export(made, "mine", force=force)
    for place in (made, made / "artefact"):
        with pytest.raises(HoldfastError, match="lies in the learner's own directory"):
            export(made, place, force=True)
    Path("link").symlink_to("out")
    with pytest.raises(HoldfastError, match="is a link"):
        export(made, "link", force=True)
    with pytest.raises(HoldfastError, match="add onnx"):
        export(made, "other", int8=True)


def test_the_shared_encoder_is_exported_once(made: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = export(made, "tenants/a", onnx=True, share=True)
    assert first.shared > first.bytes > 0
    made_again = []
    monkeypatch.setattr(exporting, "encoder_graph", lambda *_, **__: made_again.append(1))
    export(made, "tenants/b", onnx=True, share=True, generation=1)
    assert not made_again
    assert Classifier("tenants/b").predict(["music0"])
    shared = here / "tenants" / SHARED
    (encoder,) = shared.glob("encoder-*.onnx")
    monkeypatch.undo()
    monkeypatch.chdir(here)
    sound = encoder.read_bytes()
    encoder.write_bytes(sound[:-1] + b"x")
    export(made, "tenants/c", onnx=True, share=True)
    assert Classifier("tenants/c").predict(["music0"]), "a damaged file is made again"


def small_export(state: Path, place: Path, **options: Any) -> int:
    export(state, place, **options)
    return 0


def test_a_killed_export_leaves_no_half_artefact(made: Path, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    action = partial(small_export, made, place / "out")
    whole = faults.run(action, place)
    assert whole.code == 0, whole.errors
    assert len(whole.steps) > 8
    shutil.rmtree(place / "out")
    for step in range(0, len(whole.steps), 4):
        ended = faults.run(action, place, fail_at=step)
        assert ended.code == faults.KILLED
        names = set(os.listdir(place))
        if "out" in names:
            shutil.rmtree(place / "out")
        else:
            assert all(name.lstrip(".").startswith("holdfast-") for name in names)
    assert faults.run(action, place).code == 0
    assert set(os.listdir(place)) == {"out"}, "what killed exports have left is swept"


@pytest.mark.parametrize("how", ["kill", pytest.param("ENOSPC", marks=pytest.mark.slow)])
def test_a_failed_replacement_leaves_one_of_the_two(
    how: str, made: Path, tiny_bert: str, tmp_path: Path
) -> None:
    place = tmp_path / "place"
    old, new = (partial(small_export, made, place / "out", generation=n, force=True) for n in (1, 2))
    old()
    shutil.copytree(place, tmp_path / "before")
    steps = faults.run(new, place).steps
    seen = set()
    first = next(n for n, step in enumerate(steps) if step.other.startswith(str(place / "out")))
    for step in {0, first // 2, *range(first, len(steps), 2 if how == "kill" else 1)}:
        shutil.rmtree(place)
        shutil.copytree(tmp_path / "before", place)
        faults.run(new, place, fail_at=step, how=how)
        seen.add(TorchClassifier(place / "out", model=tiny_bert).generation)
    assert seen == {1, 2}


# ---- exporters --------------------------------------------------------------------------------------------


def test_a_graph_that_differs_is_refused(made: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If both exporters give another graph, nothing is written."""
    tried = []
    monkeypatch.setattr(graphs, "_exported", lambda *_, newer: tried.append(newer) or b"")
    monkeypatch.setattr(graphs, "_difference", lambda *_: "vectors has other values")
    with pytest.raises(HoldfastError, match="cannot be written as ONNX: vectors has other values"):
        graphs._graph(torch.nn.Linear(2, 2), {"x": torch.ones(1, 2)}, ("y",), {"x": ("n",), "y": ("n",)})
    assert tried == [False, True]


def test_the_comparison_of_graphs_sees_a_difference() -> None:
    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    axes = {"x": ("n",), "y": ("n",)}
    data = graphs._graph(one, {"x": torch.ones(2, 2)}, ("y",), axes)
    with torch.no_grad():
        assert graphs._difference(one, data, {"x": torch.ones(2, 2)}, ("y",)) == ""
        assert "other values" in graphs._difference(other, data, {"x": torch.ones(2, 2)}, ("y",))
        assert "lost" in graphs._difference(one, data, {"x": torch.ones(2, 2)}, ("z",))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_encoder_of_every_family_with_its_adapters(family: str) -> None:
    """`encoder_graph` compares the vectors of several batches with torch's, and refuses others."""
    model = Network(adapted(family), None, LinearHead(64), reading=Reading(2, True)).eval()  # type: ignore[arg-type]
    assert model.adapted
    assert graphs.encoder_graph(model, int8=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_the_newer_exporter_would_do_too(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    original, tried = graphs._exported, []

    def newer_only(*values: Any, newer: bool) -> bytes:
        tried.append(newer)
        if not newer:
            raise RuntimeError("gone from a later torch")
        return original(*values, newer=newer)

    monkeypatch.setattr(graphs, "_exported", newer_only)
    model = Network(adapted(family), None, LinearHead(64), reading=Reading(2, True)).eval()  # type: ignore[arg-type]
    assert graphs.encoder_graph(model, int8=False)
    assert tried == [False, True]


# ---- the commands -----------------------------------------------------------------------------------------


def test_the_commands(made: Path, tiny_bert: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("predict", str(made), "music0 the", "--top", "2") == 0
    expected = capsys.readouterr().out
    assert call("export", str(made), "out", "--onnx") == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("out: 4 labels of generation 2, 0.")
    assert call("predict", "out", "music0 the", "--top", "2") == 0
    assert capsys.readouterr().out == expected
    assert call("export", str(made), "near/a", "--onnx", "--share") == 0
    assert "shared beside it" in capsys.readouterr().out
    assert call("export", str(made), "plain", "--format", "json") == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["directory"], said["labels"], said["generation"]) == ("plain", 4, 2)
    assert call("predict", "plain", "music0 the", "--top", "2", "--model", tiny_bert) == 0
    assert capsys.readouterr().out == expected
    questions = table(here / "questions.csv", [(text, "?") for text, _ in rows_of(0, "test")])
    for where in (str(made), "out"):
        assert (
            call("predict", where, "--file", questions, "--format", "jsonl", "--out", f"{where[-3:]}.jsonl")
            == 0
        )
    ours, its = (Path(f"{where[-3:]}.jsonl").read_text().splitlines() for where in (str(made), "out"))
    for left, right in zip(map(json.loads, ours), map(json.loads, its), strict=True):
        assert (left["text"], left["label"]) == (right["text"], right["label"])
        assert left["probability"] == pytest.approx(right["probability"], abs=1e-4)


def test_eval_of_an_artefact(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = table(here / "test.csv", rows_of(0, "test") + rows_of(1, "test"))
    export(made, "out", onnx=True)
    found = []
    for place in (str(made), "out"):
        capsys.readouterr()
        assert call("eval", place, rows, "--format", "json") == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["macro_f1"] == found[1]["macro_f1"] > 0.5
    assert found[0]["generation"] == found[1]["generation"] == 2
    assert found[0]["labels"] == found[1]["labels"]
    refused(capsys, "has one generation only", "eval", "out", rows, "--generation", "1")


def test_mistakes_are_one_line(made: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call("export", str(made), "out", "--onnx") == 0
    refused(capsys, "add --onnx", "export", str(made), "other", "--int8")
    refused(capsys, "holds an artefact already", "export", str(made), "out")
    refused(capsys, "holds no Holdfast state", "export", "nowhere", "other")
    refused(capsys, "leave out --model", "predict", "out", "hello", "--model", "minilm")
    refused(capsys, "rejection can keep between", "predict", "out", "hello", "--reject", "0.999")
    Path("out", MANIFEST).write_text("{}")
    refused(capsys, "has changed since it was written", "predict", "out", "hello")


def test_predict_of_an_artefact_imports_no_torch(made: Path, here: Path) -> None:
    export(made, "out", onnx=True)
    code = (
        "import sys\nfrom holdfast.app.main import app\n"
        "sys.argv = ['holdfast', 'predict', 'out', '-', '--reject', '0.9', '--set', '0.9']\n"
        "app(standalone_mode=False)\n"
        "heavy = {'torch', 'transformers', 'scipy', 'accelerate', 'onnx', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=b"music0 the\n\xff\n", capture_output=True, env=environment()
    )
    lines = done.stdout.decode().splitlines()
    assert done.stderr.decode().strip() == "[]"
    assert len(lines) == 2
    assert lines[1].startswith("(error)")

"""Damaged and hostile artefacts: one line that says what is wrong, before anything is run."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from helpers.artefacts import changed
from helpers.damage import STRANGE, places, put
from onnx import TensorProto, helper

from holdfast.errors import HoldfastError
from holdfast.runtime import Asked, Classifier
from holdfast.runtime.artefact import LARGEST, MANIFEST, SHARED, Artefact
from holdfast.storage.files import sealed


@pytest.fixture
def mine(artefact: Path, tmp_path: Path) -> Path:
    """A copy that may be changed."""
    shutil.copytree(artefact, tmp_path / "mine")
    return tmp_path / "mine"


def refusal(place: Path) -> str:
    with pytest.raises(HoldfastError) as caught:
        Classifier(place).answers(["music0 the"])
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    return str(caught.value)


def graph_of(place: Path) -> Path:
    return next(place.glob("*.onnx"))


def replaced(place: Path, data: bytes, role: str = "model") -> None:
    """Replace a file and what the manifest says of it."""
    manifest = json.loads((place / MANIFEST).read_text())
    old = next(name for name in manifest["files"] if name.startswith(role))
    (place / old).write_bytes(data)
    manifest["files"][old] |= {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    changed(place, files=manifest["files"])


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no manifest": (lambda p: (p / MANIFEST).unlink(), "holds no exported artefact"),
    "a changed manifest": (
        lambda p: (p / MANIFEST).write_text((p / MANIFEST).read_text().replace("music", "magic")),
        "has changed since it was written",
    ),
    "no JSON": (lambda p: (p / MANIFEST).write_text("{"), "not readable JSON"),
    "no object": (lambda p: (p / MANIFEST).write_text("[1]"), "has changed"),
    "a flipped bit": (lambda p: flip(graph_of(p), -1000), "has changed since it was written"),
    "a short file": (lambda p: os.truncate(graph_of(p), 1000), "has changed since it was written"),
    "a long file": (lambda p: graph_of(p).open("ab").write(b"x"), "more than"),
    "a missing file": (lambda p: graph_of(p).unlink(), "is missing"),
    "a pipe": (lambda p: (graph_of(p).unlink(), os.mkfifo(_gone(p))), "not a regular file"),
}


def _gone(place: Path) -> Path:
    manifest = json.loads((place / MANIFEST).read_text())
    return place / manifest["graphs"][0]


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_found(damage: str, mine: Path) -> None:
    harm, expected = DAMAGE[damage]
    harm(mine)
    assert expected in refusal(mine)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"format": 2}, "exported by a newer Holdfast"),
        ({"kind": "something else"}, "of another kind"),
        ({"labels": []}, "no labels"),
        ({"labels": ["a", "a", "b", "c"]}, "some repeat"),
        ({"labels": ["a\x1b[2J", "b", "c", "d"]}, "control character"),
        ({"labels": ["a", "b", "c"]}, "one probability for each label"),
        ({"labels": "abcd"}, "'labels' has an invalid value"),
        ({"graphs": ["model-0000000000000000.onnx"]}, "a graph is missing"),
        ({"precision": "int4"}, "'precision' has an invalid value"),
        ({"generation": -1}, "negative or too large"),
        ({"zeal": 1}, "unknown field 'zeal'"),
        ({"reject": {"levels": [0.9, 0.5], "values": [1.0, 2.0]}}, "do not rise"),
        ({"reject": {"levels": [0.5], "values": []}}, "do not rise"),
        ({"encoder": {}}, "lacks the field"),
    ],
)
def test_a_sealed_manifest_is_not_believed(values: dict[str, object], expected: str, mine: Path) -> None:
    changed(mine, **values)
    assert expected in refusal(mine)


@pytest.mark.parametrize("part", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 8))])
def test_any_value_of_a_sealed_manifest_may_be_strange(part: int, mine: Path) -> None:
    """Each value is removed or replaced by a strange one: answers, or one line."""
    manifest = json.loads((mine / MANIFEST).read_text())
    graph = Classifier(mine)._graphs  # loaded once
    changes = [(place, new) for place in places(manifest) for new in (..., *STRANGE)]
    assert len(changes) > 800
    answered, said = 0, []
    for place, new in changes[part::8]:
        value = put(manifest, place, new)
        (mine / MANIFEST).write_bytes(sealed({k: v for k, v in value.items() if k != "sha256"}))
        try:
            assert len(Classifier(mine).answers(["music0 the"], Asked(2, 0.9, 0.1, 0.9))) == 1
            answered += 1
        except HoldfastError as error:
            said.append(str(error))
    assert 0 < answered < len(changes) / 16
    assert all(line.isprintable() for line in said), "one line each"
    assert graph


@pytest.mark.parametrize("name", ["../model-0123456789abcdef.onnx", "/etc/passwd", "model.onnx", "\x1b[2J"])
def test_a_file_has_no_path(name: str, mine: Path) -> None:
    changed(mine, graphs=[name], files={name: {"bytes": 1, "sha256": "0" * 64}})
    assert "invalid name, size or hash" in refusal(mine)


def test_sizes_are_bounded_before_anything_is_read(mine: Path) -> None:
    files = json.loads((mine / MANIFEST).read_text())["files"]
    for note in files.values():
        note["bytes"] = LARGEST
    changed(mine, files=files)
    assert "more than 8,000,000,000 bytes" in refusal(mine)


def test_links_are_refused(mine: Path, tenants: Path, tmp_path: Path) -> None:
    (tmp_path / "current").symlink_to(mine)
    assert Classifier(tmp_path / "current").labels, "the folder itself may be one: releases are switched so"
    graph = graph_of(mine)
    graph.rename(tmp_path / "elsewhere")
    graph.symlink_to(tmp_path / "elsewhere")
    assert "is a link" in refusal(mine)
    shutil.copytree(tenants / "a", tmp_path / "neighbours" / "a")
    (tmp_path / "neighbours" / SHARED).symlink_to(tenants / SHARED)
    assert "is a link" in refusal(tmp_path / "neighbours" / "a")


def test_an_artefact_without_its_shared_files(tenants: Path, tmp_path: Path) -> None:
    shutil.copytree(tenants / "a", tmp_path / "alone")
    assert f"move {SHARED} along" in refusal(tmp_path / "alone")


def tiny_graph(tensor: TensorProto, outputs: tuple[str, ...] = ("probabilities",)) -> bytes:
    """Return a graph that multiplies token ids with a tensor."""
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["batch", "length"])
    nodes = [helper.make_node("Mul", ["input_ids", "w"], [name]) for name in outputs]
    found = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in outputs]
    graph = helper.make_graph(nodes, "g", [ids], found, [tensor])
    opset = [helper.make_opsetid("", 17)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString()


def numbers(*shape: int) -> TensorProto:
    return helper.make_tensor("w", TensorProto.INT64, shape, [1] * math.prod(shape))


def test_a_graph_cannot_read_other_files(mine: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_bytes(b"\1" * 8)
    monkeypatch.chdir(tmp_path)
    tensor = helper.make_tensor("w", TensorProto.INT64, [1], [1])
    tensor.ClearField("int64_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="secret")
    plain = tiny_graph(tensor)
    entry = b"\n\x08location\x12\x06secret"
    assert plain.count(entry) == 1
    turned = b"\x12\x06secret\n\x08location"  # value before key, which protobuf allows
    for data in (plain, plain.replace(entry, turned)):
        onnx.load_model_from_string(data)
        replaced(mine, data)
        assert "takes its weights from another file" in refusal(mine)


def test_a_name_may_contain_the_word(mine: Path) -> None:
    data = graph_of(mine).read_bytes()
    model = onnx.load_model_from_string(data)
    model.graph.node[0].name = "allocation"
    model.graph.node[1].name = "encoder/location"
    replaced(mine, model.SerializeToString())
    assert Classifier(mine).predict(["music0 the"])


def test_an_export_while_it_is_read(mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old manifest was read; meanwhile the artefact was replaced, and the old files are gone."""
    old, read = graph_of(mine), Artefact.read

    def replaced_meanwhile(self: Artefact, name: str) -> bytes:
        if old.exists():
            data = old.read_bytes()
            old.unlink()
            files = json.loads((mine / MANIFEST).read_text())["files"]
            note = files.pop(old.name)
            new = "model-0123456789abcdef.onnx"
            (mine / new).write_bytes(data)
            changed(mine, files=files | {new: note}, graphs=[new], generation=2)
        return read(self, name)

    monkeypatch.setattr(Artefact, "read", replaced_meanwhile)
    assert Classifier(mine, threads=7).generation == 2


NO_GRAPHS = {
    "empty": (b"", "a graph cannot be loaded"),
    "nonsense": (b"nonsense" * 100, "a graph cannot be loaded"),
    "other numbers": (tiny_graph(numbers(1)), "one probability for each label"),
    "another shape": (tiny_graph(numbers(3, 7, 11)), "cannot be run"),
    "another output": (tiny_graph(numbers(1), ("x",)), "one probability"),
}


@pytest.mark.parametrize("kind", NO_GRAPHS)
def test_a_graph_that_is_none(kind: str, mine: Path) -> None:
    data, expected = NO_GRAPHS[kind]
    replaced(mine, data)
    assert expected in refusal(mine)


@pytest.mark.parametrize("data", [b"", b"{}", b'{"model": 1}', b"\xff\xfe", b"[" * 10_000])
def test_a_tokenizer_that_is_none(data: bytes, mine: Path) -> None:
    replaced(mine, data, "tokenizer")
    assert "tokenizer cannot be loaded" in refusal(mine)


def test_a_tokenizer_of_another_encoder(mine: Path) -> None:
    path = next(mine.glob("tokenizer-*.json"))
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {word: number + 5000 for word, number in vocabulary.items()}
    replaced(mine, json.dumps(tokenizer).encode(), "tokenizer")
    assert "a graph cannot be run" in refusal(mine) or "tokenizer cannot be loaded" in refusal(mine)


def test_an_artefact_of_torch_says_so(mine: Path) -> None:
    changed(mine, graphs=[])
    assert "exported for torch, without --onnx" in refusal(mine)


def test_the_seal_is_what_is_written(mine: Path) -> None:
    manifest = json.loads((mine / MANIFEST).read_text())
    assert (mine / MANIFEST).read_bytes() == sealed(manifest)

"""A state that can be trusted: identity of the encoder, lessons counted once, labels that are gone."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import stat
from pathlib import Path

import numpy as np
import pytest
from helpers.command_line import call, refused
from helpers.everyday import rows_of, table
from helpers.frozen import MODEL, STATES
from helpers.learners import TEXTS, create, taught
from helpers.toys import save_tiny_bert

from holdfast.errors import HoldfastError
from holdfast.learning.learner import Learner
from holdfast.models import sources
from holdfast.storage.generations import Store


def files_of(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


# ---- identity -----------------------------------------------------------------------------------------


def test_a_permuted_vocabulary_is_another_encoder(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_tiny_bert(model, layers=1)
    taught(str(model), tasks=1).save(tmp_path / "state")
    path = model / "tokenizer.json"
    described = json.loads(path.read_text())
    words = described["model"]["vocab"]
    words["music0"], words["light0"] = words["light0"], words["music0"]
    path.write_text(json.dumps(described))
    with pytest.raises(HoldfastError, match="its tokenizer differ"):
        Learner.load(tmp_path / "state")


def test_another_configuration_is_another_encoder(tmp_path: Path) -> None:
    model = tmp_path / "model"
    save_tiny_bert(model, layers=1)
    taught(str(model), tasks=1).save(tmp_path / "state")
    path = model / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hidden_act": "relu"}))
    with pytest.raises(HoldfastError, match="its config differ"):
        Learner.load(tmp_path / "state")


def test_a_state_holds_no_path_and_moves_with_its_encoder(one_layer: str, tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    shutil.copytree(one_layer, old / "encoder")
    learner = taught(str(old / "encoder"), tasks=1)
    learner.save(old / "state")
    for path in files_of(old / "state"):
        assert str(tmp_path).encode() not in path.read_bytes(), path
    old.rename(new)
    assert Learner.load(new / "state").predict(TEXTS) == learner.predict(TEXTS)


def test_a_moved_encoder_is_named(one_layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(one_layer, tmp_path / "encoder")
    state = str(tmp_path / "state")
    taught(str(tmp_path / "encoder"), tasks=1).save(state)
    (tmp_path / "encoder").rename(tmp_path / "elsewhere")
    refused(capsys, r"the encoder of .* is not in .*/encoder; name the folder", "predict", state, "music0")
    assert call("predict", state, "music0", "--model", str(tmp_path / "elsewhere")) == 0
    more = table(tmp_path / "more.csv", rows_of(2))
    assert call("learn", state, more, "--model", str(tmp_path / "elsewhere"), "--budget", "0") != 0  # slda
    assert call("learn", state, more, "--model", str(tmp_path / "elsewhere")) == 0
    assert call("predict", state, "music0") == 0, "the last commit knows the new place"


@pytest.mark.parametrize("name", ["nobody/no-such-encoder", "minilm"])
def test_loading_never_goes_online(
    name: str, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = taught(one_layer, tasks=1)
    learner.made_of.model = name
    learner.save(tmp_path / "state")
    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a request was made")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(sources.subprocess, "run", refuse)
    with pytest.raises(HoldfastError, match=r"not on this machine|cannot load the model"):
        Learner.load(tmp_path / "state")


# ---- formats ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["slda", "la"])
def test_a_state_of_format_1_is_replaced_at_the_next_commit(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    shutil.copytree(STATES / name, tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    before = Learner.load("state")
    assert before.migrates
    more = table(tmp_path / "more.csv", rows_of(2))
    assert call("learn", "state", more, "--keep", "5") == 0
    assert "is written in format 2 from now on" in capsys.readouterr().out
    assert [Store(Path("state")).sections(number).format for number in (1, 2)] == [1, 2]
    after = Learner.load("state")
    assert not after.migrates
    assert len(after.classes_) == len(before.classes_) + 2
    assert call("rollback", "state", "1") == 0
    assert np.array_equal(Learner.load("state").predict_proba(TEXTS), before.predict_proba(TEXTS))
    assert call("verify", "state") == 0
    assert "generation 1: whole (format 1, without checksums)" in capsys.readouterr().out


def test_forgetting_says_that_it_replaces_a_state_of_format_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    shutil.copytree(STATES / "slda", tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    assert call("forget-label", "state", Learner.load("state").classes_[0]) == 0
    assert "is written in format 2 from now on" in capsys.readouterr().out


def test_old_marks_of_rows_become_keyed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(MODEL, tmp_path / "model")
    shutil.copytree(STATES / "slda", tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    old = Store(Path("state")).load().sections["learner"]["history"]
    marks = [entry["rows"] for entry in old if "rows" in entry]
    learner = Learner.load("state")
    learner.save("state")
    written = b"".join(path.read_bytes() for path in files_of(Store(Path("state")).path(2)))
    assert not any(mark.encode() in written for mark in marks)
    assert [("id" in entry) for entry in learner.history] == [("rows" in entry) for entry in old]


# ---- exactly once -------------------------------------------------------------------------------------


def test_the_same_rows_count_once(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = table(tmp_path / "more.csv", rows_of(2))
    assert call("learn", str(mine), more, "--budget", "0") == 0
    counts = Learner.load(mine).model.head.past.counts.tolist()
    other = table(tmp_path / "other.csv", rows_of(2)[::-1])  # another name, another order
    for source in (more, other):
        capsys.readouterr()
        assert call("learn", str(mine), source, "--budget", "0") == 0
        assert "already learnt (generation 3)" in capsys.readouterr().out
    assert Store(mine).current == 3
    assert Learner.load(mine).model.head.past.counts.tolist() == counts
    assert call("learn", str(mine), more, "--budget", "0", "--again") == 0
    twice = Learner.load(mine).model.head.past.counts.tolist()
    assert [b - a for a, b in zip(counts, twice, strict=True)] == [0, 0, 0, 0, *counts[4:]]


def test_rows_of_a_label_that_was_forgotten_count_again(mine: Path, tmp_path: Path) -> None:
    more = table(tmp_path / "more.csv", rows_of(2))
    assert call("learn", str(mine), more, "--budget", "0") == 0
    label = rows_of(2)[0][1]

    def counts() -> dict[str, float]:
        head = Learner.load(mine).model.head
        return dict(zip(head.labels, head.past.counts.tolist(), strict=True))

    before = counts()
    assert call("forget-label", str(mine), label) == 0
    assert call("learn", str(mine), more, "--budget", "0") == 0
    assert label in Learner.load(mine).classes_
    assert counts() == before, "the other label's rows are not counted twice"


def test_rows_that_a_rollback_undid_count_again(mine: Path, tmp_path: Path) -> None:
    more = table(tmp_path / "more.csv", rows_of(2))
    assert call("learn", str(mine), more, "--budget", "0") == 0
    assert call("rollback", str(mine), "2") == 0
    assert call("learn", str(mine), more, "--budget", "0") == 0
    assert Store(mine).current == 4


def test_an_id_says_nothing_without_the_key(one_layer: str, tmp_path: Path) -> None:
    source = table(tmp_path / "week.csv", rows_of(0))
    for name in ("one", "two"):
        assert call("learn", str(tmp_path / name), source, "--model", one_layer, "--method", "slda") == 0
    ids = [Learner.load(tmp_path / name).history[0]["id"] for name in ("one", "two")]
    assert ids[0] != ids[1]


@pytest.mark.parametrize("field", ["task", "score", "drift"])
def test_a_bad_field_of_the_history_is_an_error_before_the_commit(
    field: str, mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = Store(mine).load()
    saved.sections["history"][0][field] = {"strange": 1}
    Store(mine).commit(saved.tensors, saved.sections)
    before = Store(mine).current
    more = table(tmp_path / "more.csv", rows_of(2))
    refused(capsys, f"lesson 1 is damaged: '{field}'", "learn", str(mine), more)
    assert Store(mine).current == before


def test_a_card_that_cannot_be_written_fails_nothing(mine: Path, tmp_path: Path) -> None:
    (mine / "README.md").unlink()
    (mine / "README.md").mkdir()
    (mine / "README.md" / "x").touch()
    assert call("learn", str(mine), table(tmp_path / "more.csv", rows_of(2)), "--budget", "0") == 0
    assert Store(mine).current == 3


def test_a_file_name_that_is_not_utf_8(
    one_layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = os.fsdecode(os.fsencode(str(tmp_path)) + b"/week\xff.csv")
    Path(table(tmp_path / "week.csv", rows_of(0))).rename(source)
    state = str(tmp_path / "state")
    assert call("learn", state, source, "--model", one_layer, "--method", "slda") == 0
    assert call("inspect", state) == 0
    assert call("learn", state, table(tmp_path / "more.csv", rows_of(1))) == 0
    odd = os.fsdecode(os.fsencode(str(tmp_path)) + b"/state\xff")
    assert call("learn", odd, table(tmp_path / "more.csv", rows_of(1)), "--model", one_layer) == 0
    assert call("predict", odd, "music0") == 0
    refused(capsys, "holds no Holdfast state", "predict", f"{odd}x", "music0")


# ---- forgetting ---------------------------------------------------------------------------------------


def test_purging_can_be_repeated(mine: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    label = Learner.load(mine).classes_[0]
    assert call("forget-label", str(mine), label) == 0
    advice = re.search(r"--purge", capsys.readouterr().out)
    assert advice, "older generations still know it"
    assert call("forget-label", str(mine), label, "--purge") == 0
    assert "deleted: 3 older generations" in capsys.readouterr().out
    assert len(Store(mine).generations) == 1
    assert call("forget-label", str(mine), label, "--purge") == 0
    assert "there is nothing to remove" in capsys.readouterr().out
    assert call("forget-label", str(mine), "never-heard-of", "--purge") == 0
    assert len(Store(mine).generations) == 1
    refused(capsys, "unknown label", "forget-label", str(mine), label)


def test_a_purge_removes_every_trace_it_can(one_layer: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    for number in (0, 1):
        label = rows_of(number)[0][1]
        source = table(tmp_path / f"{label} week.csv", rows_of(number))
        assert call("learn", str(state), source, "--model", one_layer, "--method", "slda") == 0
    label = rows_of(1)[0][1]
    (state / ".trials").mkdir()
    (state / ".trials" / "x.trial").write_text(label)
    assert call("forget-label", str(state), label, "--purge") == 0
    for path in files_of(state):
        assert label.encode() not in path.read_bytes(), path
    assert not any("id" in entry for entry in Learner.load(state).history)


def test_a_purge_that_was_killed_is_finished_by_the_next(mine: Path, tmp_path: Path) -> None:
    """Killed after the pointer was swapped: the older generations are still there, but nothing names them."""
    label = Learner.load(mine).classes_[0]
    old = {path.name: path for path in mine.glob("generation-*")}
    for name, path in old.items():
        shutil.copytree(path, tmp_path / "kept" / name)
    assert call("forget-label", str(mine), label, "--purge") == 0
    for name in old:
        shutil.copytree(tmp_path / "kept" / name, mine / name)
    assert call("forget-label", str(mine), label, "--purge") == 0
    assert len(list(mine.glob("generation-*"))) == 1


def test_a_purge_that_was_killed_before_the_card_is_finished_by_the_next(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    label = Learner.load(mine).classes_[0]
    with monkeypatch.context() as killed:
        killed.setattr(Learner, "write_card", lambda self, path, card: None)
        assert call("forget-label", str(mine), label, "--purge") == 0
    assert f"`{label}`" in (mine / "README.md").read_text()
    assert call("forget-label", str(mine), label, "--purge") == 0
    assert f"`{label}`" not in (mine / "README.md").read_text()


def test_a_purge_removes_names_and_ids_when_no_generation_knows_the_label_any_more(
    one_layer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state, label = tmp_path / "state", rows_of(0)[0][1]
    source = table(tmp_path / f"{label} week.csv", rows_of(0))
    assert call("learn", str(state), source, "--model", one_layer, "--method", "slda") == 0
    assert call("forget-label", str(state), label, "--keep", "1") == 0
    assert label in Learner.load(state).history[0]["task"]
    capsys.readouterr()
    assert call("forget-label", str(state), label, "--purge") == 0
    said = capsys.readouterr().out
    assert "the ids of lessons are deleted too" in said
    assert "1 older generation is kept and may still have the ids; --keep 1 deletes it" in said
    assert call("forget-label", str(state), label, "--purge", "--keep", "1") == 0
    for path in files_of(state):
        assert label.encode() not in path.read_bytes(), path
    assert "id" not in Learner.load(state).history[0]
    assert call("forget-label", str(state), label, "--purge") == 0
    assert "there is nothing to remove" in capsys.readouterr().out
    assert len(Store(state).generations) == 1


def test_a_directory_that_was_there_before_becomes_private(one_layer: str, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir(0o755)
    source = table(tmp_path / "week.csv", rows_of(0))
    assert call("learn", str(state), source, "--model", one_layer, "--method", "slda") == 0
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_everything_in_a_state_is_private(mine: Path, tmp_path: Path) -> None:
    assert call("learn", str(mine), table(tmp_path / "more.csv", rows_of(2)), "--budget", "0") == 0
    for path in (
        *(mine / "generation-000003").rglob("*"),
        mine / "CURRENT",
        mine / "README.md",
        mine / ".lock",
    ):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


# ---- numbers ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["slda", "auto", "mas"])
def test_the_order_of_rows_has_no_effect(method: str, one_layer: str) -> None:
    rows = [*rows_of(0), *rows_of(1)]
    learners = []
    for order in (rows, rows[::-1], rows[1::2] + rows[::2]):
        learner = create(one_layer, method)
        learner.learn([text for text, _ in order], [label for _, label in order], "week 1")
        learners.append(learner)
    first = learners[0].predict_proba(TEXTS)
    assert all(np.array_equal(learner.predict_proba(TEXTS), first) for learner in learners[1:])


def test_the_order_of_rows_with_splits_has_no_effect(one_layer: str, tmp_path: Path) -> None:
    rows = [(*row, "valid" if n % 5 == 0 else "train") for n, row in enumerate([*rows_of(0), *rows_of(1)])]
    found = []
    for number, order in enumerate((rows, rows[::-1])):
        source = table(tmp_path / "week.csv", order, ("text", "label", "split"))  # type: ignore[arg-type]
        state = str(tmp_path / f"state{number}")
        assert call("learn", state, source, "--model", one_layer, "--method", "slda") == 0
        found.append(Learner.load(state).predict_proba(TEXTS))
    assert np.array_equal(*found)


def test_a_state_of_format_2_answers_as_it_did() -> None:
    """A file written when format 2 was new. It must keep loading, whatever later versions add."""
    learner = Learner.load(Path(__file__).parents[1] / "learning" / "states" / "format-2")
    assert learner.classes_ == ["light", "music", "mail", "stock"]
    assert learner.predict(["music0 music1", "light2 the light1", "mail0 of mail1"]) == [
        "stock",
        "light",
        "light",
    ]
    assert [entry["task"] for entry in learner.history] == ["task0", "task1"]

"""The everyday commands on states: judged, looked at, taken back, and found broken."""

from __future__ import annotations

import csv
import errno
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import call, environment, refused
from helpers.everyday import rows_of, table
from helpers.learners import taught

from holdfast import Learner
from holdfast.data.tasks import Split, Task
from holdfast.storage import files
from holdfast.storage.files import locked
from holdfast.storage.generations import Store

# ---- eval, inspect, rollback, forget -------------------------------------------------------------------


def test_eval_prints_the_score_and_draws_the_confusions(made, here, capsys):
    source = table(here / "t.csv", rows_of(0, "test") + rows_of(1, "test"))
    assert call("eval", str(made), source, "--page", "eval.html") == 0
    said = capsys.readouterr().out
    learner = Learner.load(made)
    texts, labels = zip(*rows_of(0, "test"), *rows_of(1, "test"), strict=True)
    score = learner.score(texts, labels)
    assert f"macro-F1 {100 * score:.2f}" in said
    assert all(label in said for label in learner.classes_)
    right = sum(gold == label for gold, label in zip(labels, learner.predict(texts), strict=True))
    # Each cell of the matrix says what it counts: "light as music: 2".
    cells = re.findall(r"<title>(\S+) as (\S+): (\d+)</title>", Path("eval.html").read_text())
    assert {label for label, _, _ in cells} == set(labels)
    assert sum(int(n) for gold, guess, n in cells if gold == guess) == right
    assert sum(int(n) for _, _, n in cells) == len(texts)


def test_eval_without_a_page_writes_nothing(made, here, capsys):
    source = table(here / "t.csv", rows_of(0, "test"))
    before = {path.name for path in here.iterdir()}
    assert call("eval", str(made), source) == 0
    assert {path.name for path in here.iterdir()} == before


def test_csv_answers_are_csv_whatever_a_text_holds(made, here, capsys):
    odd = 'play\nsome "jazz", please'
    source = table(here / "odd.csv", [(odd, "x"), ("light0", "x")])
    assert call("predict", str(made), "--file", source, "--format", "csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert [row[0] for row in rows] == ["text", odd, "light0"]
    assert {len(row) for row in rows} == {3}


def test_texts_that_are_cut_are_noted(here, one_layer, capsys):
    rows = [*rows_of(0), (" ".join(["light0"] * 40), "light")]
    source = table(here / "long.csv", rows)
    options = ("--model", one_layer, "--method", "slda")
    assert call("learn", "short", source, *options, "--set", "max_length=16") == 0
    assert "only the first 16 tokens are read: 1;" in capsys.readouterr().out
    assert Learner.load("short").settings.max_length == 16
    assert call("learn", "whole", source, *options) == 0
    assert "tokens are read" not in capsys.readouterr().out


def test_forgetting_can_drop_what_still_knows(mine, tmp_path, capsys):
    label = Learner.load(mine).classes_[0]
    assert call("forget-label", str(mine), label, "--keep", "1") == 0
    assert "may still know it" not in capsys.readouterr().out
    assert len(Store(mine).generations) == 1
    assert call("learn", str(mine), table(tmp_path / "more.csv", rows_of(2)), "--budget", "0") == 0
    assert len(Store(mine).generations) == 2, "it was for this once"
    refused(capsys, "holds no Holdfast state", "forget-label", str(tmp_path / "none"), label)


def test_generations_without_their_pointer_are_not_wiped(mine, tmp_path, capsys):
    more = table(tmp_path / "more.csv", rows_of(2))
    (mine / "CURRENT").unlink()
    (mine / "README.md").unlink()
    kept = sorted(path.name for path in mine.iterdir())
    assert len([name for name in kept if name.startswith("generation")]) > 1
    numbers = sorted(int(name[-6:]) for name in kept if name.startswith("generation"))
    told = re.escape(f"make the last generation current: holdfast rollback {mine} {numbers[-1]}")
    refused(capsys, f"has lost its file CURRENT; {told}", "learn", str(mine), more)
    assert sorted(path.name for path in mine.iterdir()) == kept
    assert call("rollback", str(mine), str(numbers[-1])) == 0
    assert (Store(mine).current, Store(mine).generations) == (numbers[-1], numbers)


def test_an_empty_sentence_is_refused(made, capsys):
    refused(capsys, "the sentence is empty", "predict", str(made), " ")


def test_eval_does_not_test_on_training_rows_unasked(made, here, capsys):
    rows = [(*row, "train") for row in rows_of(0)]
    source = table(here / "marked.csv", rows, ("text", "label", "split"))
    refused(capsys, "no 'test' rows in the split column", "eval", str(made), source)


def test_eval_names_labels_that_were_never_learnt(made, here, capsys):
    assert call("eval", str(made), table(here / "t.csv", rows_of(2, "test"))) == 0
    said = capsys.readouterr().out
    assert "macro-F1 0.00" in said
    assert "2 labels of the file were never learnt" in said


def test_inspect(made, here, capsys):
    assert call("inspect", str(made)) == 0
    said = capsys.readouterr().out
    assert "method auto" in said
    assert "2 lessons" in said
    assert all(label in said for label in Learner.load(made).classes_)
    assert "current" in said
    assert "no weights are protected" in said


def test_inspect_shows_what_layers_hold_fast_to(here, tiny_bert, capsys):
    learner = taught(tiny_bert, "la", lam=1.0, down=0.5, up=1.0)
    assert set(learner.history[-1]["rho"]) == {"layer 1", "layer 2"}
    learner.save("mine")
    assert call("inspect", "mine") == 0
    said = capsys.readouterr().out
    assert "layer 1" in said
    assert "layer 2" in said
    assert "ρ 0." in said
    assert " 1.00" in said


def test_rollback_and_forget(mine, capsys):
    gone = Learner.load(mine).classes_[0]
    refused(capsys, "unknown label 'nobody'", "forget-label", str(mine), "nobody")
    assert call("forget-label", str(mine), gone) == 0
    assert "traces of it remain in the pooled sums of all labels" in capsys.readouterr().out
    assert gone not in Learner.load(mine).classes_
    assert call("rollback", str(mine), "1") == 0
    assert len(Learner.load(mine).classes_) == 2
    refused(capsys, "no generation 77", "rollback", str(mine), "77")
    refused(capsys, "holds no Holdfast state", "rollback", str(mine / "none"), "1")


# ---- states that are not well --------------------------------------------------------------------------


def test_states_that_cannot_be_read_are_one_line(mine, tmp_path, capsys, monkeypatch):
    more = table(tmp_path / "more.csv", rows_of(2))
    file = mine / f"generation-{Store(mine).current:06d}" / "state.safetensors"
    whole = file.read_bytes()
    for content in (whole[: len(whole) // 2], whole[:-1], b""):
        file.write_bytes(content)
        for command in (("predict", str(mine), "x"), ("learn", str(mine), more), ("inspect", str(mine))):
            refused(capsys, "not a readable Holdfast state", *command)
    file.write_bytes(whole)
    (mine / "CURRENT").write_text("nonsense")
    refused(capsys, "CURRENT is damaged", "predict", str(mine), "x")


def test_a_directory_of_other_things_is_left_alone(here, one_layer, capsys):
    source = table(here / "a.csv", rows_of(0))
    Path("README.md").write_text("mine")
    refused(capsys, r"contains other files, such as README\.md|such as a\.csv", "learn", ".", source)
    assert Path("README.md").read_text() == "mine"
    refused(capsys, "cannot be read as a state: Not a directory", "learn", source, source)
    refused(capsys, "cannot be read as a state: Not a directory", "predict", source, "x")
    refused(capsys, "File name too long", "learn", "x" * 300, source)


def test_trials_of_another_method_are_not_reused(here, one_layer, monkeypatch):
    """A first lesson is killed after its trial; the next one is begun with another method."""
    source = table(here / "a.csv", rows_of(0))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        assert call("learn", "mine", source, "--model", one_layer, "--method", "slda") == 130
    assert list(Path("mine/.trials").rglob("*.trial"))
    few = ("--set", "features=48")
    assert call("learn", "mine", source, "--model", one_layer, "--method", "ranpac", *few) == 0
    assert Learner.load("mine").origin.method == "ranpac"
    assert not Path("mine/.trials").exists()


def test_a_budget_is_for_auto_and_for_one_file(here, mine, one_layer, capsys):
    more = table(here / "more.csv", rows_of(2))
    assert call("learn", str(mine), more, "--budget", "0") == 0
    assert Learner.load(mine).method.sentences == 12_000
    assert call("learn", "plain", more, "--model", one_layer, "--method", "slda") == 0
    refused(capsys, "--budget works only with auto", "learn", "plain", more, "--budget", "5")


def test_a_field_called_keep_is_not_the_retention(here, one_layer):
    source = table(here / "a.csv", rows_of(0))
    arguments = ("--model", one_layer, "--set", "keep=0.3", "--keep", "2")
    assert call("learn", "mine", source, *arguments) == 0
    learner = Learner.load("mine")
    assert learner.method.keep == 0.3
    assert learner.origin.keep == 2


def test_half_characters_and_broken_lines_are_one_line(made, here, capsys, monkeypatch):
    source = here / "half.jsonl"
    source.write_text('{"text": "\\ud83d", "label": "x"}\n')
    refused(capsys, "line 1: column 'text' has an unpaired", "learn", str(here / "new"), str(source))
    refused(capsys, "text 1 has an unpaired surrogate", "predict", str(made), "\ud83d")


def test_validation_rows_of_older_labels_do_not_stop_a_training(here, one_layer):
    """The throw-away head does not know them; the closed-form one does."""
    learner = taught(one_layer, "mas+slda", tasks=1, lam=1.0)
    parts = {
        "train": Split.of(rows_of(1)),
        "valid": Split.of([*rows_of(1, "valid"), *rows_of(0, "valid")]),
    }
    lesson = learner.learn(Task("second", **parts, test=Split((), ())))
    assert lesson.decision.trial.fit["epochs"] > 0
    assert lesson.known[0] is not None


def full_disk(*args: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("broken", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_state(mine, tmp_path, capsys, monkeypatch, broken):
    more = table(tmp_path / "more.csv", rows_of(2))
    before = Learner.load(mine).predict(["music0 light1"])
    with monkeypatch.context() as patch:
        patch.setattr(files.os, broken, full_disk)
        refused(capsys, "No space left on device", "learn", str(mine), more)
    assert Store(mine).current == 2
    assert Learner.load(mine).predict(["music0 light1"]) == before
    assert call("learn", str(mine), more) == 0
    assert Store(mine).current == 3


@pytest.mark.slow
def test_a_read_only_directory_is_one_line(made, tmp_path):
    """Root may write anywhere, so it gives up that power first."""
    humble: list[str] = []
    if os.geteuid() == 0:
        if shutil.which("setpriv") is None:
            pytest.skip("root can write to read-only directories, and there is no setpriv to give that up")
        humble = ["setpriv", "--bounding-set=-dac_override", "--inh-caps=-dac_override"]
    mine, more = tmp_path / "mine", table(tmp_path / "more.csv", rows_of(2))
    shutil.copytree(made, mine)
    for path in (mine, *mine.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    ran = subprocess.run(
        [*humble, sys.executable, "-m", "holdfast", "learn", str(mine), more],
        capture_output=True,
        text=True,
        env=environment(),
    )
    for path in (mine, *mine.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert ran.returncode == 2, ran.stderr
    assert re.fullmatch(r"error: cannot write to \S+mine: Permission denied\n", ran.stderr)
    assert Learner.load(mine).classes_ == Learner.load(made).classes_


def test_a_second_writer_is_refused_and_readers_go_on(mine, tmp_path, capsys):
    more = table(tmp_path / "more.csv", rows_of(2))
    with locked(mine):
        for command in (
            ("learn", str(mine), more),
            ("forget-label", str(mine), "x"),
            ("rollback", str(mine), "1"),
        ):
            refused(capsys, "another process is at work", *command)
        assert call("predict", str(mine), "music0") == 0
    assert call("learn", str(mine), more) == 0


@pytest.mark.slow
def test_a_reader_never_sees_a_half_state(mine, tmp_path):
    """One process commits again and again, keeping one generation, while another loads."""
    script = (
        "import sys\nfrom pathlib import Path\nfrom holdfast.storage.generations import Store\n"
        "root = Path(sys.argv[1])\nfound = Store(root).load()\n"
        "while not Path(sys.argv[2]).exists():\n"
        "    Store(root, keep=1).commit(found.tensors, found.sections)\n"
    )
    first, stop = Store(mine).current, tmp_path / "stop"
    writer = subprocess.Popen([sys.executable, "-c", script, str(mine), str(stop)], env=environment())
    labels, loads = Store(mine).load().sections["learner"]["labels"], 0
    while loads < 200 or Store(mine).current < first + 20:
        assert writer.poll() is None
        assert Store(mine).load().sections["learner"]["labels"] == labels
        loads += 1
    stop.touch()
    assert writer.wait() == 0

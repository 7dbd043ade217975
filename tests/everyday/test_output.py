"""What commands write: nothing half, nothing that a terminal or a spreadsheet would execute."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from pathlib import Path

import pytest
import torch
from helpers.command_line import call, refused
from helpers.everyday import rows_of, table
from helpers.learners import create, taught

from holdfast import Learner
from holdfast.errors import HoldfastError
from holdfast.everyday.evaluate import Evaluation
from holdfast.heads import Taught
from holdfast.learning import directory
from holdfast.report.evaluation import MOST_DRAWN, write_evaluation
from holdfast.runtime.answers import Answer, written

# ---- --out --------------------------------------------------------------------------------------------


def test_an_error_leaves_the_output_file_as_it_was(made, here, capsys, monkeypatch):
    out = here / "answers.txt"
    out.write_text("earlier")
    source = table(here / "two.csv", rows_of(0, "test")[:2])
    answers = Learner.probabilities

    def fail_later(self, features, calls=[]):  # noqa: B006
        calls.append(1)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return answers(self, features)

    monkeypatch.setattr("holdfast.runtime.answers.chunks", lambda texts: ([text] for text in texts))
    monkeypatch.setattr(Learner, "probabilities", fail_later)
    refused(capsys, "No space left", "predict", str(made), "--file", source, "--out", str(out))
    assert out.read_text() == "earlier"
    assert {path.name for path in here.iterdir()} == {"answers.txt", "two.csv"}, "nothing is left over"


def test_the_output_file_stays_private_and_leftovers_go(made, here):
    out = here / "answers.txt"
    out.write_text("earlier")
    out.chmod(0o600)
    (here / ".answers.txt.0123abcd.tmp").write_text("of a killed process")
    assert call("predict", str(made), "music0", "--out", str(out)) == 0
    assert out.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in here.iterdir()] == ["answers.txt"]


def test_output_goes_through_a_link_and_into_a_device(made, here):
    (here / "target.txt").write_text("earlier")
    (here / "link.txt").symlink_to(here / "target.txt")
    assert call("predict", str(made), "music0", "--out", "link.txt") == 0
    assert (here / "link.txt").is_symlink()
    assert (here / "target.txt").read_text().endswith("\tmusic0\n")
    assert call("predict", str(made), "music0", "--out", "/dev/null") == 0
    assert Path("/dev/null").is_char_device()


# ---- lines of a stream --------------------------------------------------------------------------------


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = b"music0\n\xff\xfe\nlight0\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(lines), encoding="utf-8"))


def test_a_bad_line_is_answered_with_an_error_and_the_stream_goes_on(made, stdin, capsys):
    assert call("predict", str(made), "-", "--format", "jsonl") == 0
    first, bad, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert [first["label"], last["label"]] == Learner.load(made).predict(["music0", "light0"])
    assert bad == {"text": "\\udcff\\udcfe", "error": "the line is not UTF-8; convert it first"}


def test_several_sentences_are_answered_in_their_order(
    made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call("predict", str(made), "music0", "light0", "--format", "jsonl") == 0
    answers = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["label"] for one in answers] == Learner.load(made).predict(["music0", "light0"])
    refused(capsys, "the sentence is empty", "predict", str(made), "music0", " ")


@pytest.mark.parametrize(("style", "mark"), [("text", "(error)\t0.000\t"), ("csv", ",(error),")])
def test_a_bad_line_in_other_formats(style, mark, made, stdin, capsys):
    assert call("predict", str(made), "-", "--format", style) == 0
    lines = capsys.readouterr().out.splitlines()
    assert mark in lines[-2]
    assert "light" in lines[-1]


# ---- labels and cells ---------------------------------------------------------------------------------


@pytest.mark.parametrize("label", ["a\nb", "a\x1b[31mb", "a\u2028b", "a\x00b", "(unknown)", "(error)"])
def test_labels_that_cannot_be_printed_are_refused(label, one_layer, tmp_path, capsys):
    source = tmp_path / "rows.jsonl"
    source.write_text("".join(json.dumps({"text": f"music{i}", "label": label}) + "\n" for i in range(3)))
    state = tmp_path / "state"
    said = "cannot be a label" if label.startswith("(") else "contains a line break or control character"
    refused(capsys, said, "learn", str(state), str(source), "--model", one_layer)
    assert not state.exists()


def test_notes_about_a_file_are_escaped(one_layer, tmp_path, capsys):
    """They come before the labels are refused."""
    source = tmp_path / "rows.jsonl"
    labels = ("red\x1b[31m", "red\x1b[31m ", "x\x1b]0;title\x07")
    source.write_text("".join(json.dumps({"text": "music0", "label": label}) + "\n" for label in labels))
    assert call("learn", str(tmp_path / "state"), str(source), "--model", one_layer) == 2
    said = capsys.readouterr()
    assert "texts with more than one label" in said.out
    assert "\x1b" not in said.out + said.err


def test_labels_of_old_states_are_escaped(one_layer, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as past:
        past.setattr("holdfast.learning.learner.check_labels", lambda labels: None)
        learner = taught(one_layer, tasks=1)
        learner.learn(["food0 food1", "food1 food2"], ["red\x1b[31m\nalert", "red\x1b[31m\nalert"])
        learner.save(tmp_path)
    capsys.readouterr()
    assert call("predict", str(tmp_path), "food0 food1 food2", "--top", "9") == 0
    assert call("inspect", str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "\x1b[31m" not in said
    assert said.count(r"red\x1b[31m\nalert") == 2
    more = Learner.load(tmp_path)
    more.learn(["food2"], ["red\x1b[31m\nalert"])  # more of a label it knows


@pytest.mark.parametrize(("top", "shown"), [(1, ""), (2, "\tmail 0.800\tstock 0.200")])
def test_the_best_label_of_an_unknown_sentence_is_named(top, shown):
    answer = Answer("hello", None, 0.8, [("mail", 0.8), ("stock", 0.2)][:top])
    assert list(written([answer], "text")) == [f"(unknown)\t0.800\thello{shown}"]


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1"])
def test_cells_that_begin_a_formula_are_quoted(text):
    answer = Answer(text, text.strip(), 0.5, [(text, 0.5)])
    head, line = written([answer], "csv")
    [(cell, label, _)] = csv.reader(io.StringIO(line))
    assert head == "text,label,probability"
    assert (cell, label[0]) == (f"'{text}", "'")
    assert json.loads(next(written([answer], "jsonl")))["text"] == text, "only CSV is for spreadsheets"


def test_a_matrix_of_many_labels_stays_small(tmp_path):
    labels = [f"label {i:04d}" for i in range(3000)]
    pairs = Counter({(label, label): 3 for label in labels})
    pairs |= {(labels[7], labels[2999]): 5, (labels[8], labels[9]): 1}
    rows = [(label, 1.0, 1.0, 1.0, 3) for label in labels]
    page = write_evaluation(tmp_path / "eval.html", Evaluation(0.9, rows, pairs), about="many")
    assert page.stat().st_size < 1.5e6
    drawn = re.findall(r"<title>(label \d+) as \1: 3</title>", page.read_text())
    assert len(drawn) == MOST_DRAWN
    assert {"label 0007", "label 0008", "label 0009", "label 2999"} <= set(drawn)
    assert f"Only {MOST_DRAWN} of 3000 labels" in page.read_text()


def test_names_in_the_card_are_not_markup(one_layer):
    learner = taught(one_layer, tasks=1)
    learner.history[0]["task"] = "a|b`c\n<img src=x> [d](http://e) *f*"
    card = directory.card(learner.made_of, learner.model.head, learner.history, ["<b>x|y`z"])
    [row] = [line for line in card.splitlines() if line.startswith("| a")]
    assert row.startswith(r"| a\|b'c &lt;img src=x&gt; \[d\](http://e) \*f\* |")
    assert "\n`<b>x|y'z`\n" in card, "in a code span nothing is markup"


# ---- limits -------------------------------------------------------------------------------------------


def test_a_wrong_label_column_is_one_line_before_anything_is_computed(
    one_layer, tmp_path, monkeypatch, capsys
):
    source = table(tmp_path / "ids.csv", [(f"music{i % 3}", str(i)) for i in range(50_000)], ("text", "id"))

    def refuse(*args, **kwargs):
        raise AssertionError("nothing is embedded")

    monkeypatch.setattr("holdfast.models.network.Network.embed", refuse)
    monkeypatch.setattr("holdfast.learning.learner.MOST_BYTES", 1e7)
    said = r"50,000 labels would take .*; is 'id' the label column"
    refused(
        capsys, said, "learn", str(tmp_path / "new"), source, "--model", one_layer, "--label-column", "id"
    )
    assert not (tmp_path / "new").exists()
    learner = create(one_layer)
    with pytest.raises(HoldfastError, match="are these labels, not identifiers"):
        learner.learn([f"music{i}" for i in range(50_000)], [str(i) for i in range(50_000)])
    assert learner.classes_ == []


@pytest.mark.parametrize("method", ["slda", "klda", "ranpac", "mas"])
def test_a_label_takes_the_memory_that_the_limit_assumes(method, one_layer):
    learner = taught(one_layer, method, tasks=1)
    head, sizes = learner.model.head, []
    for labels in (["a"], ["b", "c", "d"]):
        head.add(labels)
        if not head.trained:  # with more sentences than dimensions a label takes the most
            named = labels * 40
            head.take_in(Taught(torch.randn(len(named), 32), named))
        tensors = [*head.parameters()] if head.trained else [*head.statistics().values()]
        sizes.append(sum(tensor.nbytes for tensor in tensors))
    assert sizes[1] - sizes[0] == 3 * head.bytes_per_label

"""The everyday commands as a user meets them: what they print, what they refuse, what they leave behind."""

from __future__ import annotations

import csv
import io
import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command_line import call, environment, refused
from helpers.everyday import rows_of, table
from helpers.learners import STREAM, taught
from helpers.toys import DOMAIN_WORDS, KEYWORDS, sentences

from holdfast import Learner
from holdfast.data.readers import Row
from holdfast.everyday.predict import answers
from holdfast.everyday.teach import oddities
from holdfast.runtime.answers import Asked
from holdfast.storage.generations import Store

# ---- learn --------------------------------------------------------------------------------------------


def test_learn_says_what_was_learnt(here, one_layer, capsys):
    first, second = (table(here / f"{n}.csv", rows_of(n)) for n in (0, 1))
    assert call("learn", "mine", first, "--model", one_layer) == 0
    said = capsys.readouterr().out
    assert "learnt 24 sentences: 2 new labels; 2 labels known" in said
    assert "validation macro-F1" not in said, "of a handful of sentences it would be noise"
    assert "left out for validation: " in said
    assert said.count("unchanged") == 1, "in the line that says why"
    assert "auto left the encoder unchanged" in said
    assert "mine: generation 1" in said
    mixed = table(here / "mixed.csv", rows_of(0)[:12] + rows_of(1))
    assert call("learn", "mine", mixed) == 0
    said = capsys.readouterr().out
    assert "2 new labels and more examples of 2 known labels; 4 labels known" in said
    assert "generation 2" in said
    many = table(here / "many.csv", 10 * (rows_of(0) + rows_of(2)))
    assert call("learn", "mine", many) == 0
    said = capsys.readouterr().out
    assert re.search(r"validation macro-F1 of this file: \d+\.\d \(\d+ left-out sentences\)", said)
    assert re.search(r"of known labels: \d+\.\d before, \d+\.\d after", said)
    assert second


def test_generations_say_what_made_them_and_how_many_are_kept(mine, here, capsys):
    assert call("rename-label", "mine", rows_of(0)[0][1], "new name") == 0
    assert call("inspect", "mine") == 0
    said = capsys.readouterr().out
    assert re.search(r"2 +\d+\.\d +20\d\d-.*learn: week1", said)
    assert re.search(r"3 +.* current +rename-label: ", said)
    assert "the newest 5 are kept" in said
    assert call("learn", "mine", table(here / "week2.csv", rows_of(2)), "--keep", "2") == 0
    assert "generations 1, 2 deleted" in capsys.readouterr().out
    assert call("inspect", "mine", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["keep"] == 2
    assert [one["made"].partition(":")[0] for one in found["generations"]] == ["rename-label", "learn"]
    assert call("learn", "mine", table(here / "week3.csv", rows_of(1)[:3])) == 0
    assert "deleted" not in capsys.readouterr().out, "only when a number was given"


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_other_kinds_of_file_and_columns(here, one_layer, kind):
    if kind == "tsv":
        source = table(here / "a.tsv", rows_of(0), ("utterance", "intent"))
    else:
        source = str(here / "a.jsonl")
        lines = [json.dumps({"utterance": text, "intent": label}) for text, label in rows_of(0)]
        Path(source).write_text("\n".join(lines))
    columns = ("--text-column", "utterance", "--label-column", "intent")
    assert call("learn", "mine", source, *columns, "--model", one_layer) == 0
    assert Learner.load("mine").classes_ == list(STREAM.tasks[0].labels)


def test_a_split_column_is_honoured(here, one_layer):
    rows = [(*row, "train") for row in rows_of(0)] + [(*row, "valid") for row in rows_of(0, "valid")]
    assert (
        call("learn", "mine", table(here / "a.csv", rows, ("text", "label", "split")), "--model", one_layer)
        == 0
    )
    learner = Learner.load("mine")
    assert float(learner.model.head.past.counts.sum()) == 24, (
        "validation sentences that were given are not learnt"
    )
    assert learner.history[0]["sentences"] == 36


@pytest.mark.parametrize("method", ["auto", "slda", "rda", "klda", "ranpac"])
def test_one_label_and_one_example_are_enough(here, one_layer, method):
    few = ("--set", "features=48") if method in ("klda", "ranpac") else ()
    one = table(here / "one.csv", [("music0 music1", "music")])
    assert call("learn", "mine", one, "--model", one_layer, "--method", method, *few) == 0
    assert call("learn", "mine", table(here / "more.csv", rows_of(1))) == 0
    assert call("learn", "mine", table(here / "last.csv", [("food0 food1 food2", "food")])) == 0
    learner = Learner.load("mine")
    assert learner.classes_ == ["music", *STREAM.tasks[1].labels, "food"]
    if method != "ranpac":  # one sentence among many moves a ridge regression little
        assert learner.predict(["food0 food1 food2"]) == ["food"]
    assert learner.history[0]["score"] is None


def test_oddities_are_counted_and_reported(here, one_layer, capsys):
    rows = [
        *rows_of(0),
        *rows_of(0)[:3],
        (rows_of(0)[0][0], "something else"),
        ("a b", "Music "),
        ("b", "music"),
    ]
    odd = table(here / "odd.csv", rows)
    assert call("learn", "mine", odd, "--model", one_layer, "--budget", "0") == 0
    said = capsys.readouterr().out
    assert "rows that repeat another row: 3;" in said
    assert "texts with more than one label: 1," in said
    assert "'Music ' and 'music' differ only in case, spaces" in said
    assert float(Learner.load("mine").model.head.past.counts.sum()) == len(rows)


def test_a_label_that_looks_like_a_known_one_is_reported():
    found = oddities([Row("x", "Play Music")], ["play music", "other"])
    assert len(found) == 1
    assert "'Play Music' and 'play music'" in str(found[0])


def test_strange_texts_are_learnt_and_predicted(here, one_layer, capsys):
    strange = [
        "🎉🎉 party",
        "مرحبا بالعالم",
        "שלום עולם",
        "a" * 2**20,
        'tab\tand "quotes", commas',
        "line\nbreak",
    ]
    rows = [(text, "strange") for text in strange] + rows_of(0)
    assert call("learn", "mine", table(here / "s.csv", rows), "--model", one_layer) == 0
    capsys.readouterr()
    for text in strange[:3]:
        assert call("predict", "mine", text, "--format", "jsonl") == 0
        assert json.loads(capsys.readouterr().out)["text"] == text


def test_what_was_begun_cannot_be_begun_otherwise(mine, one_layer, tmp_path, capsys):
    more = table(tmp_path / "more.csv", rows_of(2))
    before = Store(mine).current
    for arguments, expected in (
        (("--method", "la"), "was created with --method auto"),
        (("--model", one_layer), "was made with another encoder than"),
        (("--set", "thr=0.5"), "works only for a new directory"),
        (("--set", "nonsense=1"), "works only for a new directory"),
    ):
        refused(capsys, expected, "learn", str(mine), more, *arguments)
    assert Store(mine).current == before
    assert call("learn", str(mine), more, "--budget", "0", "--keep", "2") == 0
    assert Store(mine).generations == [2, 3]


def test_the_same_model_by_another_path_is_the_same(mine, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.chdir(Path(tiny_bert).parent)
    more = table(tmp_path / "more.csv", rows_of(2))
    assert call("learn", str(mine), more, "--model", Path(tiny_bert).name) == 0


def test_bad_files_are_one_line_and_change_nothing(mine, tmp_path, capsys):
    before = sorted(path.name for path in mine.iterdir())
    nul, latin, empty = tmp_path / "nul.csv", tmp_path / "latin.csv", tmp_path / "empty.csv"
    nul.write_bytes(b"text,label\nab\0c,yes\n")
    latin.write_bytes(b"text,label\ncaf\xe9,yes\n")
    empty.write_text("")
    cases = {
        table(
            tmp_path / "a.csv", rows_of(0), ("texte", "label")
        ): r"no column 'text' \(did you mean 'texte'\?\)",
        table(tmp_path / "b.csv", [*rows_of(0), ("", "x")]): r"line 26: column 'text' is empty",
        table(tmp_path / "c.csv", [*rows_of(0), ("x", "  ")]): r"line 26: column 'label' is empty",
        table(tmp_path / "d.csv", []): "no rows",
        str(nul): "line 2: contains a NUL byte",
        str(latin): "UTF-8",
        str(empty): "empty",
        str(tmp_path / "none.csv"): "no such file",
        str(tmp_path / "x.xlsx"): "no such file|cannot read",
        table(tmp_path / "e.csv", [("a", "b", "valid")], ("text", "label", "split")): "no 'train' rows",
    }
    for source, expected in cases.items():
        refused(capsys, expected, "learn", str(mine), source)
    assert sorted(path.name for path in mine.iterdir()) == before
    refused(capsys, "no such file", "learn", str(tmp_path / "new"), str(tmp_path / "none.csv"))
    assert not (tmp_path / "new").exists(), "nothing is left of a learner that never was"


def test_a_trained_head_needs_two_labels_and_leaves_nothing(here, one_layer, capsys):
    one = table(here / "one.csv", [(text, "music") for text, _ in rows_of(0)])
    refused(capsys, "only the label 'music'", "learn", "mine", one, "--method", "la", "--model", one_layer)
    assert not Path("mine").exists()


@pytest.mark.slow
def test_many_rows_in_bounded_memory(here, one_layer):
    """100,000 rows: progress lines, and memory that does not hold them twice over."""
    draw = random.Random(0)
    rows = [
        (text, label)
        for label, words in KEYWORDS.items()
        for text in sentences(draw, words, 100_000 // len(KEYWORDS) + 1)
    ]
    source = table(here / "many.csv", rows)
    script = (
        "import sys, torch\nfrom holdfast.app import main as cli\n"
        "from holdfast.bench.run import _peak_memory\n"
        f"sys.argv = ['holdfast', 'learn', 'mine', {source!r}, '--model', {one_layer!r}, '--threads', '1']\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('peak', _peak_memory(torch.device('cpu')) // 2**20)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=here, env=environment()
    )
    assert done.returncode == 0, done.stderr
    assert "learnt 100002 sentences" in done.stdout
    assert int(re.search(r"peak (\d+)", done.stdout)[1]) < 1500, "megabytes"


# ---- predict ------------------------------------------------------------------------------------------


def test_predict_a_text(made, capsys):
    text, label = rows_of(0, "test")[0]
    assert call("predict", str(made), text, "--top", "3") == 0
    line = capsys.readouterr().out.strip().split("\t")
    assert line[0] == label
    assert 0.5 < float(line[1]) <= 1
    assert len(line) == 5


@pytest.mark.parametrize("style", ["text", "jsonl", "csv"])
def test_predict_a_file(made, tmp_path, capsys, style):
    rows = [*rows_of(0, "test"), ('with "quotes", and commas', "x")]
    source, out = table(tmp_path / "t.csv", rows), tmp_path / "out"
    assert (
        call("predict", str(made), "--file", source, "--format", style, "--out", str(out), "--top", "2") == 0
    )
    assert capsys.readouterr().out == ""
    lines = out.read_text().splitlines()
    if style == "jsonl":
        found = [json.loads(line) for line in lines]
        assert [one["text"] for one in found] == [text for text, _ in rows]
        assert all(len(one["top"]) == 2 and one["top"][0]["label"] == one["label"] for one in found)
        labels = [one["label"] for one in found]
    elif style == "csv":
        found = list(csv.DictReader(io.StringIO(out.read_text())))
        assert [one["text"] for one in found] == [text for text, _ in rows]
        labels = [one["label"] for one in found]
    else:
        labels = [line.split("\t")[0] for line in lines]
    assert labels == Learner.load(made).predict([text for text, _ in rows])


def test_predict_plain_lines_and_bad_requests(made, tmp_path, capsys):
    lines = tmp_path / "lines.txt"
    lines.write_text("music0 music1\n\nlight0\n")
    assert call("predict", str(made), "--file", str(lines)) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    refused(capsys, "give sentences", "predict", str(made))
    refused(capsys, "is not one of 'text', 'jsonl', 'csv'", "predict", str(made), "x", "--format", "xml")
    refused(capsys, "between 0.5 and 0.99", "predict", str(made), "x", "--reject", "2")
    refused(capsys, "holds no Holdfast state", "predict", str(tmp_path / "none"), "x")
    refused(capsys, "cannot write", "predict", str(made), "x", "--out", str(tmp_path / "no" / "where"))


def test_unknown_inputs_are_told(made, capsys):
    learner = Learner.load(made)
    head, known = learner.model.head, [text for text, _ in rows_of(0, "test")]
    strange = [" ".join(words) for words in DOMAIN_WORDS.values()] + ["of to and in " * 8]
    found = answers(learner, [*known, *strange], Asked(reject=0.8))
    assert learner.is_unknown([*known, *strange], reject=0.8) == [one.label is None for one in found]
    far = head.distances(learner.model.embed([*known, *strange])) > head.threshold(0.8)
    assert [answer.label is None for answer in found] == far.tolist()
    outside = [answer.text for answer in found[len(known) :] if answer.label is None]
    assert outside
    assert sum(answer.label is not None for answer in found[: len(known)]) > len(known) / 2
    assert call("predict", str(made), outside[0], "--reject", "0.8") == 0
    assert capsys.readouterr().out.startswith("(unknown)")


def test_sets_hold_the_labels_that_are_likely_enough(made, capsys):
    learner, texts = Learner.load(made), [text for text, _ in rows_of(0, "test")]
    narrow, wide = (learner.predict_set(texts, cover) for cover in (0.5, 0.99))
    assert all(set(few) <= set(many) for few, many in zip(narrow, wide, strict=True))
    assert sum(map(len, narrow)) < sum(map(len, wide))
    best = learner.predict(texts)
    assert all(own[0] == label for own, label in zip(wide, best, strict=True) if own)
    assert call("predict", str(made), texts[0], "--set", "0.99", "--format", "jsonl") == 0
    assert json.loads(capsys.readouterr().out)["set"] == wide[0]
    assert call("predict", str(made), texts[0], "--set", "0.99", "--format", "csv") == 0
    header, line = csv.reader(io.StringIO(capsys.readouterr().out))
    assert header == ["text", "label", "probability", "set"]
    assert json.loads(line[3]) == wide[0]
    assert call("predict", str(made), texts[0], "--set", "0.99") == 0
    assert capsys.readouterr().out.rstrip().endswith("{" + ", ".join(wide[0]) + "}")
    refused(capsys, "sets can keep between 0.5 and 0.99", "predict", str(made), "x", "--set", "1.5")


def test_an_improbable_label_is_no_answer(made, capsys):
    text = rows_of(0, "test")[0][0]
    for least, unknown in (("0.0", False), ("1.0", True)):
        assert call("predict", str(made), text, "--min-probability", least) == 0
        assert capsys.readouterr().out.startswith("(unknown)") == unknown


def test_a_trained_head_cannot_reject(here, one_layer, capsys):
    taught(one_layer, "seq", tasks=1).save("mine")
    said = "this head cannot detect unknown inputs; use the method auto, slda, rda or klda"
    refused(capsys, said, "predict", "mine", "x", "--reject", "0.95")
    refused(capsys, "no prediction sets; use the method auto", "predict", "mine", "x", "--set", "0.9")


@pytest.mark.slow
def test_lines_from_stdin_are_answered_as_they_come(made):
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast", "predict", str(made), "-", "--threads", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for text, label in (rows_of(0, "test")[0], rows_of(1, "test")[0]):
        print(text, file=process.stdin, flush=True)
        assert process.stdout.readline().split("\t")[0] == label, "before the stream ends"
    process.stdin.close()
    assert process.wait(60) == 0

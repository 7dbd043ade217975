"""The everyday commands as a user meets them: what they print, what they refuse, what they leave behind."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import DOMAIN_WORDS, KEYWORDS, ROOT, class_stream, sentences
from test_cli import call
from test_state import taught

from holdfast import Learner, everyday, files
from holdfast.data.readers import Row
from holdfast.data.tasks import Split, Task
from holdfast.files import locked
from holdfast.store import Store

STREAM = class_stream()


def table(path: Path, rows: list[tuple[str, str]], header: tuple[str, ...] = ("text", "label")) -> str:
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",").writerows([header, *rows])
    return str(path)


def rows_of(task: int, part: str = "train") -> list[tuple[str, str]]:
    split = getattr(STREAM.tasks[task], part)
    return list(zip(split.texts, split.labels, strict=True))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of one's own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def made(tiny_bert: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A learner of two lessons; nobody may change it."""
    place = tmp_path_factory.mktemp("made")
    for number in (0, 1):
        source = table(place / f"week{number}.csv", rows_of(number))
        assert call("learn", str(place / "mine"), source, "--model", tiny_bert, "--threads", "1") == 0
    return place / "mine"


@pytest.fixture
def mine(made: Path, tmp_path: Path) -> Path:
    """A copy of it that may be changed."""
    copy = tmp_path / "mine"
    shutil.copytree(made, copy)
    return copy


def refused(capsys: pytest.CaptureFixture[str], expected: str, *arguments: str) -> None:
    """One clear line on stderr, exit code 2."""
    capsys.readouterr()
    assert call(*arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert re.search(expected, lines[0]), lines[0]


# ---- learn --------------------------------------------------------------------------------------------


def test_learn_says_what_was_learnt(here, tiny_bert, capsys):
    first, second = (table(here / f"{n}.csv", rows_of(n)) for n in (0, 1))
    assert call("learn", "mine", first, "--model", tiny_bert) == 0
    said = capsys.readouterr().out
    assert "learnt 24 sentences: 2 new labels; 2 labels known" in said
    assert "validation macro-F1 of this file: " in said
    assert "features moved not at all" in said
    assert "auto chose frozen" in said
    assert "mine: generation 1" in said
    mixed = table(here / "mixed.csv", rows_of(0)[:12] + rows_of(1))
    assert call("learn", "mine", mixed) == 0
    said = capsys.readouterr().out
    assert "2 new labels and more of 2 known ones; 4 labels known" in said
    assert re.search(r"of labels it knew: \d+\.\d before, \d+\.\d after", said)
    assert "generation 2" in said
    assert second


@pytest.mark.parametrize("kind", ["tsv", "jsonl"])
def test_other_kinds_of_file_and_columns(here, tiny_bert, kind):
    if kind == "tsv":
        source = table(here / "a.tsv", rows_of(0), ("utterance", "intent"))
    else:
        source = str(here / "a.jsonl")
        lines = [json.dumps({"utterance": text, "intent": label}) for text, label in rows_of(0)]
        Path(source).write_text("\n".join(lines))
    columns = ("--text-column", "utterance", "--label-column", "intent")
    assert call("learn", "mine", source, *columns, "--model", tiny_bert) == 0
    assert Learner.load("mine").classes_ == list(STREAM.tasks[0].labels)


def test_a_split_column_is_honoured(here, tiny_bert):
    rows = [(*row, "train") for row in rows_of(0)] + [(*row, "valid") for row in rows_of(0, "valid")]
    assert (
        call("learn", "mine", table(here / "a.csv", rows, ("text", "label", "split")), "--model", tiny_bert)
        == 0
    )
    learner = Learner.load("mine")
    assert float(learner.model.head.past.counts.sum()) == 24, (
        "validation sentences that were given are not learnt"
    )
    assert learner.history[0]["sentences"] == 36


@pytest.mark.parametrize("method", ["auto", "slda", "klda", "ranpac"])
def test_one_label_and_one_example_are_enough(here, tiny_bert, method):
    few = ("--set", "features=48") if method in ("klda", "ranpac") else ()
    one = table(here / "one.csv", [("music0 music1", "music")])
    assert call("learn", "mine", one, "--model", tiny_bert, "--method", method, *few) == 0
    assert call("learn", "mine", table(here / "more.csv", rows_of(1))) == 0
    assert call("learn", "mine", table(here / "last.csv", [("food0 food1 food2", "food")])) == 0
    learner = Learner.load("mine")
    assert learner.classes_ == ["music", *STREAM.tasks[1].labels, "food"]
    if method != "ranpac":  # one sentence among many moves a ridge regression little
        assert learner.predict(["food0 food1 food2"]) == ["food"]
    assert learner.history[0]["score"] is None


def test_oddities_are_counted_and_reported(here, tiny_bert, capsys):
    rows = [
        *rows_of(0),
        *rows_of(0)[:3],
        (rows_of(0)[0][0], "something else"),
        ("a b", "Music "),
        ("b", "music"),
    ]
    odd = table(here / "odd.csv", rows)
    assert call("learn", "mine", odd, "--model", tiny_bert, "--budget", "0") == 0
    said = capsys.readouterr().out
    assert "3 rows repeat another one" in said
    assert "1 texts have more than one label" in said
    assert "'Music ' and 'music' differ only by case or spaces" in said
    assert float(Learner.load("mine").model.head.past.counts.sum()) == len(rows)


def test_a_label_that_looks_like_a_known_one_is_reported():
    found = everyday.oddities([Row("x", "Play Music")], ["play music", "other"])
    assert len(found) == 1
    assert "'Play Music' and 'play music'" in found[0]


def test_strange_texts_are_learnt_and_predicted(here, tiny_bert, capsys):
    strange = [
        "🎉🎉 party",
        "مرحبا بالعالم",
        "שלום עולם",
        "a" * 2**20,
        'tab\tand "quotes", commas',
        "line\nbreak",
    ]
    rows = [(text, "strange") for text in strange] + rows_of(0)
    assert call("learn", "mine", table(here / "s.csv", rows), "--model", tiny_bert) == 0
    capsys.readouterr()
    for text in strange[:3]:
        assert call("predict", "mine", text, "--format", "jsonl") == 0
        assert json.loads(capsys.readouterr().out)["text"] == text


def test_what_was_begun_cannot_be_begun_otherwise(mine, tiny_bert, one_layer, tmp_path, capsys):
    more = table(tmp_path / "more.csv", rows_of(2))
    before = Store(mine).current
    for arguments, expected in (
        (("--method", "la"), "was begun with --method auto"),
        (("--model", one_layer), "was begun with --model"),
        (("--set", "thr=0.5"), "can only be given to a new directory"),
        (("--set", "nonsense=1"), "can only be given to a new directory"),
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
        str(nul): "line 2: a NUL byte",
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


def test_a_trained_head_needs_two_labels_and_leaves_nothing(here, tiny_bert, capsys):
    one = table(here / "one.csv", [(text, "music") for text, _ in rows_of(0)])
    refused(capsys, "one label, 'music'", "learn", "mine", one, "--method", "la", "--model", tiny_bert)
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
        "import resource, sys\nfrom holdfast import cli\n"
        f"sys.argv = ['holdfast', 'learn', 'mine', {source!r}, '--model', {one_layer!r}, '--threads', '1']\n"
        "try:\n    cli.main()\nexcept SystemExit as end:\n    assert not end.code\n"
        "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=here, env=_env()
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
    refused(capsys, "give a sentence", "predict", str(made))
    refused(capsys, "unknown format", "predict", str(made), "x", "--format", "xml")
    refused(capsys, "between 0.5 and 0.99", "predict", str(made), "x", "--reject", "2")
    refused(capsys, "holds no Holdfast state", "predict", str(tmp_path / "none"), "x")
    refused(capsys, "cannot write", "predict", str(made), "x", "--out", str(tmp_path / "no" / "where"))


def test_unknown_inputs_are_told(made, capsys):
    learner = Learner.load(made)
    head, known = learner.model.head, [text for text, _ in rows_of(0, "test")]
    strange = [" ".join(words) for words in DOMAIN_WORDS.values()] + ["of to and in " * 8]
    answers = everyday.answers(learner, [*known, *strange], reject=0.8)
    far = head.distances(learner.model.embed([*known, *strange])) > head.threshold(0.8)
    assert [answer.label is None for answer in answers] == far.tolist()
    outside = [answer.text for answer in answers[len(known) :] if answer.label is None]
    assert outside
    assert sum(answer.label is not None for answer in answers[: len(known)]) > len(known) / 2
    assert call("predict", str(made), outside[0], "--reject", "0.8") == 0
    assert capsys.readouterr().out.startswith("(unknown)")


def test_a_trained_head_cannot_reject(here, tiny_bert, capsys):
    taught(tiny_bert, "seq", tasks=1).save("mine")
    refused(capsys, "trained head has no distance", "predict", "mine", "x", "--reject", "0.95")


@pytest.mark.slow
def test_lines_from_stdin_are_answered_as_they_come(made):
    process = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "predict", str(made), "-", "--threads", "1"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=_env(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for text, label in (rows_of(0, "test")[0], rows_of(1, "test")[0]):
        print(text, file=process.stdin, flush=True)
        assert process.stdout.readline().split("\t")[0] == label, "before the stream ends"
    process.stdin.close()
    assert process.wait(60) == 0


# ---- eval, inspect, rollback, forget -------------------------------------------------------------------


def test_eval_prints_the_score_and_draws_the_confusions(made, here, capsys):
    source = table(here / "t.csv", rows_of(0, "test") + rows_of(1, "test"))
    assert call("eval", str(made), source) == 0
    said = capsys.readouterr().out
    learner = Learner.load(made)
    texts, labels = zip(*rows_of(0, "test"), *rows_of(1, "test"), strict=True)
    score = learner.score(texts, labels)
    assert f"macro-F1 {100 * score:.2f}" in said
    assert all(label in said for label in learner.classes_)
    picture = Path("confusion.svg").read_text()
    assert picture.startswith("<svg")
    right = sum(gold == label for gold, label in zip(labels, learner.predict(texts), strict=True))
    cells = {tuple(m) for m in re.findall(r"<title>(\w+) as (\w+): (\d+)</title>", picture)}
    assert sum(int(n) for gold, label, n in cells if gold == label) == right


def test_csv_answers_are_csv_whatever_a_text_holds(made, here, capsys):
    odd = 'play\nsome "jazz", please'
    source = table(here / "odd.csv", [(odd, "x"), ("light0", "x")])
    assert call("predict", str(made), "--file", source, "--format", "csv") == 0
    rows = list(csv.reader(io.StringIO(capsys.readouterr().out)))
    assert [row[0] for row in rows] == ["text", odd, "light0"]
    assert {len(row) for row in rows} == {3}


def test_a_file_that_was_learnt_before_is_noted(mine, tmp_path, capsys):
    more = table(tmp_path / "more.csv", rows_of(2))
    for _ in range(2):
        assert call("learn", str(mine), more, "--budget", "0") == 0
    assert capsys.readouterr().out.count("these very rows were learnt before (1 times)") == 1


def test_texts_that_are_cut_are_noted(here, tiny_bert, capsys):
    rows = [*rows_of(0), (" ".join(["light0"] * 40), "light")]
    source = table(here / "long.csv", rows)
    options = ("--model", tiny_bert, "--method", "slda")
    assert call("learn", "short", source, *options, "--set", "max_length=16") == 0
    assert "of 1 texts only the first 16 tokens are read" in capsys.readouterr().out
    assert Learner.load("short").settings.max_length == 16
    assert call("learn", "whole", source, *options) == 0
    assert "tokens are read" not in capsys.readouterr().out


def test_forgetting_can_drop_what_still_knows(mine, tmp_path, capsys):
    label = Learner.load(mine).classes_[0]
    assert call("forget-label", str(mine), label, "--keep", "1") == 0
    assert "older" not in capsys.readouterr().out
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
    told = re.escape(json.dumps({"current": numbers[-1], "generations": numbers}))
    refused(capsys, f"has lost its file CURRENT; write {told} into it", "learn", str(mine), more)
    assert sorted(path.name for path in mine.iterdir()) == kept


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
    assert call("inspect", str(made), "--picture", "layers.svg") == 0
    said = capsys.readouterr().out
    assert "method auto" in said
    assert "2 lessons" in said
    assert all(label in said for label in Learner.load(made).classes_)
    assert "current" in said
    assert "hold fast to nothing" in said
    assert Path("layers.svg").read_text().startswith("<svg")


def test_inspect_shows_what_layers_hold_fast_to(here, tiny_bert, capsys):
    learner = taught(tiny_bert, "la", lam=1.0, down=0.5, up=1.0)
    assert set(learner.history[-1]["rho"]) == {"layer 1", "layer 2"}
    learner.save("mine")
    assert call("inspect", "mine", "--picture", "layers.svg") == 0
    said = capsys.readouterr().out
    assert "layer 1" in said
    assert "layer 2" in said
    assert "ρ 0." in said
    assert " 1.00" in said
    assert "layer 2" in Path("layers.svg").read_text()


def test_rollback_and_forget(mine, capsys):
    gone = Learner.load(mine).classes_[0]
    refused(capsys, "unknown label 'nobody'", "forget-label", str(mine), "nobody")
    assert call("forget-label", str(mine), gone) == 0
    assert "forgotten; traces of it stay in what held-out sentences have set" in capsys.readouterr().out
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
    newer = whole.replace(b'{\\"format\\": 1', b'{\\"format\\": 9', 1)
    assert newer != whole
    file.write_bytes(newer)
    refused(capsys, r"newer Holdfast \(format 9\); upgrade", "predict", str(mine), "x")
    file.write_bytes(whole)
    (mine / "CURRENT").write_text("nonsense")
    refused(capsys, "CURRENT is damaged", "predict", str(mine), "x")


def test_a_directory_of_other_things_is_left_alone(here, tiny_bert, capsys):
    source = table(here / "a.csv", rows_of(0))
    Path("README.md").write_text("mine")
    refused(capsys, r"holds other things, such as README\.md|such as a\.csv", "learn", ".", source)
    assert Path("README.md").read_text() == "mine"
    refused(capsys, "cannot be read as a state: Not a directory", "learn", source, source)
    refused(capsys, "cannot be read as a state: Not a directory", "predict", source, "x")
    refused(capsys, "File name too long", "learn", "x" * 300, source)


def test_trials_of_another_method_are_not_reused(here, tiny_bert, monkeypatch):
    """A first lesson is killed after its trial; the next one is begun with another method."""
    source = table(here / "a.csv", rows_of(0))
    with monkeypatch.context() as patch:
        patch.setattr(Store, "commit", lambda *args: (_ for _ in ()).throw(KeyboardInterrupt))
        assert call("learn", "mine", source, "--model", tiny_bert, "--method", "slda") == 130
    assert list(Path("mine/.trials").rglob("*.trial"))
    few = ("--set", "features=48")
    assert call("learn", "mine", source, "--model", tiny_bert, "--method", "ranpac", *few) == 0
    assert Learner.load("mine").origin.method == "ranpac"
    assert not Path("mine/.trials").exists()


def test_a_budget_is_for_auto_and_for_one_file(here, mine, tiny_bert, capsys):
    more = table(here / "more.csv", rows_of(2))
    assert call("learn", str(mine), more, "--budget", "0") == 0
    assert Learner.load(mine).method.seconds == 60.0
    assert call("learn", "plain", more, "--model", tiny_bert, "--method", "slda") == 0
    refused(capsys, "--budget is for auto", "learn", "plain", more, "--budget", "5")


def test_a_field_called_keep_is_not_the_retention(here, tiny_bert):
    source = table(here / "a.csv", rows_of(0))
    arguments = ("--model", tiny_bert, "--set", "keep=0.3", "--keep", "2")
    assert call("learn", "mine", source, *arguments) == 0
    learner = Learner.load("mine")
    assert learner.method.keep == 0.3
    assert learner.origin.keep == 2


def test_half_characters_and_broken_lines_are_one_line(made, here, capsys, monkeypatch):
    source = here / "half.jsonl"
    source.write_text('{"text": "\\ud83d", "label": "x"}\n')
    refused(capsys, "line 1: column 'text' holds half a character", "learn", str(here / "new"), str(source))
    refused(capsys, "text 1 holds half a character", "predict", str(made), "\ud83d")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"music0\n\xff\n"), encoding="utf-8"))
    refused(capsys, "not UTF-8", "predict", str(made), "-")


def test_validation_rows_of_older_labels_do_not_stop_a_training(here, tiny_bert):
    """The throw-away head does not know them; the closed-form one does."""
    learner = taught(tiny_bert, "mas+slda", tasks=1, lam=1.0)
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
        [*humble, sys.executable, "-m", "holdfast.cli", "learn", str(mine), more],
        capture_output=True,
        text=True,
        env=_env(),
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
    """One process commits on and on, keeping one generation; another loads all the while."""
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom holdfast.store import Store\n"
        "root = Path(sys.argv[1])\ntensors, meta = Store(root).load()\nend = time.monotonic() + 4\nn = 0\n"
        "while time.monotonic() < end:\n    Store(root, keep=1).commit(tensors, meta); n += 1\nprint(n)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(mine)], stdout=subprocess.PIPE, text=True, env=_env()
    )
    labels, loads = Store(mine).load()[1]["learner"]["labels"], 0
    while writer.poll() is None:
        assert Store(mine).load()[1]["learner"]["labels"] == labels
        loads += 1
    assert writer.stdout is not None
    assert int(writer.stdout.read()) > 20
    assert loads > 20


def _env() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

"""Before and after a change: dry runs, strict files, two generations compared, one row corrected."""

from __future__ import annotations

import json
import random
import re
import shutil
from pathlib import Path

import pytest
from helpers.command_line import call, refused
from helpers.everyday import rows_of, statistics, table

from holdfast import Learner
from holdfast.data.readers import Row
from holdfast.data.tasks import Split
from holdfast.errors import HoldfastError
from holdfast.everyday import correct, teach
from holdfast.everyday.evaluate import Compared, compared, evaluated
from holdfast.maths.metrics import macro_f1

A, B = sorted({label for _, label in rows_of(0)})


def content(place: Path) -> dict[str, tuple[bytes, int]]:
    """Return the bytes and the time of the last change of every file."""
    files = [file for file in sorted(place.rglob("*")) if file.is_file()]
    return {str(file.relative_to(place)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


# ---- learn --dry-run and --strict ---------------------------------------------------------------------


def test_a_dry_run_says_what_would_change_and_writes_nothing(mine, here, capsys):
    rows = [*rows_of(2), *rows_of(0)[:2], *rows_of(0)[:1], ("a b", f"{A}-x"), ("a b", f"{A} X")]
    source = table(here / "next.csv", rows)
    before = content(here)
    assert call("learn", "mine", source, "--dry-run", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert content(here) == before
    new = sorted({label for _, label in rows_of(2)} | {f"{A}-x", f"{A} X"})
    assert sorted(found["new"]) == new
    assert sum(found["more"].values()) == 3
    assert found["sentences"] == len(rows)
    counts = teach.planned(mine, source).known
    assert counts == found["known"]
    assert counts[A] == sum(label == A for _, label in rows_of(0))
    said = "\n".join(found["notes"])
    for expected in ("repeat another row: 1", "texts with more than one label: 1", f"'{A} X' and '{A}-x'"):
        assert expected in said
    # What it says is what happens.
    assert call("learn", "mine", source, "--format", "json") == 0
    done = json.loads(capsys.readouterr().out)
    assert (sorted(done["new"]), done["sentences"]) == (new, len(rows))
    assert done["notes"] == found["notes"]


def test_a_dry_run_makes_no_directory_and_needs_no_encoder(here, capsys):
    source = table(here / "a.csv", rows_of(0))
    assert call("learn", "new", source, "--model", "no/such", "--dry-run") == 0
    said = capsys.readouterr().out
    assert "would learn" in said
    assert re.search(r"would be created with \d labels", said)
    assert [file.name for file in here.iterdir()] == ["a.csv"]
    (here / "other").mkdir()
    (here / "other" / "thesis.txt").write_text("")
    refused(capsys, "contains other files", "learn", "other", source, "--dry-run")
    bad = table(here / "bad.csv", [("x", "(unknown)")])
    refused(capsys, "cannot be a label", "learn", "new", bad, "--dry-run")


def test_a_dry_run_knows_what_was_learnt_before(mine, here, capsys):
    source = table(here / "a.csv", rows_of(0))
    assert call("learn", "mine", source, "--dry-run", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["already_learnt"], found["sentences"]) == (1, 0)
    correct.forget_label(mine, A)
    assert teach.planned(mine, source).labels == {A: sum(label == A for _, label in rows_of(0))}
    assert teach.planned(mine, source, again=True).labels.keys() == {A, B}


def test_a_dry_run_refuses_what_learning_would_refuse(mine, here, capsys):
    for rows, more, expected in (
        ([("x", A, "test")], (), "no 'train' rows"),
        ([("x", A, "train"), ("y", "new", "valid")], (), "'new' has 'valid' rows but no 'train' rows"),
        ([("x", A, "train")], ("--method", "slda"), "was created with --method auto"),
        ([("x", A, "train")], ("--set", "columns=0"), "only for a new directory"),
    ):
        source = here / "splits.jsonl"
        names = ("text", "label", "split")
        source.write_text("\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows))
        for dry in ((), ("--dry-run",)):
            refused(capsys, expected, "learn", "mine", str(source), *more, *dry)


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ("--method nope", "unknown method 'nope'"),
        ("--method nope --set x=1", "unknown method 'nope'"),
        ("--method mtl", "mtl learns all tasks at once"),
        ("--method slda --budget 5", "--budget works only with auto, not with slda"),
        ("--method slda --set shrinkage=7", "shrinkage"),
        ("--set nosuch=1", "unknown setting 'nosuch'"),
    ],
)
def test_a_dry_run_of_a_new_state_refuses_what_learning_would_refuse(here, capsys, one_layer, more, expected):
    source = table(here / "a.csv", rows_of(0))
    for dry in ((), ("--dry-run",)):
        refused(capsys, expected, "learn", "new", source, "--model", one_layer, *more.split(), *dry)
    assert not (here / "new").exists()


def test_a_dry_run_refuses_rows_that_a_head_cannot_learn(here, capsys, one_layer):
    source = table(here / "a.csv", [row for row in rows_of(0) if row[1] == A])
    new = ("learn", "new", source, "--model", one_layer)
    for dry in ((), ("--dry-run",)):
        refused(capsys, "training by gradient needs two", *new, "--method", "seq", *dry)
    assert call(*new, "--method", "slda", "--dry-run") == 0


def test_a_dry_run_of_an_existing_state_checks_the_budget(here, capsys, one_layer):
    source, more = table(here / "a.csv", rows_of(0)), table(here / "b.csv", rows_of(1))
    assert call("learn", "new", source, "--model", one_layer, "--method", "slda") == 0
    for dry in ((), ("--dry-run",)):
        refused(capsys, "--budget works only with auto", "learn", "new", more, "--budget", "5", *dry)


def test_a_strict_dry_run_of_an_odd_file_learnt_before_is_no_error(mine, here, capsys):
    source = table(here / "odd.csv", [("x", f"{A.upper()}")])
    for options in ((), ("--strict",), ("--strict", "--dry-run")):
        assert call("learn", "mine", source, *options) == 0
    assert "already learnt (generation 3)" in capsys.readouterr().out


def test_strict_refuses_labels_that_look_alike_and_contradictions(mine, here, capsys):
    before = content(mine)
    for rows, expected in (
        ([("x", f"{A.upper()}")], "differ only in case"),
        ([("x", "set alarm"), ("y", "set_alarm")], "'set alarm' and 'set_alarm'"),
        ([("x", A), ("x", B)], "texts with more than one label: 1"),
    ):
        source = table(here / "odd.csv", rows)
        for more in ((), ("--dry-run",)):
            refused(capsys, expected, "learn", "mine", source, "--strict", *more)
        assert call("learn", "mine", source, "--dry-run") == 0
    assert content(mine) == before
    assert call("learn", "mine", table(here / "odd.csv", [("x", "set alarm"), ("y", "set_alarm")])) == 0
    source = table(here / "fine.csv", [("z", "another")])
    for more in (("--dry-run",), ()):
        assert call("learn", "mine", source, "--strict", *more) == 0, "only labels of the file count"
    refused(
        capsys, "'set alarm' and", "learn", "mine", table(here / "c.csv", [("x", "set-alarm")]), "--strict"
    )
    source = table(here / "twice.csv", [*rows_of(2), *rows_of(2)[:1]])
    assert call("learn", "mine", source, "--strict") == 0, "rows that repeat are noted, not refused"


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["caf\u00e9", "cafe\u0301"], r"'cafe\\u0301' and 'caf\\xe9' differ only in case"),
        (["\ufb01ne", "fine"], r"'fine' and '\ufb01ne' differ only in case"),
        (["stra\u00dfe", "STRASSE"], "differ only in case"),
        (["1", "1.0", "True"], "'1' and '1.0' and 'True' differ only in how a number or a truth value"),
        (["0", "false"], "'0' and 'false' differ only in how a number"),
        (["1", "2", "10", "2.1", "2.10", "true story"], ""),
        (["True", "False"], ""),
    ],
)
def test_labels_that_look_alike(labels, expected):
    found = [str(one) for one in teach.oddities([Row(f"text {label}", label) for label in labels], [])]
    assert len(found) == bool(expected)
    assert re.search(expected, "".join(found)), found


def test_labels_of_json_that_are_not_text_are_noted(here, capsys):
    lines = [{"text": f"t{i}", "label": label} for i, label in enumerate((True, 1.0, 1))]
    (here / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert call("learn", "new", "a.jsonl", "--dry-run") == 0
    assert "'1' and '1.0' and 'True' differ only in how" in capsys.readouterr().out
    refused(capsys, "count as 3", "learn", "new", "a.jsonl", "--dry-run", "--strict")


# ---- two generations ----------------------------------------------------------------------------------


def slow_comparison(before: list[str], after: list[str], gold: list[str]) -> tuple[float, float]:
    """Return a paired interval, draw by draw."""
    rng, gaps = random.Random(0), []
    for _ in range(600):
        some = [rng.randrange(len(gold)) for _ in gold]
        new, old = (macro_f1([gold[i] for i in some], [one[i] for i in some]) for one in (after, before))
        gaps.append(new - old)
    gaps.sort()
    return gaps[15], gaps[-16]


def test_two_generations_are_compared(made):
    first, second = Learner.load(made, 1), Learner.load(made, 2)
    split = Split.of([*rows_of(0, "test"), *rows_of(1, "test")])
    found = compared(first, second, split)
    assert isinstance(found, Compared)
    before, after = (evaluated(one, split) for one in (first, second))
    assert found.difference.mean == pytest.approx(after.score - before.score)
    low, high = slow_comparison(before.predicted, after.predicted, list(split.labels))
    assert found.difference.low == pytest.approx(low, abs=0.05)
    assert found.difference.high == pytest.approx(high, abs=0.05)
    old, new = (
        [guess == gold for guess, gold in zip(one.predicted, split.labels, strict=True)]
        for one in (before, after)
    )
    assert found.better - found.worse == sum(new) - sum(old)
    changes = found.changes()
    assert [abs(now - was) for _, was, now, _ in changes] == sorted(
        (abs(now - was) for _, was, now, _ in changes), reverse=True
    )
    assert sum(n for _, _, n, _ in found.confusions()) == len(split) - sum(old)
    assert sum(n for *_, n in found.confusions()) == len(split) - sum(new)


def test_a_generation_compared_with_itself_has_not_changed(made, here, capsys):
    source = table(here / "test.csv", rows_of(1, "test"))
    assert call("compare", str(made), "--generations", "2", "2", "--file", source) == 0
    shown = capsys.readouterr().out
    assert "+0.00, 95 % interval +0.00 to +0.00" in shown
    assert "0 sentences better, 0 worse" in shown
    refused(capsys, "generation 9", "compare", str(made), "--generations", "2", "9", "--file", source)
    assert call("compare", str(made), "--generations", "2", "--file", source) == 2


def test_a_label_that_one_generation_lacks_is_noted_with_its_rename(mine, here, capsys):
    source = table(here / "test.csv", rows_of(0, "test"))
    n = [label for _, label in rows_of(0, "test")].count(A)
    assert call("rename-label", "mine", A, "new name") == 0
    capsys.readouterr()
    assert call("compare", "mine", "--generations", "2", "3", "--file", source) == 0
    note = f"generation 3 does not know {A!r} (renamed to 'new name' since); its {n} sentences count as wrong"
    assert f"note: {note}" in capsys.readouterr().out
    split = Split.of([(text, "new name" if label == A else label) for text, label in rows_of(0, "test")])
    (one,) = compared(Learner.load("mine", 2), Learner.load("mine", 3), split).answer()["missing"]
    assert (one["generation"], one["label"], one["sentences"], one["before"]) == (2, "new name", n, A)
    assert f"generation 2 does not know 'new name' (called {A!r} there)" in one["note"]


# ---- one wrong row ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["relabel", pytest.param("remove", marks=pytest.mark.slow)])
def test_a_wrong_row_is_corrected_alike_everywhere(mine, here, how):
    """By the command line with a file or one row, by the functions on a directory, by a learner."""
    text, label = rows_of(0)[0]
    source = table(here / "wrong.csv", [(text, label)])
    to = ["--to", "right"] if how == "relabel" else []
    places = [here / name for name in ("file", "row", "function", "python")]
    for place in places:
        shutil.copytree(mine, place)
    file, row, function, python = places
    assert call(how, str(file), source, *to) == 0
    assert call(how, str(row), "--text", text, "--label", label, *to) == 0
    learner = Learner.load(python)
    if how == "relabel":
        correct.relabel_rows(function, [(text, label)], "right")
        learner.relabel([text], [label], "right")
    else:
        correct.remove_rows(function, [(text, label)])
        learner.remove([text], [label])
    learner.save(python)
    expected = statistics(file)
    assert expected != statistics(mine)
    assert all(statistics(place) == expected for place in places)


def test_corrections_on_the_command_line_say_what_they_did(mine, here, capsys):
    text, label = rows_of(0)[0]
    assert call("relabel", "mine", "--text", text, "--label", label, "--to", "right") == 0
    said = capsys.readouterr().out
    assert f"1 of {label!r} relabelled to 'right'" in said
    assert "exact: " in said
    assert "generation 3" in said
    assert call("relabel", "mine", "--text", text, "--label", label, "--to", "right") == 0
    assert "done before (generation 3)" in capsys.readouterr().out
    said = f"this sentence was not learnt as {label!r}"
    refused(capsys, said, "remove", "mine", "--text", "stock stock stock nine", "--label", label)
    assert call("merge-labels", "mine", A, B, "--into", "both") == 0
    assert f"no longer a label: {A!r}, {B!r}" in capsys.readouterr().out
    assert call("rename-label", "mine", "both", "two") == 0
    said = capsys.readouterr().out
    assert "'both' renamed to 'two'; nothing else changes" in said
    assert "not computed again" not in said
    assert call("rename-label", "mine", "two", "both") == 0
    capsys.readouterr()
    refused(capsys, "unknown label", "rename-label", "mine", A, "x")
    refused(capsys, "is a label already", "rename-label", "mine", "both", "right")
    refused(capsys, "give a FILE of rows, or one row", "remove", "mine")
    refused(capsys, "give a FILE of rows, or one row", "remove", "mine", "--text", text)
    refused(capsys, "same state", "merge", "mine", "mine")
    with pytest.raises(HoldfastError, match="no rows"):
        correct.remove_rows(mine, [])

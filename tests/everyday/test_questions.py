"""What to label next, and what has changed."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from helpers.command_line import call, refused
from helpers.everyday import rows_of, table
from helpers.learners import create, taught

from holdfast.errors import HoldfastError
from holdfast.everyday import suggest as everyday
from holdfast.everyday.drift import Traffic, drift
from holdfast.everyday.predict import answers
from holdfast.everyday.suggest import grouped, in_turns, spread_out, suggest
from holdfast.learning.learner import Learner

KNOWN = [text for task in (0, 1) for text, _ in rows_of(task, "test")]
NEW = [text for text, _ in rows_of(2)]


@pytest.fixture(scope="module")
def learner(one_layer: str) -> Learner:
    return taught(one_layer, "auto", layers=1, columns=0, sentences=0)


# ---- groups and representatives, by hand ----------------------------------------------------------------


def test_groups_by_hand():
    """Two pairs at cosine 0.9 and 0.5, all else orthogonal: mean distances 0.1, 0.5, then 1 > 0.75."""
    cosines = np.eye(5)
    cosines[0, 1] = cosines[1, 0] = 0.9
    cosines[2, 3] = cosines[3, 2] = 0.5
    assert sorted(map(sorted, grouped(cosines))) == [[0, 1], [2, 3], [4]]
    assert grouped(np.ones((1, 1))) == [[0]]


def test_the_order_within_a_group_is_the_slow_one():
    """Always the vector whose largest cosine with those taken is smallest."""
    random = np.random.RandomState(0)
    z = random.standard_normal((9, 4))
    z /= np.linalg.norm(z, axis=1, keepdims=True)
    taken = [int(np.argmax([np.mean([a @ b for b in z]) for a in z]))]
    while len(taken) < len(z):
        rest = [i for i in range(len(z)) if i not in taken]
        taken.append(min(rest, key=lambda i: max(z[i] @ z[j] for j in taken)))
    assert spread_out(z @ z.T) == taken


def test_turns_by_hand():
    assert in_turns([[7, 8, 9], [4], [5, 6]]) == [(1, 7), (2, 4), (3, 5), (1, 8), (3, 6), (1, 9)]


def test_whitened_vectors_of_a_label_vary_equally(learner):
    """The slow way: subtract, multiply by the inverse root of the shrunk covariance, divide by the length."""
    head = learner.model.head
    features = learner.model.embed(KNOWN)
    spread = head.spread_within()
    by_label = {}
    for task in (0, 1):
        for part in ("train", "valid"):
            for text, label in rows_of(task, part) if part == "train" else []:
                by_label.setdefault(label, []).append(text)
    apart, n = torch.zeros_like(spread), 0
    for texts in by_label.values():
        z = learner.model.embed(texts).double()
        apart += (z - z.mean(0)).T @ (z - z.mean(0))
        n += len(z) - 1
    assert torch.allclose(spread, apart / n, atol=1e-6)
    e = everyday.SHRINKAGE
    shrunk = (1 - e) * spread + e * spread.trace() / len(spread) * torch.eye(len(spread)).double()
    z = features.double() - features.double().mean(0)
    found = everyday.whitened(head, features, torch.arange(len(features)))
    inner = z @ torch.linalg.inv(shrunk) @ z.T
    lengths = inner.diagonal().sqrt()
    assert torch.allclose(found @ found.T, inner / torch.outer(lengths, lengths), atol=1e-5)
    assert torch.equal(everyday.whitened(head, features, torch.tensor([3, 1])), found[[3, 1]])


# ---- suggestions ----------------------------------------------------------------------------------------


def test_texts_of_an_untaught_label_come_first(learner):
    found = suggest(learner, [*KNOWN, *NEW], n=6)
    assert len(found) == 6
    new = [one for one in found if one.group is not None]
    assert sum(one.text in NEW for one in new) >= 4
    assert all(one.place == [*KNOWN, *NEW].index(one.text) for one in found)
    assert [one.score for one in new] == sorted((one.score for one in new), reverse=True) or len(new) > 2
    assert suggest(learner, [*KNOWN, *NEW], n=6) == found


def test_every_text_is_suggested_once_if_asked_for(learner):
    texts = [*KNOWN, *NEW, NEW[0], "", "  "]
    found = suggest(learner, texts, n=1000)
    assert sorted(one.text for one in found) == sorted({*KNOWN, *NEW})
    sizes = {one.group: one.size for one in found if one.group is not None}
    counted = {group: sum(one.group == group for one in found) for group in sizes}
    assert sizes == counted


def test_doubtful_lines_come_by_their_margin(learner):
    found = [one for one in suggest(learner, KNOWN, n=1000) if one.group is None]
    assert len(found) > 2
    assert [one.margin for one in found] == sorted(one.margin for one in found)


@pytest.mark.parametrize("method", ["ranpac", "seq"])
def test_heads_without_distances_go_by_probability(one_layer, method):
    """Three tenths of the lines are candidates: those with the least probable labels."""
    learner = taught(one_layer, method, tasks=1)
    found = suggest(learner, [*KNOWN, *NEW], n=1000)
    lines = len({*KNOWN, *NEW})
    assert sum(one.group is not None for one in found) == sum(rank / lines > 0.7 for rank in range(lines))
    candidates = [one.text for one in found if one.group is not None]
    best = learner.predict_proba([one.text for one in found]).max(1)
    least = [one.text for _, one in sorted(zip(best, found, strict=True), key=lambda p: p[0])]
    assert {*candidates} == {*least[: len(candidates)]}


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("one string", "are one string"),
        ([], "no texts"),
        (["", " "], "no texts"),
        ([None], "text 1 is not text but None"),
        (["a", 3.5], "text 2 is not text but 3.5"),
        (["\ud800"], "unpaired surrogate"),
        (None, "NoneType, not a list"),
        ({"a"}, "set, not a list"),
        (np.array([["a", "b"]]), "ndarray, not a list; give a list of strings, or one column"),
        ([None], r"None \(NoneType\); fill it in"),
    ],
)
def test_bad_texts_are_one_line(learner, texts, said):
    with pytest.raises(HoldfastError, match=said):
        suggest(learner, texts)
    if said != "no texts":
        for asked in (drift, answers):
            with pytest.raises(HoldfastError, match=said) as caught:
                asked(learner, texts)
            assert len(str(caught.value).splitlines()) == 1


def test_bad_numbers_of_suggestions_and_lines_that_arrive_are_one_line(learner):
    for n in ("3", 0, 2.5, None):
        with pytest.raises(HoldfastError, match="ask for at least one suggestion"):
            suggest(learner, KNOWN, n=n)
    with pytest.raises(HoldfastError, match="generator, not a list"):
        drift(learner, (text for text in KNOWN))


def test_a_learner_without_labels_is_told(one_layer):
    with pytest.raises(HoldfastError, match="no labels yet"):
        suggest(create(one_layer, "auto"), ["a"])
    with pytest.raises(HoldfastError, match="no labels yet"):
        drift(create(one_layer, "auto"), ["a"])


def test_one_label_is_enough(one_layer):
    learner = create(one_layer, "auto", layers=1, columns=0)
    learner.learn(["music0 music1"], ["music"])
    assert suggest(learner, ["music0", "red w1"], n=5)


# ---- drift ----------------------------------------------------------------------------------------------


def test_the_sums_of_traffic_are_those_of_its_texts(learner):
    """The slow way, text by text; in any pieces."""
    traffic = Traffic(learner)
    for start in range(0, len(KNOWN), 3):
        traffic.add(KNOWN[start : start + 3])
    weights = torch.zeros(len(learner.classes_)).double()
    sums = torch.zeros(len(weights), learner.model.head.width).double()
    for text in KNOWN:
        w = torch.tensor(learner.predict_proba([text])[0])
        weights += w
        sums += torch.outer(w, learner.model.embed([text])[0].double())
    assert traffic.texts == len(KNOWN)
    assert torch.allclose(traffic.weights, weights, atol=1e-4)
    assert torch.allclose(traffic.sums, sums, atol=1e-3)
    kept = [value for value in vars(traffic).values() if isinstance(value, torch.Tensor)]
    assert sum(one.numel() for one in kept) < 3 * learner.model.head.width * len(learner.classes_)
    assert KNOWN[0] not in repr({name: v for name, v in vars(traffic).items() if name != "learner"})


def test_texts_as_taught_have_not_drifted_and_others_have(learner):
    same = drift(learner, [text for task in (0, 1) for text, _ in rows_of(task)])
    assert not same.changed
    assert same.shift < 0.05
    assert same.mix < 0.05
    other = drift(learner, NEW * 3)
    assert other.changed
    assert other.p < 1e-6
    assert any(one.changed for one in other.labels)
    shares = [one.share for one in other.labels]
    assert sum(shares) == pytest.approx(1)
    assert other.notable == pytest.approx(0.5 * sum(share**2 for share in shares) ** 0.5)


def test_both_are_described_in_one_line(learner):
    traffic = Traffic(learner)
    traffic.add(KNOWN)
    assert repr(traffic) == f"Traffic({learner!r}, {len(KNOWN)} texts)"
    assert re.fullmatch(
        rf"Drift\({len(KNOWN)} texts, 4 labels, shift \d\.\d\d, (as taught|changed)\)", repr(traffic.drift())
    )


def test_heads_without_sums_are_refused(one_layer):
    with pytest.raises(HoldfastError, match="use the method auto, slda or rda"):
        drift(taught(one_layer, "ranpac", tasks=1), ["a"])


def test_sums_end_with_the_labels(one_layer):
    learner = taught(one_layer, tasks=1)
    traffic = Traffic(learner)
    traffic.add(["music0"])
    learner.forget(learner.classes_[0])
    with pytest.raises(HoldfastError, match="labels have changed"):
        traffic.add(["music0"])
    with pytest.raises(HoldfastError, match="labels have changed"):
        traffic.drift()


# ---- commands -------------------------------------------------------------------------------------------


def test_suggestions_can_be_filled_in_and_taught(mine, here, capsys):
    """With the very texts, also those that a spreadsheet would take for formulas."""
    formulas = ["=music0", "+red w1", "-1 w2", "@food0", 'w1, "w2"']
    lines = [*KNOWN, *NEW, *formulas]
    (here / "lines.txt").write_text("\n".join(lines))
    number = str(len(lines))
    todo = ("suggest", str(mine), "lines.txt", "-n", number, "--format", "csv", "--out", "todo.csv")
    assert call(*todo) == 0
    rows = list(csv.DictReader((here / "todo.csv").open(newline="")))
    assert {row["label"] for row in rows} == {""}
    assert {row["text"] for row in rows} == {*lines}
    for row in rows:
        row["label"] = "new"
    with (here / "done.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(row for row in rows if row["text"] in formulas)
    assert call("learn", str(mine), "done.csv") == 0
    learner = Learner.load(mine)
    head, same = learner.model.head, Learner.load(mine, 2)
    same.learn(formulas, ["new"] * len(formulas))
    sums = [one.total(one.labels.index("new")) for one in (head, same.model.head)]
    assert torch.equal(*sums)


def test_labels_that_look_like_formulas_are_escaped_in_tables(one_layer, here, capsys):
    learner = create(one_layer, "slda")
    learner.learn(KNOWN, ["=1+1" if i % 2 else "b" for i in range(len(KNOWN))])
    learner.save(here / "odd")
    source = table(here / "t.csv", rows_of(0))
    for command, column in (("suggest", "nearest"), ("drift", "label")):
        capsys.readouterr()
        assert call(command, "odd", source, "--format", "csv") == 0
        rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
        assert {row[column] for row in rows} <= {"'=1+1", "b"}


def test_suggest_and_drift_in_every_format(mine, here, capsys, monkeypatch):
    source = table(here / "t.csv", rows_of(2))
    capsys.readouterr()
    assert call("suggest", str(mine), source, "--format", "json", "-n", "4") == 0
    found = json.loads(capsys.readouterr().out)["suggestions"]
    assert len(found) == 4
    assert found[0].keys() == {"text", "line", "group", "size", "nearest", "margin", "unknown", "score"}
    assert call("suggest", str(mine), source, "-n", "4") == 0
    said = capsys.readouterr().out
    assert sum(line.startswith("  ") for line in said.splitlines()) == 4
    assert call("drift", str(mine), source, "--format", "json") == 0
    whole = json.loads(capsys.readouterr().out)
    assert {"texts", "shift", "p", "unknown", "mix", "changed", "labels"} <= whole.keys()
    assert call("drift", str(mine), source, "--format", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert {row["label"] for row in rows} == {*Learner.load(mine).classes_}
    assert call("drift", str(mine), source) == 0
    assert "standard deviations from what was taught" in capsys.readouterr().out


def test_lines_from_stdin(mine, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"music0 music1\n\nred w1\n")))
    capsys.readouterr()
    assert call("suggest", str(mine), "-", "--format", "json") == 0
    assert len(json.loads(capsys.readouterr().out)["suggestions"]) == 2


def test_wrong_input_is_one_line(mine, here, capsys, monkeypatch):
    (here / "empty.txt").write_text("\n\n")
    refused(capsys, "no sentences", "suggest", str(mine), "empty.txt")
    refused(capsys, "no such file", "drift", str(mine), "absent.csv")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"music0\n\xff\n")))
    refused(capsys, "text 2 of stdin is not UTF-8", "drift", str(mine), "-")


def test_taught_is_unchanged(learner):
    """Asking changes nothing."""
    before = {name: value.clone() for name, value in learner.model.head.statistics().items()}
    suggest(learner, NEW)
    drift(learner, NEW)
    after = learner.model.head.statistics()
    assert all(torch.equal(before[name], after[name]) for name in before)

"""Corrections: a corrected head equals one that was taught right from the start."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from typing import Any

import pandas as pd
import pytest
import torch
from helpers.learners import STREAM, TEXTS, create, taught
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast import Learner
from holdfast.errors import HoldfastError
from holdfast.heads import ClosedFormHead, KLDAHead, LiftedHead, RanPACHead, RDAHead, SLDAHead, Taught
from holdfast.learning import corrections

WIDTH, LABELS = 6, ["a", "b", "c", "d"]
HEADS = {
    "auto": lambda: LiftedHead(WIDTH, columns=15, shrinkage=0.1),
    "auto, per-class": lambda: LiftedHead(WIDTH, columns=15, shrinkage=0.1, scatter="per-class"),
    "slda": lambda: SLDAHead(WIDTH, shrinkage=0.1),
    "slda, pooled": lambda: SLDAHead(WIDTH, shrinkage=0.1, scatter="pooled"),
    "rda": lambda: RDAHead(WIDTH, shrinkage=0.1, blend=0.3),
    "klda": lambda: KLDAHead(WIDTH, features=12, widths=[0.5], shrinkage=0.1),
    "ranpac": lambda: RanPACHead(WIDTH, features=12, ridge=1.0),
}
MERGED = [name for name in HEADS if name != "klda"]
Rows = list[tuple[int, str]]
"""Sentences by their number, with labels."""


def vectors(seed: int) -> Tensor:
    return torch.randn(60, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 1


def rows_of(part: Rows, z: Tensor) -> Taught:
    return Taught(z[[i for i, _ in part]], [label for _, label in part])


def learnt(name: str, z: Tensor, *parts: Rows) -> ClosedFormHead:
    """Return a head that has learnt the parts one after the other."""
    torch.manual_seed(0)
    head = HEADS[name]()
    if isinstance(head, KLDAHead):  # the scale of its features comes from the first file
        head.add(["z"])
        head.take_in(Taught(vectors(99), ["z"] * 60))
    for part in parts:
        data = rows_of(part, z)
        head.add(sorted(set(data.labels)))
        head.take_in(data)
    head.resettle()
    return head


def same(mine: ClosedFormHead, other: ClosedFormHead) -> None:
    """Compare counts and scores, label by label."""
    left, right = (
        {label: n for label, n in zip(head.labels, head.counts.tolist(), strict=True) if n}
        for head in (mine, other)
    )
    assert left == right
    z, names = 2 * vectors(7), sorted(left)
    a, b = (head(z)[:, [head.labels.index(label) for label in names]].double() for head in (mine, other))
    if isinstance(mine, RDAHead | KLDAHead):  # their scores are distances or probabilities
        a, b = a.softmax(1), b.softmax(1)
    assert torch.allclose(a, b, rtol=0, atol=1e-6 * max(float(b.abs().max()), 1.0))
    if isinstance(mine, LiftedHead) and isinstance(other, LiftedHead) and mine.labels == other.labels:
        assert torch.allclose(mine.marks, other.marks, atol=1e-5), "thresholds are those of the new sums"


histories = st.tuples(st.integers(0, 10**6), st.lists(st.integers(1, 39), max_size=4), st.integers(1, 12))


def drawn(history: tuple[int, list[int], int]) -> tuple[list[Rows], Rows]:
    """Return lessons of 40 rows in random order and a random part of all rows."""
    seed, cuts, some = history
    rng = random.Random(seed)
    rows = [(i, LABELS[i % 3 if i % 7 else 3]) for i in rng.sample(range(60), 40)]
    edges = [0, *sorted(set(cuts)), 40]
    return [rows[a:b] for a, b in itertools.pairwise(edges)], rng.sample(rows, some)


@pytest.mark.parametrize("name", HEADS)
@given(history=histories, seed=st.sampled_from([0, 1, 2]))
@settings(max_examples=3, deadline=None)
def test_rows_taken_out_were_never_there(name, history, seed):
    z, (lessons, some) = vectors(seed), drawn(history)
    head = learnt(name, z, *lessons)
    corrections.take_out(head, rows_of(some, z), carried=False)
    head.resettle()
    same(head, learnt(name, z, [row for part in lessons for row in part if row not in some]))


@pytest.mark.parametrize("name", HEADS)
@given(history=histories, seed=st.sampled_from([0, 1, 2]), to=st.sampled_from([*LABELS, "new"]))
@settings(max_examples=3, deadline=None)
def test_rows_relabelled_were_always_so(name, history, seed, to):
    z, (lessons, some) = vectors(seed), drawn(history)
    head = learnt(name, z, *lessons)
    corrections.take_out(head, rows_of(some, z), carried=False)
    head.add([to])
    head.take_in(rows_of([(i, to) for i, _ in some], z))
    head.resettle()
    right = [(i, to if (i, label) in some else label) for part in lessons for i, label in part]
    same(head, learnt(name, z, right))


@pytest.mark.parametrize("name", HEADS)
@given(history=histories, seed=st.sampled_from([0, 1, 2]), into=st.sampled_from(["a", "new"]))
@settings(max_examples=3, deadline=None)
def test_united_and_renamed_labels_were_always_one(name, history, seed, into):
    z, (lessons, _) = vectors(seed), drawn(history)
    head = learnt(name, z, *lessons)
    corrections.unite(head, ["b", "c"], into)
    corrections.rename(head, "d", "e")
    head.resettle()
    names = {"b": into, "c": into, "d": "e"}
    same(head, learnt(name, z, [(i, names.get(label, label)) for part in lessons for i, label in part]))


@pytest.mark.parametrize("name", MERGED)
@given(history=histories, seed=st.sampled_from([0, 1, 2]))
@settings(max_examples=3, deadline=None)
def test_two_heads_taught_apart_are_one(name, history, seed):
    z, (lessons, _) = vectors(seed), drawn(history)
    left, right = learnt(name, z, *lessons[::2]), learnt(name, z, *lessons[1::2])
    left.merge(right)
    same(left, learnt(name, z, [row for part in lessons for row in part]))


def mixed(name: str, seed: int, data: st.DataObject) -> None:
    """Change a head and a list of rows in the same ways, then compare with a head taught that list."""
    z, rng = vectors(seed), random.Random(data.draw(st.integers(0, 10**6)))
    head, rows = learnt(name, z), [(0, "a")][:0]
    for _ in range(data.draw(st.integers(1, 7))):
        labels = sorted({label for _, label in rows})
        doing = rng.choice(["learn", "learn", "remove", "relabel", "rename", "unite", "merge"])
        some = rng.sample(rows, min(len(rows), rng.randint(1, 6)))
        if doing in ("learn", "merge"):
            more = [(rng.randrange(60), rng.choice(LABELS)) for _ in range(rng.randint(1, 20))]
            if doing == "learn" or name == "klda":
                head.add(sorted({label for _, label in more}))
                head.take_in(rows_of(more, z))
            else:
                head.merge(learnt(name, z, more))
            rows += more
        elif doing in ("remove", "relabel") and some:
            corrections.take_out(head, rows_of(some, z), carried=False)
            rows = list((Counter(rows) - Counter(some)).elements())
            if doing == "relabel":
                to = rng.choice([*LABELS, "new"])
                head.add([to])
                head.take_in(rows_of([(i, to) for i, _ in some], z))
                rows += [(i, to) for i, _ in some]
        elif doing == "rename" and labels:
            old, new = rng.choice(labels), f"renamed {rng.randrange(10**6)}"
            corrections.rename(head, old, new)
            rows = [(i, new if label == old else label) for i, label in rows]
        elif doing == "unite" and len(labels) > 1:
            two = rng.sample(labels, 2)
            corrections.unite(head, two, two[0])
            rows = [(i, two[0] if label == two[1] else label) for i, label in rows]
        head.resettle()
    if rows:
        same(head, learnt(name, z, rows))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", HEADS)
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_random_histories(name, seed, data):
    mixed(name, seed, data)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("name", HEADS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_many_random_histories(name, seed, data):
    mixed(name, seed, data)


# ---- what was never learnt ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", HEADS)
def test_what_was_never_learnt_is_refused_where_it_shows(name):
    """With few sentences in many dimensions, strange ones lie outside of what was learnt."""
    z = vectors(0)
    head = learnt(name, z, [(i, LABELS[i % 2]) for i in range(4)])
    with pytest.raises(HoldfastError, match="was not learnt as"):
        corrections.take_out(head, Taught(5 + 9 * vectors(5)[:1], ["a"]), carried=False)
    with pytest.raises(HoldfastError, match="'a' has 2 sentences, but 3"):
        corrections.take_out(head, Taught(z[:3], ["a"] * 3), carried=False)
    with pytest.raises(HoldfastError, match="unknown label 'x'"):
        corrections.take_out(head, Taught(z[:1], ["x"]), carried=False)


def test_where_the_encoder_has_moved_the_advice_is_another():
    head = learnt("slda", vectors(0), [(i, LABELS[i % 2]) for i in range(4)])
    before = head.statistics()
    with pytest.raises(HoldfastError, match=r"encoder has moved .*rollback"):
        corrections.take_out(head, Taught(5 + 9 * vectors(5)[:1], ["a"]), carried=True)
    assert all(torch.equal(value, before[name]) for name, value in head.statistics().items())


# ---- learners -----------------------------------------------------------------------------------------

OPTIONS: dict[str, dict[str, Any]] = {
    "auto": {"sentences": 0, "columns": 60, "layers": 1, "shrinkage": 0.1},
    "slda": {"shrinkage": 0.1},
    "rda": {"shrinkage": 0.1, "blend": 0.3},
    "klda": {"shrinkage": 0.1, "widths": (0.5,)},
    "ranpac": {"ridge": 1.0},
}
TAUGHT = [pair for task in STREAM.tasks[:2] for pair in zip(*task.train.__dict__.values(), strict=True)]


def of(rows: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [text for text, _ in rows], [label for _, label in rows]


def alike(mine: Learner, other: Learner) -> None:
    """Compare scores, label by label: a sentence's vector depends by 1e-7 on the others of its batch."""
    head, its, labels = mine.model.head, other.model.head, sorted(mine.classes_)
    assert labels == sorted(other.classes_)
    z = mine.model.embed(TEXTS)
    a, b = (one(z)[:, [one.labels.index(label) for label in labels]].double() for one in (head, its))
    assert torch.allclose(a, b, rtol=0, atol=1e-6 * float(b.abs().max()))


LEARNERS = [
    pytest.param(name, marks=[] if name in ("auto", "slda") else pytest.mark.slow) for name in OPTIONS
]


@pytest.mark.parametrize("method", LEARNERS)
def test_a_learner_corrected_in_every_way(one_layer, method):
    """Rows that were held out for validation have been learnt too, and can be taken out."""
    first, second = TAUGHT[: len(TAUGHT) // 2], TAUGHT[len(TAUGHT) // 2 :]
    learner, right = (create(one_layer, method, **OPTIONS[method]) for _ in range(2))
    learner.learn(*of(first))
    learner.learn(*of(second))
    wrong, gone = first[::4], second[::3]
    a, b, c = learner.classes_[:3]
    found = [learner.relabel(*of(wrong), "other"), learner.remove(*of(gone))]
    found += [learner.rename_label(a, "renamed"), learner.merge_labels([b, c], b)]
    if method == "klda":
        assert not any(one.exact for one in found)
        assert all("the feature scale of the first file" in one.note for one in found)
    else:
        assert all(one.exact for one in found)
    names = {a: "renamed", c: b}
    rest = Counter(second) - Counter(gone)
    fixed = [(text, "other" if (text, label) in wrong else names.get(label, label)) for text, label in first]
    right.learn(*of(fixed))
    right.learn(*of([(text, names.get(label, label)) for text, label in rest.elements()]))
    if method != "klda":
        alike(learner, right)
    assert learner.model.head.counts.sum() == right.model.head.counts.sum()
    told = [(entry["correction"], entry["task"]) for entry in learner.history if entry.get("correction")]
    assert told[0][0] == "relabel"
    assert told[0][1].endswith("relabelled to 'other'")
    assert not any(text in repr(learner.history) for text, _ in TAUGHT), "no text is kept"


def test_a_label_without_sentences_is_forgotten(one_layer, tmp_path):
    learner = taught(one_layer)
    gone = learner.classes_[0]
    own = [pair for pair in TAUGHT if pair[1] == gone]
    found = learner.remove(*of(own))
    assert found.gone == (gone,)
    assert gone not in learner.classes_
    assert gone not in learner.model.head.labels
    learner.save(tmp_path)
    again = Learner.load(tmp_path)
    assert again.history == learner.history
    again.learn(*of(own))
    assert gone in again.classes_


def test_everything_can_be_taken_out(one_layer):
    learner = create(one_layer, "auto", **OPTIONS["auto"])
    learner.learn(*of(TAUGHT))
    learner.remove(*of(TAUGHT))
    assert learner.classes_ == []
    learner.learn(*of(TAUGHT))
    other = create(one_layer, "auto", **OPTIONS["auto"])
    other.learn(*of(TAUGHT))
    alike(learner, other)


def test_a_correction_that_fails_changes_nothing(one_layer):
    learner = taught(one_layer, "auto", sentences=0)
    before = learner.state()
    a, b = learner.classes_[:2]
    for correct, expected in {
        lambda: learner.remove(["never seen"] * 999, [a] * 999): "sentences, but 999",
        lambda: learner.remove(["x"], ["nowhere"]): "unknown label 'nowhere'",
        lambda: learner.remove([], []): "no sentences to remove",
        lambda: learner.remove("one text", [a]): "give a list of strings",
        lambda: learner.remove([None], [a]): "not text but None",
        lambda: learner.relabel(["x"], [a], a): f"have the label {a!r} already",
        lambda: learner.relabel(["x"], [a], "two\nlines"): "line break",
        lambda: learner.relabel(["x"], [a], None): "label None is not text",
        lambda: learner.rename_label(None, "x"): "label None is not text",
        lambda: learner.predict(None): "NoneType, not a list",
        lambda: learner.predict_set([1]): "text 1 is not text but 1",
        lambda: learner.rename_label(a, b): "is a label already; unite",
        lambda: learner.rename_label(a, a): "called .* already",
        lambda: learner.rename_label(a, "(unknown)"): "cannot be a label",
        lambda: learner.rename_label(a, " "): "is empty",
        lambda: learner.rename_label(a, 3): "not text",
        lambda: learner.merge_labels("ab", a): "give a list of strings",
        lambda: learner.merge_labels([a], a): "name two or more",
        lambda: learner.merge_labels([], a): "only the label",
        lambda: learner.merge_labels([a, "nowhere"], "new"): "unknown label 'nowhere'",
    }.items():
        with pytest.raises(HoldfastError, match=expected):
            correct()
    tensors, meta = learner.state()
    assert meta == before[1]
    assert all(torch.equal(t, before[0][group][n]) for group, own in tensors.items() for n, t in own.items())


def test_columns_of_pandas_are_read_in_their_order_whatever_their_index(one_layer):
    rows = pd.DataFrame(TAUGHT, columns=["text", "label"]).iloc[::-1]
    learner, other = (create(one_layer, "slda") for _ in range(2))
    for one in (learner, other):
        one.learn(*of(TAUGHT))
    some = rows.iloc[:6]
    assert learner.relabel(some.text, some.label, "other").sentences == 6
    other.relabel(list(some.text), list(some.label), "other")
    alike(learner, other)


def test_an_interrupted_merge_or_removal_leaves_no_trace(one_layer, monkeypatch):
    learner, other = (create(one_layer, "slda") for _ in range(2))
    learner.learn(*of(TAUGHT[: len(TAUGHT) // 2]))
    other.learn(*of(TAUGHT[len(TAUGHT) // 2 :]))
    before, keys = learner.state(), (learner.key, list(learner.keys))

    def interrupted(*_):
        raise KeyboardInterrupt

    for step in (lambda: learner.merge(other), lambda: learner.forget(learner.classes_[0])):
        with monkeypatch.context() as patch:
            patch.setattr(learner, "start_over", interrupted)
            with pytest.raises(KeyboardInterrupt):
                step()
        tensors, meta = learner.state()
        assert meta == before[1]
        assert all(torch.equal(x, before[0][g][n]) for g, own in tensors.items() for n, x in own.items())
        assert (learner.key, learner.keys) == keys


def test_a_trained_head_cannot_be_corrected_but_renamed(one_layer):
    learner = create(one_layer, "seq", lr=0.01)
    task = STREAM.tasks[0]
    learner.learn(task)
    a, b = learner.classes_
    for correct in (
        lambda: learner.remove(["x"], [a]),
        lambda: learner.relabel(["x"], [a], b),
        lambda: learner.merge_labels([a, b], a),
    ):
        with pytest.raises(HoldfastError, match="rollback"):
            correct()
    before = learner.predict_proba(TEXTS)
    found = learner.rename_label(a, "renamed")
    assert not found.exact
    assert learner.classes_ == ["renamed", b]
    assert (learner.predict_proba(TEXTS) == before).all()


def test_a_moved_encoder_is_said(one_layer):
    learner = taught(one_layer, "first+slda")
    found = learner.remove(*of(TAUGHT[-2:]))
    assert not found.exact
    assert "the encoder, which was trained" in found.note


@pytest.mark.parametrize(("scatter", "exact"), [("pooled", False), ("per-class", True)])
def test_a_forgotten_label_that_pooled_sums_keep_is_said(one_layer, tmp_path, scatter, exact):
    learner = taught(one_layer, "slda", scatter=scatter, shrinkage=0.1)
    rows = [row for row in TAUGHT if row[1] != learner.classes_[0]]
    assert learner.remove(*of(rows[:1])).exact
    learner.forget(learner.classes_[0])
    learner.save(tmp_path)
    learner = Learner.load(tmp_path)
    other = create(one_layer, "slda", scatter=scatter, shrinkage=0.1)
    third = STREAM.tasks[2].train
    other.learn(third.texts, third.labels)
    for found in (learner.rename_label(rows[0][1], "x"), other.merge(learner), other.rename_label("x", "y")):
        assert found.exact == exact
        assert ("share of a forgotten label" in found.note) == (not exact)


# ---- merging learners ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [one for one in LEARNERS if one.values != ("klda",)])
def test_learners_taught_apart_merge_into_one(one_layer, method):
    left, right, both = (create(one_layer, method, **OPTIONS[method]) for _ in range(3))
    first, second = TAUGHT[::2], TAUGHT[1::2]
    left.learn(*of(first))
    right.learn(*of(second))
    both.learn(*of(TAUGHT))
    found = left.merge(right)
    assert found.exact
    alike(left, both)
    assert left.tasks_seen == 2


def test_nothing_is_counted_twice(one_layer, tmp_path):
    """Not the learner itself, a copy of it, a copy that has learnt more, nor one merged before."""
    learner, other = taught(one_layer), create(one_layer)
    learner.save(tmp_path)
    copy, apart = Learner.load(tmp_path), Learner.load(tmp_path)
    third = STREAM.tasks[2]
    apart.learn(third.train.texts, third.train.labels)
    other.learn(third.train.texts, third.train.labels)
    counts = learner.model.head.counts.sum()
    for same_again in (learner, copy, apart):
        with pytest.raises(HoldfastError, match=r"in common .*copy"):
            learner.merge(same_again)
    learner.merge(other)
    more = STREAM.tasks[0].valid
    other.learn(more.texts, more.labels)  # new sums of other labels, but one lesson is known
    with pytest.raises(HoldfastError, match="a lesson in common"):
        learner.merge(other)
    stranger = create(one_layer)  # no key in common: recognised by its sums
    stranger.learn(third.train.texts, third.train.labels)
    with pytest.raises(HoldfastError, match="same sentences of the label"):
        learner.merge(stranger)
    assert learner.model.head.counts.sum() == counts + len(third.train)
    learner.merge(stranger, again=True)
    assert learner.model.head.counts.sum() == counts + 2 * len(third.train)


@pytest.mark.parametrize("how", ["shared", "purged"])
def test_a_copy_without_ids_is_recognised(one_layer, tmp_path, how):
    """Also after it has learnt more of every label, so that no sums are equal."""
    learner = create(one_layer)
    rows = TAUGHT[::2]
    learner.learn(*of(rows))
    if how == "shared":
        learner.save_pretrained(tmp_path)
        copy = Learner.from_pretrained(tmp_path)
    else:
        learner.history[0]["id"] = "ab12"
        learner.save(tmp_path)
        copy = Learner.load(tmp_path)
        assert copy.drop_names("nothing")
    assert copy.key != learner.key
    copy.learn(*of(TAUGHT[1::2]))
    for mine, other in ((learner, copy), (copy, learner)):
        with pytest.raises(HoldfastError, match="a lesson in common"):
            mine.merge(other)
    assert learner.model.head.counts.sum() == len(rows)
    third = STREAM.tasks[2].train
    strangers = [create(one_layer) for _ in range(2)]  # taught the same, each with its own number
    for one in strangers:
        one.learn(third.texts, third.labels)
    assert len({one.history[0]["serial"] for one in strangers}) == 2
    assert learner.merge(strangers[0]).exact
    with pytest.raises(HoldfastError, match="in common"):
        strangers[0].merge(learner)


def test_klda_is_not_merged(one_layer):
    left, right = taught(one_layer, "klda"), taught(one_layer, "klda")
    with pytest.raises(HoldfastError, match="can be merged"):
        left.merge(right)

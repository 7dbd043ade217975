"""Corrections of a directory: repeated commands, files taught again, two states, what the history says."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from helpers.everyday import rows_of, table
from helpers.learners import create
from torch import Tensor

from holdfast.data.readers import Row
from holdfast.errors import HoldfastError
from holdfast.everyday import correct, teach
from holdfast.everyday.correct import Corrected
from holdfast.heads import SLDAHead
from holdfast.learning.learner import Learner


def counts(path: Path) -> dict[str, float]:
    head = Learner.load(path).model.head
    return dict(zip(head.labels, head.counts.tolist(), strict=True))


def relearnt(path: Path, rows: list[tuple[str, str]]) -> bool:
    return teach.learn(path, table(path.parent / "again.csv", rows)).lesson is not None


def test_a_file_is_taken_out_and_learnt_again(mine: Path) -> None:
    rows, before = rows_of(1), counts(mine)
    done = correct.remove_rows(mine, rows)
    assert (done.generation, done.correction.sentences, done.correction.exact) == (3, len(rows), True)
    assert set(counts(mine)) == {label for _, label in rows_of(0)}
    repeated = correct.remove_rows(mine, rows)
    assert repeated.done_before
    assert repeated.generation == 3
    assert relearnt(mine, rows)
    assert not relearnt(mine, rows), "a repeated command counts nothing twice"
    assert counts(mine) == before
    assert correct.remove_rows(mine, rows).generation == 5, "they were learnt again meanwhile"


def test_a_part_of_a_file_taken_out_stays_out(mine: Path) -> None:
    rows = rows_of(0)
    correct.remove_rows(mine, rows[:3])
    after = counts(mine)
    assert not relearnt(mine, rows), "the file has been learnt, and was then corrected"
    assert counts(mine) == after
    assert relearnt(mine, rows[:3])
    again = correct.remove_rows(mine, rows[:3])
    assert not again.done_before
    with pytest.raises(HoldfastError, match="not what was learnt"):
        correct.remove_rows(mine, rows[:3], again=True)


def test_rows_taught_again_in_another_file_are_not_taken_for_removed(mine: Path) -> None:
    rows, more = rows_of(0)[:2], rows_of(0, "valid")[:1]
    gone = {label for _, label in rows}
    correct.remove_rows(mine, rows)
    assert correct.remove_rows(mine, rows).done_before
    assert relearnt(mine, rows + more)
    before = counts(mine)
    with pytest.raises(HoldfastError, match=r"corrected before .*--again") as refused:
        correct.remove_rows(mine, rows)
    assert len(str(refused.value).splitlines()) == 1
    assert counts(mine) == before
    assert correct.remove_rows(mine, rows, again=True).correction.sentences == len(rows)
    assert sum(counts(mine).values()) == sum(before.values()) - len(rows)
    assert correct.remove_rows(mine, rows).done_before, "a repeated command counts nothing twice"
    other = next(label for label in counts(mine) if label not in {*gone, more[0][1]})
    correct.relabel_rows(mine, more, other)
    with pytest.raises(HoldfastError, match=r"corrected before .*--again"):
        correct.remove_rows(mine, rows)
    assert correct.relabel_rows(mine, more, other).done_before
    for label in gone:
        correct.forget_label(mine, label)
    assert correct.remove_rows(mine, rows).done_before, "their labels are gone, and the rows with them"


def test_rows_that_were_corrected_no_longer_count_under_their_label(mine: Path) -> None:
    """Taking them out of it would damage the sums, and need not show."""
    rows = rows_of(0)[:2]
    other = next(label for label in counts(mine) if label not in {label for _, label in rows})
    correct.relabel_rows(mine, rows, other)
    assert correct.relabel_rows(mine, rows, other).done_before
    for corrected in (lambda: correct.remove_rows(mine, rows), lambda: correct.relabel_rows(mine, rows, "x")):
        with pytest.raises(HoldfastError, match=r"were corrected before .*present label"):
            corrected()
    assert not relearnt(mine, rows)
    correct.remove_rows(mine, [(text, other) for text, _ in rows])
    assert sum(counts(mine).values()) == len(rows_of(0)) + len(rows_of(1)) - 2


def test_labels_that_a_correction_took_away_do_not_come_back(mine: Path) -> None:
    """The same file, taught again, still has the old names."""
    rows = rows_of(0)
    a, b = sorted({label for _, label in rows})
    correct.rename_label(mine, a, "renamed")
    correct.relabel_rows(mine, [row for row in rows if row[1] == b], "renamed")
    after = counts(mine)
    assert not {a, b} & set(after)
    assert not relearnt(mine, rows)
    assert counts(mine) == after
    correct.forget_label(mine, "renamed")
    assert not relearnt(mine, rows)
    fixed = [(text, "renamed") for text, _ in rows]
    assert relearnt(mine, fixed), "as other rows"


def test_rows_of_splits_that_were_not_learnt_are_left_out(mine: Path) -> None:
    rows = [(text, label, "train" if i % 2 else "test") for i, (text, label) in enumerate(rows_of(0))]
    assert correct.remove_rows(mine, rows).correction.sentences == sum(split == "train" for *_, split in rows)
    with pytest.raises(HoldfastError, match="all are marked valid or test"):
        correct.remove_rows(mine, [(*row, "test") for row in rows_of(0)])


def test_labels_are_merged(mine: Path) -> None:
    before = counts(mine)
    a, b, *rest = before
    done = correct.merge_labels(mine, [a, b], "both")
    assert done.correction.gone == (a, b)
    assert counts(mine) == {"both": before[a] + before[b]} | {label: before[label] for label in rest}


def test_two_states_become_one(mine: Path, tiny_bert: str, tmp_path: Path) -> None:
    other, more = tmp_path / "other", rows_of(2)
    source = table(tmp_path / "week2.csv", more)
    teach.learn(other, source, model=tiny_bert)
    before = counts(mine)
    assert correct.merge_states(mine, other).correction.exact
    assert counts(mine) == before | counts(other)
    assert teach.learn(mine, source).lesson is None, "lessons of the other state are recognised"
    with pytest.raises(HoldfastError, match="in common"):
        correct.merge_states(mine, other)
    assert correct.remove_rows(mine, more).correction.sentences == len(more)
    assert counts(mine) == before
    assert teach.learn(mine, source).lesson is not None


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "slda", "rda"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_a_correction_with_default_options_leaves_as_it_was(
    tiny_bert: str, method: str, seed: int
) -> None:
    """As docs/how-to/correct.md says: sums and scores are exact, what left-out sentences chose stays."""
    first, second = rows_of(0), rows_of(1)
    a, b = sorted({label for _, label in first})
    wrong = Random(seed).sample([text for text, label in first if label == a], 4)
    slips = [(text, b if text in wrong else label) for text, label in first]
    learners = []
    for rows in (slips, first):
        learner = Learner.create(tiny_bert, method, seed=seed)
        for week in (rows, second):
            learner.learn([text for text, _ in week], [label for _, label in week])
        learners.append(learner)
    corrected, right = learners
    found = corrected.relabel(wrong, [b] * len(wrong), a)
    assert found.exact
    assert "settings chosen on held-out sentences" in found.note
    for what in ("shrinkage", "temperature", "distances of --reject"):
        assert what in found.note
    head, its = corrected.model.head, right.model.head
    assert isinstance(head, SLDAHead)
    assert isinstance(its, SLDAHead)
    assert head.labels == its.labels

    def close(one: Tensor, other: Tensor) -> bool:
        return torch.allclose(one, other, rtol=0, atol=1e-6 * max(1.0, float(other.abs().max())))

    mine, others = head.statistics(), its.statistics()
    sums = [name for name in mine if name in head.past.names]
    assert sums
    assert torch.equal(head.counts, its.counts)
    assert all(close(head.total(row), its.total(row)) for row in range(len(its.labels)))
    assert close(head.past.within(), its.past.within())
    chosen = mine.keys() - {*sums}
    assert not all(torch.equal(mine[name], others[name]) for name in chosen), "the choices of earlier lessons"
    z = right.model.embed([text for task in (0, 1, 2) for text, _ in rows_of(task, "test")])
    its.load_statistics({name: mine[name] if name in chosen else others[name] for name in others})
    its.resettle()
    assert close(head(z).double(), its(z).double()), "at equal hyper-parameters the scores are equal"
    assert close(corrected.probabilities(z), right.probabilities(z)), "and so is all that follows from them"
    assert head.threshold(0.95) == pytest.approx(its.threshold(0.95), rel=1e-6)


def test_what_two_states_need_in_common(one_layer: str) -> None:
    """As docs/everyday.md says: sums of the same vectors; what turns sums into scores may differ."""

    def taught(task: int, method: str, **options: Any) -> Learner:
        learner = create(one_layer, method, **options)
        learner.learn([text for text, _ in rows_of(task)], [label for _, label in rows_of(task)])
        return learner

    for method, mine, other in (
        ("slda", {"shrinkage": 0.1}, {"shrinkage": 0.5}),
        ("slda", {"shrinkage": 0.1, "weighting": "counts"}, {"shrinkage": 0.1}),
        ("rda", {"shrinkage": 0.1, "blend": 0.3}, {"shrinkage": 0.5, "blend": 0.1}),
        ("ranpac", {"ridge": 1.0}, {"ridge": 10.0}),
    ):
        learner, both = taught(0, method, **mine), taught(0, method, **mine)
        assert learner.merge(taught(1, method, **other)).exact
        both.merge(taught(1, method, **mine))
        texts = [text for text, _ in rows_of(1, "test")]
        assert np.allclose(learner.model.logits(texts), both.model.logits(texts))
        assert learner.method.hparams() == both.method.hparams(), "those of the learner stay"
    auto = {"sentences": 0, "layers": 1, "columns": 60}
    for method, mine, other in (
        ("slda", {}, {"scatter": "pooled"}),
        ("slda", {}, {"seed": 1}),
        ("auto", auto, auto | {"columns": 0}),
        ("auto", auto, auto | {"shrinkage": 0.1}),
        ("auto", auto, auto | {"weighting": "counts"}),
    ):
        with pytest.raises(HoldfastError, match=r"can(not)? be merged"):
            taught(0, method, **mine).merge(taught(1, method, **other))


def test_a_state_is_not_added_to_itself(mine: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(mine, copy)
    (tmp_path / "link").symlink_to(mine)
    with pytest.raises(HoldfastError, match="the same state"):
        correct.merge_states(mine, tmp_path / "link")
    with pytest.raises(HoldfastError, match="2 lessons in common"):
        correct.merge_states(mine, copy)
    before = counts(mine)
    correct.merge_states(mine, copy, again=True)
    assert counts(mine) == {label: 2 * n for label, n in before.items()}


def test_the_history_says_what_was_corrected_until_it_is_purged(mine: Path) -> None:
    a, b, c, _ = counts(mine)
    row = next(row for row in rows_of(0) if row[1] == a)
    made: list[Corrected] = [
        correct.relabel_rows(mine, [row], b),
        correct.rename_label(mine, c, "renamed"),
        correct.remove_rows(mine, [(row[0], b)]),
    ]
    history = Learner.load(mine).history[2:]
    assert [entry["task"] for entry in history] == [one.correction.what for one in made]
    assert [entry["generation"] for entry in history] == [3, 4, 5]
    assert history[0]["task"] == f"1 of {a!r} relabelled to {b!r}"
    assert row[0] not in repr(history)
    assert made[2].correction.what in (mine / "README.md").read_text().replace("\\", "")
    copy = mine.parent / "copy"
    shutil.copytree(mine, copy)
    assert "the history, in which corrections name it" in correct.forget_label(copy, b).traces
    assert "the history" not in correct.forget_label(mine, b, purge=True).traces
    history = Learner.load(mine).history
    assert not any(b in entry["task"] or entry.get("id") or entry.get("gone") for entry in history)


def test_a_directory_is_named_by_a_string_too(mine: Path) -> None:
    """As in Learner.load."""
    place, (a, b, c, d) = str(mine), counts(mine)
    row = next(row for row in rows_of(0) if row[1] == a)
    assert teach.learn(place, str(mine.parent / "week.csv"), given=[Row(*row, None)]).generation == 3
    assert teach.planned(place, table(mine.parent / "week.csv", [row])).learnt_before == 3
    assert correct.remove_rows(place, [row]).generation == 4
    assert correct.relabel_rows(place, rows_of(0)[2:3], "x").generation == 5
    assert correct.rename_label(place, c, "renamed").generation == 6
    assert correct.merge_labels(place, [a, b], a).generation == 7
    assert correct.forget_label(place, d).generation == 8
    with pytest.raises(HoldfastError, match="the same state"):
        correct.merge_states(place, place)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ("one string", "str, not a list; give pairs"),
        (None, "NoneType, not a list; give pairs"),
        ({"text": "label"}, "dict, not a list; give pairs"),
        (["ab"], "row 1 is not a pair"),
        ([("text", "label"), ("text",)], "row 2 is not a pair"),
        ([("a", "b", "train", "d")], "row 1 is not a pair"),
        ([("text", None)], "label 1 is not text but None"),
        ([(3, "label")], "text 1 is not text but 3"),
        ([("text", ["a", "b"])], "one learner per label"),
    ],
)
def test_rows_that_are_none_are_one_line(made: Path, rows: Any, said: str) -> None:
    for corrected in (correct.remove_rows, lambda path, rows: correct.relabel_rows(path, rows, "x")):
        with pytest.raises(HoldfastError, match=said) as refused:
            corrected(made, rows)
        assert len(str(refused.value).splitlines()) == 1


def test_one_label_is_renamed_not_merged(mine: Path) -> None:
    a, b, *_ = counts(mine)
    with pytest.raises(HoldfastError, match=f"only the label {a!r} is given; .*rename-label"):
        correct.merge_labels(mine, [a], "new")
    with pytest.raises(HoldfastError, match="unknown label 'nowhere'"):
        correct.merge_labels(mine, ["nowhere"], "new")
    assert correct.merge_labels(mine, [a], b).correction.gone == (a,)


def test_a_correction_that_is_refused_leaves_the_directory_as_it_was(mine: Path) -> None:
    def content() -> dict[str, bytes]:
        return {str(file): file.read_bytes() for file in sorted(mine.rglob("*")) if file.is_file()}

    before, label = content(), next(iter(counts(mine)))
    for rows in ([("x", "nowhere")], [("x", label)] * 99, []):
        with pytest.raises(HoldfastError):
            correct.remove_rows(mine, rows)
    with pytest.raises(HoldfastError, match="holds no Holdfast state"):
        correct.rename_label(mine.parent / "nothing", "a", "b")
    assert content() == before

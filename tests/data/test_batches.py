"""Batches: every sentence once, similar lengths together, minimal padding on the right."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.data.batches import BUCKET, LENGTHS, Batch, Examples
from holdfast.data.tasks import Split, Stream, Task
from holdfast.errors import HoldfastError
from holdfast.maths.losses import Objective

PAD = 77


def examples(*lengths: int) -> Examples:
    """Return examples in which sentence i repeats the token i + 1."""
    return Examples([[i + 1] * n for i, n in enumerate(lengths)], [i % 3 for i in range(len(lengths))], PAD)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(1, 9), st.integers(0, 5))
def test_every_sentence_once_per_epoch(lengths: list[int], size: int, seed: int) -> None:
    data, random = examples(*lengths), seeded(seed)
    for shuffle in (None, random, random):
        order = data.order(size, shuffle)
        assert sorted(i for batch in order for i in batch) == list(range(len(lengths)))
        assert len(order) == -(-len(lengths) // size)
        assert all(1 <= len(batch) <= size for batch in order)
        rows = [tuple(row[row != PAD].tolist()) for b in data.batches(size, shuffle) for row in b.input_ids]
        assert sorted(rows) == sorted(tuple(tokens) for tokens in data.tokens)


def test_the_order_is_the_generators() -> None:
    data = examples(*[1 + i % 13 for i in range(200)])
    random = seeded(3)
    first, second = data.order(8, random), data.order(8, random)
    assert first == data.order(8, seeded(3))
    assert first != second  # the order differs between epochs
    assert first != data.order(8, seeded(4))
    assert data.order(8) == data.order(8)
    state = torch.get_rng_state()
    data.order(8, seeded(3))
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_hold_sentences_of_like_length() -> None:
    lengths = torch.randint(1, 60, (8 * BUCKET,), generator=seeded(0)).tolist()
    for shuffle in (None, seeded(1)):
        order = examples(*lengths).order(8, shuffle)
        # one bucket, sorted as a whole: the length ranges of batches overlap only at their ends
        spans = sorted((min(lengths[i] for i in batch), max(lengths[i] for i in batch)) for batch in order)
        assert all(high <= low for (_, high), (low, _) in pairwise(spans))
    unsorted = [[lengths[i] for i in batch] for batch in order]
    assert unsorted != sorted(unsorted)  # but the batches are not ordered by length


def test_several_buckets_are_sorted_each_for_itself() -> None:
    lengths = [1 + i % 50 for i in range(3 * BUCKET * 2)]
    order = examples(*lengths).order(2, seeded(2))
    padded = sum(2 * max(lengths[i] for i in batch) for batch in order)
    assert padded < 1.05 * sum(lengths)
    assert {len(batch) for batch in order} == {2}


def test_collate_pads_on_the_right() -> None:
    loss = Objective(torch.zeros(3), torch.ones(3))
    data = Examples([[5, 6], [7], [8, 9, 10]], [2, 0, 1], PAD, loss)
    batch = data.collate([2, 1])
    assert batch.input_ids.tolist() == [[8, 9, 10], [7, PAD, PAD]]
    assert batch.attention_mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch.labels.tolist() == [1, 0]
    assert batch.objective is loss
    assert len(batch) == 2
    assert data.collate([0, 1]).input_ids.tolist() == [[5, 6], [7, PAD]]  # padded to the longest of the batch


def test_rows_trims_padding() -> None:
    batch = examples(5, 1, 3, 2).collate([0, 1, 2, 3])
    part = batch.rows(torch.tensor([3, 1]))
    assert part.input_ids.tolist() == [[4, 4], [2, PAD]]
    assert part.attention_mask.tolist() == [[1, 1], [1, 0]]
    assert part.labels.tolist() == [0, 1]
    assert batch.input_ids.shape == (4, 5)


@settings(max_examples=40)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_by_length_is_a_partition_that_loses_nothing(lengths: list[int]) -> None:
    batch = examples(*lengths).collate(range(len(lengths)))
    groups = [group.tolist() for group in batch.by_length()]
    assert sorted(i for group in groups for i in group) == list(range(len(lengths)))
    grades = [{sum(lengths[i] > cut for cut in LENGTHS) for i in group} for group in groups]
    assert all(len(grade) == 1 for grade in grades)
    assert len(set.union(*grades)) == len(groups)
    for group in batch.by_length():
        part: Batch = batch.rows(group)
        assert part.input_ids.shape[1] == max(lengths[i] for i in group.tolist())
        for place, i in enumerate(group.tolist()):
            assert (part.input_ids[place] == i + 1).sum() == lengths[i] == part.attention_mask[place].sum()


# ---- encoding ----------------------------------------------------------------------------------------


def split(labels: str) -> Split:
    return Split.of([(f"{label}{i}", label) for i, label in enumerate(labels)])


def task(name: str, labels: str) -> Task:
    return Task(name, split(labels), split(labels), split(labels))


def test_capped_keeps_the_first_of_each_label_in_their_order_and_the_test_split_whole() -> None:
    assert split("abacab").capped(2).texts == ("a0", "b1", "a2", "c3", "b5")
    assert split("ab").capped(None) == split("ab")
    capped = task("t", "aaabbb").capped(train=2, valid=1)
    assert [len(part) for part in (capped.train, capped.valid, capped.test)] == [4, 2, 6]
    with pytest.raises(ValueError, match="1 texts but 2 labels"):
        Split(("x",), ("a", "b"))


def test_streams_are_ordered_by_name_and_labels_by_first_teaching() -> None:
    stream = Stream("s", (task("one", "ba"), task("two", "ca")), "class-incremental")
    assert stream.labels == ("a", "b", "c")
    turned = stream.ordered(["two", "one"])
    assert [lesson.name for lesson in turned] == ["two", "one"]
    assert turned.labels == ("a", "c", "b")
    assert [lesson.name for lesson in stream.ordered(["two"])] == ["two"]
    for names, message in (([], "no tasks"), (["three"], "'three'.*one, two"), (["one", "one"], "two tasks")):
        with pytest.raises(HoldfastError, match=message):
            stream.ordered(names)


def test_a_drawn_part_is_not_the_shortest_one():
    data = Examples(tokens=[[1] * (i + 1) for i in range(100)], labels=list(range(100)), pad=0)
    part = data.drawn(20, seed=3)
    assert len(part) == len(set(part.labels)) == 20
    assert all(len(tokens) == label + 1 for tokens, label in zip(part.tokens, part.labels, strict=True))
    assert max(part.labels) > 60
    assert part.labels == data.drawn(20, seed=3).labels != data.drawn(20, seed=4).labels
    assert data.drawn(100, seed=3) is data

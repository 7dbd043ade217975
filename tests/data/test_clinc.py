"""CLINC150: 15 tasks of ten intents, another cut in every order, and its out-of-scope sentences."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.clinc import plant

from holdfast.data import Split, Stream, Task, load_stream
from holdfast.data.clinc import CLINC_JSON, clinc150, out_of_scope
from holdfast.data.tasks import recut
from holdfast.errors import HoldfastError

DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not (DATA / CLINC_JSON).is_file(), reason="CLINC150 is not beside the repository"
)


def cuts(stream: Stream) -> list[tuple[str, ...]]:
    return [task.labels for task in stream]


def rows(stream: Stream) -> Iterator[tuple[str, str, str]]:
    for task in stream:
        for part in ("train", "valid", "test"):
            split: Split = getattr(task, part)
            assert set(split.labels) == set(task.labels)
            yield from ((part, *row) for row in zip(split.texts, split.labels, strict=True))


def test_tasks_of_ten_shuffled_intents(tmp_path: Path) -> None:
    stream = load_stream("clinc150", data_dir=plant(tmp_path))
    assert [task.name for task in stream] == ["Part1", "Part2", "Part3"]
    assert [len(task.labels) for task in stream] == [10, 10, 3]
    assert sorted(stream.labels) == sorted(
        stream.tasks[0].labels + stream.tasks[1].labels + stream.tasks[2].labels
    )
    assert cuts(stream)[0] != tuple(sorted(stream.labels)[:10])
    first = stream.tasks[0].labels[0]
    own = [
        text
        for text, label in zip(stream.tasks[0].train.texts, stream.tasks[0].train.labels, strict=True)
        if label == first
    ]
    assert own == [f"first {first}", f"second {first}"]


def test_each_order_is_another_cut_of_the_same_rows(tmp_path: Path) -> None:
    plant(tmp_path)
    found = [load_stream("clinc150", order=str(number), data_dir=tmp_path) for number in range(1, 5)]
    assert found[0] == load_stream("clinc150", data_dir=tmp_path)
    assert found[2] == load_stream("clinc150", order="3", data_dir=tmp_path)
    assert len({tuple(map(frozenset, cuts(stream))) for stream in found}) == 4
    assert len({frozenset(rows(stream)) for stream in found}) == 1
    assert [len(list(rows(stream))) for stream in found] == [23 * 4] * 4
    chosen = load_stream("clinc150", order="Part3,Part1", data_dir=tmp_path)
    assert chosen.tasks == (found[0].tasks[2], found[0].tasks[0])


def test_the_order_of_the_rows_in_the_file_decides_nothing_but_their_own(tmp_path: Path) -> None:
    before = clinc150(plant(tmp_path))
    content = json.loads((tmp_path / CLINC_JSON).read_text())
    (tmp_path / CLINC_JSON).write_text(json.dumps(content | {"val": content["val"][::-1]}))
    assert clinc150(tmp_path) == before


def test_recut_does_not_depend_on_the_present_tasks() -> None:
    def of(*labels: str) -> Task:
        split = Split.of([(f"say {label}", label) for label in labels])
        return Task("/".join(labels), split, split, split)

    stream = Stream("s", (of("a", "b"), of("c", "d"), of("e")), "class-incremental")
    again = recut(stream, 5)
    assert [task.name for task in again] == [task.name for task in stream]
    assert recut(again, 5) == again
    assert recut(recut(again, 6), 5) == again
    assert len({str(cuts(recut(stream, number))) for number in range(20)}) > 10


def test_out_of_scope_sentences_are_in_no_task(tmp_path: Path) -> None:
    found = out_of_scope(plant(tmp_path))
    assert found == {"train": (), "valid": ("sing backwards",), "test": ("count the stars", "why")}
    assert "oos" not in clinc150(tmp_path).labels


def test_a_missing_file(tmp_path: Path) -> None:
    for read in (clinc150, out_of_scope):
        with pytest.raises(HoldfastError) as error:
            read(tmp_path)
        assert str(error.value) == (
            f"{tmp_path / CLINC_JSON}: not found; run `holdfast data get clinc150` or pass another --data-dir"
        )


@pytest.mark.parametrize("val", [None, 3, ["xy"], [["one"]], [["text", 3]], [[None, "label"]], "gone"])
def test_a_file_of_another_shape(tmp_path: Path, val: Any) -> None:
    plant(tmp_path, val=val)
    if val == "gone":
        content = json.loads((tmp_path / CLINC_JSON).read_text())
        del content["val"]
        (tmp_path / CLINC_JSON).write_text(json.dumps(content))
    with pytest.raises(HoldfastError) as error:
        clinc150(tmp_path)
    assert str(error.value) == (
        f"{tmp_path / CLINC_JSON}: 'val' is not a list of [sentence, intent] pairs;"
        " delete it and run `holdfast data get clinc150`"
    )


def test_a_file_that_is_no_json(tmp_path: Path) -> None:
    (plant(tmp_path) / CLINC_JSON).write_text('{"train": [[')
    with pytest.raises(HoldfastError, match="'train' is not a list"):
        clinc150(tmp_path)


@needs_data
@pytest.mark.parametrize("order", ["1", "2", "3"])
def test_the_real_file(order: str) -> None:
    stream = load_stream("clinc150", order=order, data_dir=DATA)
    assert (len(stream), len(stream.labels), stream.scenario) == (15, 150, "class-incremental")
    for task in stream:
        assert len(task.labels) == 10
        for part, each in {"train": 50, "valid": 20, "test": 30}.items():
            assert set(getattr(task, part).counts().values()) == {each}
    outside = out_of_scope(DATA)
    assert {part: len(texts) for part, texts in outside.items()} == {"train": 100, "valid": 100, "test": 1000}


@needs_data
def test_the_cuts_of_the_real_file_stay_as_they_are() -> None:
    """Records name an order by its number only."""
    first = {number: load_stream("clinc150", order=str(number), data_dir=DATA).tasks[0] for number in (1, 2)}
    assert first[1].labels[:3] == ("bill_due", "book_flight", "expiration_date")
    assert first[2].labels[:3] == ("book_hotel", "card_declined", "carry_on")

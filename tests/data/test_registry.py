"""The registry: streams by name or path, the order of tasks, and the table that describes them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.data import STREAMS, ClassSummary, Split, Stream, Task, describe, load_stream
from holdfast.errors import HoldfastError


@pytest.fixture(autouse=True)
def no_data_dir(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DATA", raising=False)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    for name in ("kitchen", "garden", "attic"):
        rows = (f"{name} {i},{label}\n" for label in ("on", "off") for i in range(3))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + "".join(rows))
    return tmp_path


def names(stream: Stream) -> list[str]:
    return [task.name for task in stream]


def plant_hwu64(data_dir: Path, intent: str) -> None:
    for split in range(5):
        folder = data_dir / "hwu64" / f"Split{split}"
        folder.mkdir(parents=True)
        for part in ("train", "dev", "test"):
            (folder / f"{part}.json").write_text(f'{{"1": {{"intent": "{intent}", "sentence": "hi"}}}}')


def test_the_registry_names_what_it_loads() -> None:
    assert list(STREAMS) == ["home", "home-domains", "hwu64", "annomi", "annomi-raw", "clinc150"]
    assert all(name == source.name and source.summary for name, source in STREAMS.items())
    assert {name: sorted(source.orders) for name, source in STREAMS.items() if source.orders} == {
        "hwu64": [1, 2, 3],
        "annomi": [1, 2, 3],
        "annomi-raw": [1, 2, 3],
    }


@pytest.mark.parametrize("name", ["home", "home-domains"])
def test_the_embedded_streams_need_no_data_dir(name: str) -> None:
    stream = load_stream(name)
    assert (stream.name, stream.scenario) == (name, STREAMS[name].scenario)
    assert names(load_stream(name, order="1")) == names(stream)


@pytest.mark.parametrize("name", ["hwu64", "annomi", "annomi-raw", "clinc150"])
def test_without_a_data_dir(name: str) -> None:
    with pytest.raises(HoldfastError) as error:
        load_stream(name)
    assert str(error.value) == (
        f"stream {name!r} needs a data directory: pass --data-dir, set HOLDFAST_DATA,"
        f" or run `holdfast data get {name}`"
    )


def test_the_environment_names_a_data_dir_and_the_argument_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant_hwu64(tmp_path / "environment", "sing")
    plant_hwu64(tmp_path / "argument", "dance")
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path / "environment"))
    assert load_stream("hwu64").labels == ("sing",)
    assert load_stream("hwu64", data_dir=tmp_path / "argument").labels == ("dance",)


def test_an_order_whose_tasks_are_not_there(tmp_path: Path) -> None:
    plant_hwu64(tmp_path, "sing")
    with pytest.raises(HoldfastError, match=r"stream 'hwu64' has no task 'Split5'; its tasks are Split0, "):
        load_stream("hwu64", order="2", data_dir=tmp_path)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (None, ["attic", "garden", "kitchen"]),
        ("1", ["attic", "garden", "kitchen"]),
        ("kitchen, attic", ["kitchen", "attic"]),
        ("garden", ["garden"]),
    ],
)
def test_a_folder_in_any_order(folder: Path, order: str | None, expected: list[str]) -> None:
    stream = load_stream(str(folder), order=order)
    assert names(stream) == expected
    assert stream.scenario == "domain-incremental"


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ("0", "has no task '0'; its tasks are attic, garden, kitchen"),
        ("attic,cellar", "has no task 'cellar'; its tasks are attic, garden, kitchen"),
        ("attic,attic", "has two tasks called 'attic'"),
    ],
)
def test_an_order_that_makes_no_sense(folder: Path, order: str, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        load_stream(str(folder), order=order)


def test_further_numbers_are_fixed_shuffles_all_different(folder: Path) -> None:
    found = [tuple(names(load_stream(str(folder), order=str(number)))) for number in range(1, 7)]
    assert found[0] == ("attic", "garden", "kitchen")
    assert len(set(found)) == 6
    assert found[4] == tuple(names(load_stream(str(folder), order="5")))
    with pytest.raises(HoldfastError, match="order 7: 3 tasks have orders 1 to 6"):
        load_stream(str(folder), order="7")


def test_the_columns_are_passed_on(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("words,kind\n1,x\n2,x\n3,x\n")
    assert load_stream(str(path), text_column="words", label_column="kind").labels == ("x",)


@pytest.mark.parametrize(("name", "hint"), [("hwu46", " (did you mean 'hwu64'?)"), ("zzz.csv", "")])
def test_an_unknown_stream(name: str, hint: str) -> None:
    with pytest.raises(HoldfastError) as error:
        load_stream(name)
    assert str(error.value) == (
        f"unknown stream {name!r}{hint}; the streams are home, home-domains, hwu64, annomi, annomi-raw,"
        " clinc150, or give the path of a file or folder, or hf:owner/name"
    )


def test_describe_counts_and_quotes() -> None:
    train = Split(("go", "stop", "go", "run", "walk"), ("on", "off", "on", "on", "on"))
    task = Task("gym", train, Split(("halt",), ("off",)), Split(("jump", "leap"), ("on", "on")))
    assert describe(Stream("s", (task,), "class-incremental")) == [
        ClassSummary("gym", "off", 1, 1, 0, ("stop",)),
        ClassSummary("gym", "on", 4, 0, 2, ("go", "run")),
    ]


def test_tasks_and_streams_are_described_in_one_line() -> None:
    rows = Split(("play jazz", "wake me at six"), ("music", "alarm"))
    task = Task("week 1", train=rows, valid=Split((), ()), test=rows)
    assert repr(task) == "Task('week 1', 2 labels, 2 train, 0 valid, 2 test)"
    stream = Stream("mine", (task,), "class-incremental")
    assert repr(stream) == "Stream('mine', 1 tasks, 2 labels, class-incremental)"

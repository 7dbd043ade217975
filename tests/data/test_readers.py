"""Reading every format; a bad file gives a one-line error that says what, where and what to do."""

import json
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.data.readers import FIELD_LIMIT, Row, digest, read_pairs, stream_from_files
from holdfast.errors import HoldfastError

Write = Callable[..., Path]
EXTRA = "pip install 'holdfast[datasets]'"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, content: str | bytes) -> Path:
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def balanced(labels: str, each: int = 10) -> str:
    return "text,label\n" + "".join(f"{label} number {i},{label}\n" for label in labels for i in range(each))


def test_csv_tsv_and_jsonl_read_alike(write: Write) -> None:
    rows = [Row("turn on, please", "on"), Row('say "off"', "off")]
    assert read_pairs(write("a.csv", 'text,label\n"turn on, please",on\n"say ""off""",off\n')) == rows
    assert read_pairs(write("a.tsv", 'label\ttext\non\tturn on, please\noff\tsay "off"\n')) == rows
    lines = (json.dumps({"text": row.text, "label": row.label}) for row in rows)
    assert read_pairs(write("a.jsonl", "\n".join(lines) + "\n\n")) == rows


def test_other_columns_a_byte_order_mark_blank_lines_and_windows_line_ends(write: Write) -> None:
    path = write("a.csv", "\ufeffsentence,intent\r\n\r\nhello,greet\r\n\r\n")
    assert read_pairs(path, text_column="sentence", label_column="intent") == [Row("hello", "greet")]


def test_a_number_is_a_label(write: Write) -> None:
    assert read_pairs(write("a.jsonl", '{"text": "x", "label": 3}')) == [Row("x", "3")]


def test_a_sentence_may_be_longer_than_the_csv_module_likes(write: Write) -> None:
    text = "a" * 1_000_000
    assert read_pairs(write("a.csv", f"text,label\n{text},x\n")) == [Row(text, "x")]


def test_split_names_are_made_one(write: Write) -> None:
    names = ["train", "valid", "validation", "dev", "test"]
    path = write("a.csv", "text,label,split\n" + "".join(f"t,x,{name}\n" for name in names))
    assert [row.split for row in read_pairs(path)] == ["train", "valid", "valid", "valid", "test"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.parquet", "x", "{}: cannot read .parquet files; use .csv, .tsv, .jsonl"),
        ("plain", "x", "{}: cannot read suffixless files; use .csv, .tsv, .jsonl"),
        ("a.csv", "", "{}: the file is empty; it needs a header line and one row per sentence"),
        ("a.csv", "\n\n", "{}: the file is empty; it needs a header line and one row per sentence"),
        ("a.csv", "text,label\n", "{}: no rows; add one row per sentence, with text and label"),
        ("a.jsonl", "", "{}: no rows; add one row per sentence, with text and label"),
        (
            "a.csv",
            "texts,label\nhi,x\n",
            "{}, line 1: no column 'text' (did you mean 'texts'?); the columns are texts, label:"
            " choose with --text-column and --label-column",
        ),
        (
            "a.tsv",
            "text\tLABEL\nhi\tx\n",
            "{}, line 1: no column 'label' (did you mean 'LABEL'?); the columns are text, LABEL:"
            " choose with --text-column and --label-column",
        ),
        (
            "a.jsonl",
            '{"text": "hi", "label": "x"}\n{"text": "hi", "zzz": "x"}\n',
            "{}, line 2: no column 'label'; the columns are text, zzz:"
            " choose with --text-column and --label-column",
        ),
        (
            "a.csv",
            b"text,label\nhi,x\ncaf\xe9,y\n",
            "{}, line 3: not UTF-8 at byte 19; save the file as UTF-8",
        ),
        (
            "a.csv",
            b"\xef\xbb\xbftext\xff,label\n",
            "{}, line 1: not UTF-8 at byte 7; save the file as UTF-8",
        ),
        ("a.csv", "text,label\nh\0i,x\n", "{}, line 2: contains a NUL byte; save the file as UTF-8"),
        ("a.jsonl", '{"text": "h\0i"}', "{}, line 1: contains a NUL byte; save the file as UTF-8"),
        (
            "a.csv",
            "text,label\nhi,x\n ,x\n",
            "{}, line 3: column 'text' is empty or NaN; fill it in or delete the row",
        ),
        (
            "a.csv",
            'text,label\n"two\nlines",x\n\nNaN,x\n',
            "{}, line 5: column 'text' is empty or NaN; fill it in or delete the row",
        ),
        (
            "a.csv",
            "text,label\nhi,\n",
            "{}, line 2: column 'label' is empty or NaN; fill it in or delete the row",
        ),
        (
            "a.jsonl",
            '\n{"text": NaN, "label": "x"}',
            "{}, line 2: column 'text' is empty or NaN; fill it in or delete the row",
        ),
        (
            "a.jsonl",
            '{"text": "hi", "label": null}',
            "{}, line 1: column 'label' is empty or NaN; fill it in or delete the row",
        ),
        (
            "a.jsonl",
            '{"text": ["hi"], "label": "x"}',
            "{}, line 1: column 'text' contains a list or an object; use text",
        ),
        (
            "a.jsonl",
            '{"text": "hi", "label": "x"}\n{"text": \n',
            "{}, line 2: broken JSON (Expecting value); put one object on each line",
        ),
        (
            "a.jsonl",
            '{"text": "hi", "label": "x", "split": "train"}\n{"text": "hi", "label": "x"}',
            "{}: only some rows have a split; give every row one, or none",
        ),
        ("a.jsonl", '["hi", "x"]', "{}, line 1: not a JSON object; put one object on each line"),
        (
            "a.csv",
            "text,label\nhi,x\nhi, there,x\n",
            "{}, line 3: 3 fields where the header has 2; quote fields that contain the delimiter",
        ),
        (
            "a.csv",
            "text,label\nhi\n",
            "{}, line 2: 1 fields where the header has 2; quote fields that contain the delimiter",
        ),
        (
            "a.csv",
            'text,label\nhi,x\n"never closed,x\nhi,x\n',
            "{}, line 3: broken row (unexpected end of data); check its quotes",
        ),
        (
            "a.csv",
            "text,label\n" + "a" * (FIELD_LIMIT + 1) + ",x\n",
            f"{{}}, line 2: broken row (field larger than field limit ({FIELD_LIMIT})); check its quotes",
        ),
        (
            "a.csv",
            "text,label,split\nhi,x,holdout\n",
            "{}, line 2: unknown split 'holdout'; use train, valid, validation, dev, test",
        ),
    ],
)
def test_a_bad_file_is_one_line(write: Write, name: str, content: str | bytes, message: str) -> None:
    path = write(name, content)
    with pytest.raises(HoldfastError) as error:
        read_pairs(path)
    assert str(error.value) == message.format(path)
    assert "\n" not in str(error.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"none\.csv: no such file; check the path"):
        read_pairs(tmp_path / "none.csv")
    with pytest.raises(HoldfastError, match=r"none\.csv: cannot be read \(No such file or directory\)"):
        digest(tmp_path / "none.csv")


def test_one_file_is_one_task_split_by_label_and_seed(write: Write) -> None:
    path = write("rooms.csv", balanced("ab") + "c 1,c\nc 2,c\nc 3,c\n")
    stream = stream_from_files(path)
    (task,) = stream
    assert (stream.name, task.name, stream.scenario) == ("rooms", "rooms", "class-incremental")
    assert task.train.counts() == Counter(a=7, b=7, c=1)
    assert task.valid.counts() == Counter(a=1, b=1, c=1)
    assert task.test.counts() == Counter(a=2, b=2, c=1)
    parts = (*task.train.texts, *task.valid.texts, *task.test.texts)
    assert sorted(parts) == sorted(row.text for row in read_pairs(path))
    assert stream_from_files(path) == stream
    assert stream_from_files(path, seed=1) != stream


def test_a_new_label_leaves_the_split_of_the_others_alone(write: Write) -> None:
    (before,) = stream_from_files(write("a.csv", balanced("ab")))
    (after,) = stream_from_files(write("a.csv", balanced("ab") + balanced("c").partition("\n")[2]))
    assert set(before.test.texts) < set(after.test.texts)


def test_a_split_column_is_obeyed(write: Write) -> None:
    (task,) = stream_from_files(write("a.csv", "text,label,split\n1,x,test\n2,x,train\n3,x,dev\n4,x,train\n"))
    assert (task.train.texts, task.valid.texts, task.test.texts) == (("2", "4"), ("3",), ("1",))


@pytest.mark.parametrize("absent", ["train", "valid", "test"])
def test_a_split_that_is_absent_is_named(write: Write, absent: str) -> None:
    present = [split for split in ("train", "valid", "test") if split != absent]
    path = write("a.csv", "text,label,split\n" + "".join(f"t,x,{split}\n" for split in present))
    with pytest.raises(HoldfastError) as error:
        stream_from_files(path)
    assert str(error.value) == (
        f"{path}: no {absent!r} rows in the split column; mark some rows {absent!r}, or drop the column"
    )


def test_a_label_never_trained_is_named(write: Write) -> None:
    path = write("a.csv", "text,label,split\nt,x,train\nt,x,valid\nt,y,test\n")
    with pytest.raises(HoldfastError) as error:
        stream_from_files(path)
    assert str(error.value) == (
        f"{path}: label 'y' is in the 'test' rows but not in 'train'; add it to 'train'"
    )


@pytest.mark.parametrize("count", [1, 2])
def test_a_label_too_rare_to_split_is_named(write: Write, count: int) -> None:
    path = write("a.csv", balanced("a") + "odd,rare\n" * count)
    with pytest.raises(HoldfastError) as error:
        stream_from_files(path)
    assert str(error.value) == (
        f"{path}: label 'rare' has {count} of the 3 examples a split needs; add examples or delete the label"
    )


def test_a_folder_is_a_task_per_file_in_order_of_name(write: Write, tmp_path: Path) -> None:
    write("2.csv", balanced("ab"))
    write("1.tsv", balanced("ab").replace(",", "\t"))
    write("notes.txt", "not data")
    stream = stream_from_files(tmp_path)
    assert [task.name for task in stream] == ["1", "2"]
    assert stream.scenario == "domain-incremental"
    write("3.csv", balanced("cd"))
    assert stream_from_files(tmp_path).scenario == "class-incremental"


def test_a_folder_without_data(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match=r"no \.csv, \.tsv, \.jsonl files; put one file per task there"):
        stream_from_files(tmp_path)


def test_digest_names_the_bytes(write: Write, tmp_path: Path) -> None:
    path = write("a.csv", balanced("a"))
    first = digest(path)
    assert len(first) == 12
    assert set(first) <= set("0123456789abcdef")
    assert digest(tmp_path) == first
    write("b.csv", balanced("b"))
    assert digest(path) == first
    assert digest(tmp_path) != first
    write("a.csv", balanced("a") + "one more,a\n")
    assert digest(path) != first


class FakeDataset(list[dict[str, Any]]):
    """The parts of `datasets.Dataset` that the reader uses."""

    def __init__(self, rows: list[dict[str, Any]], names: list[str] | None = None, file: Path | None = None):
        super().__init__(rows)
        self.column_names = list(rows[0])
        self.features = {column: SimpleNamespace() for column in rows[0]}
        self.cache_files = [{"filename": str(file)}] if file else []
        if names:
            self.features["label"].names = names


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Replace `datasets` by a module whose hub holds what the test puts there."""
    content: dict[str, Any] = {}
    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=content.__getitem__))
    return content


def test_a_hub_dataset_keeps_its_splits_and_its_class_names(hub: dict[str, Any], write: Write) -> None:
    file = write("cache.arrow", b"1")
    part = FakeDataset([{"text": "hi", "label": 1}], ["bye", "greet"], file)
    hub["owner/talk"] = {"train": part, "validation": part, "test": part}
    assert read_pairs("hf:owner/talk") == [Row("hi", "greet", split) for split in ("train", "valid", "test")]
    stream = stream_from_files("hf:owner/talk")
    assert (stream.name, [task.name for task in stream]) == ("talk", ["talk"])
    before = digest("hf:owner/talk")
    write("cache.arrow", b"2")
    assert digest("hf:owner/talk") != before


def test_a_hub_dataset_of_one_split_is_split_by_us(hub: dict[str, Any]) -> None:
    hub["owner/talk"] = {"train": FakeDataset([{"text": f"hi {i}", "label": "greet"} for i in range(10)])}
    (task,) = stream_from_files("hf:owner/talk")
    assert (len(task.train), len(task.valid), len(task.test)) == (7, 1, 2)


def test_a_split_column_inside_a_dataset_is_obeyed(hub: dict[str, Any]) -> None:
    hub["owner/talk"] = FakeDataset([{"text": "hi", "label": "greet", "split": "dev"}])
    assert read_pairs("hf:owner/talk") == [Row("hi", "greet", "valid")]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            [{"text": "hi", "label": 0}, {"text": "hi", "label": -1}],
            "hf:owner/talk, split 'train', row 2: column 'label' is empty or NaN",
        ),
        ([{"text": None, "label": 0}], "hf:owner/talk, split 'train', row 1: column 'text' is empty or NaN"),
        (
            [{"sentence": "hi", "label": 0}],
            "hf:owner/talk, split 'train': no column 'text'; the columns are sentence, label",
        ),
    ],
)
def test_a_bad_hub_dataset(hub: dict[str, Any], rows: list[dict[str, Any]], message: str) -> None:
    hub["owner/talk"] = {"train": FakeDataset(rows, ["greet"])}
    with pytest.raises(HoldfastError) as error:
        read_pairs("hf:owner/talk")
    assert str(error.value).startswith(message)


def test_an_unknown_hub_dataset(hub: dict[str, Any]) -> None:
    with pytest.raises(HoldfastError) as error:
        read_pairs("hf:owner/none")
    assert str(error.value) == (
        "hf:owner/none: cannot be loaded ('owner/none'); check the name and the network"
    )


@pytest.mark.parametrize("saved", [True, False])
def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, saved: bool) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    (tmp_path / "state.json").touch()
    path = str(tmp_path) if saved else "hf:owner/talk"
    with pytest.raises(HoldfastError) as error:
        stream_from_files(path)
    assert str(error.value).endswith(EXTRA)


def test_datasets_saved_by_the_real_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason=f"needs the extra: {EXTRA}")
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["off", "on"])}
    )
    data = datasets.Dataset.from_dict({"text": ["go", "stop"], "label": [1, 0]}, features=features)
    data.save_to_disk(tmp_path / "one")
    assert read_pairs(tmp_path / "one") == [Row("go", "on"), Row("stop", "off")]
    datasets.DatasetDict(train=data, validation=data, test=data).save_to_disk(tmp_path / "three")
    (task,) = stream_from_files(tmp_path / "three")
    assert (task.name, task.labels, task.valid.texts) == ("three", ("off", "on"), ("go", "stop"))
    assert digest(tmp_path / "three") != digest(tmp_path / "one")


def test_folders_and_doubled_columns_are_said(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="a folder; give one of its files"):
        read_pairs(tmp_path)
    file = tmp_path / "twice.CSV"
    file.write_text("text,label,text\na,b,c\n")
    with pytest.raises(HoldfastError, match=r"line 1: two columns are called 'text'; rename one"):
        read_pairs(file)
    file.write_text("text,label\na,b\n")
    assert read_pairs(file) == [("a", "b", None)]

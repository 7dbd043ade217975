"""Read the user's data: CSV, TSV, JSONL and Hugging Face datasets."""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from io import BytesIO
from pathlib import Path
from random import Random
from typing import Any, BinaryIO, NamedTuple

from holdfast.data.tasks import Split, Stream, Task, whole
from holdfast.errors import HoldfastError, did_you_mean, require
from holdfast.storage.files import digest_of

HUB = "hf:"
DELIMITERS = {".csv": ",", ".tsv": "\t"}
SUFFIXES = (*DELIMITERS, ".jsonl")
SPLITS = {"train": "train", "valid": "valid", "validation": "valid", "dev": "valid", "test": "test"}
# Generous for a sentence, but catches an unclosed quote before it swallows a large file.
FIELD_LIMIT = 16 * 2**20


class Row(NamedTuple):
    """A sentence, its label and, if the data has one, its split."""

    text: str
    label: str
    split: str | None = None


Rows = list[Row]
Placed = tuple[str, Mapping[str, Any]]
"""A row of a file: its place, for error messages, and its columns."""


def read_pairs(path: str | Path, *, text_column: str = "text", label_column: str = "label") -> Rows:
    """Return all rows of a CSV, TSV or JSONL file, of a saved Hugging Face dataset, or of `hf:owner/name`.

    A `split` column is optional; its values are train, valid (validation, dev) and test. A dataset's own
    splits, if it has several, replace the column.
    """
    columns = (text_column, label_column)
    return _pairs(path, _placed_rows(path, columns), columns)


def pairs_of(name: str, data: bytes, *, text_column: str = "text", label_column: str = "label") -> Rows:
    """Return all rows of a CSV, TSV or JSONL file that is in memory; nothing is written to disk.

    >>> pairs_of("week.csv", b"text,label\\nplay jazz,music\\n")
    [Row(text='play jazz', label='music', split=None)]
    """
    columns = (text_column, label_column)
    return _pairs(name, _file_rows(Path(name), columns, data), columns)


def _pairs(path: str | Path, placed: Iterator[Placed], columns: tuple[str, str]) -> Rows:
    text_column, label_column = columns
    rows = [
        Row(_cell(row, text_column, place), _cell(row, label_column, place), _split(row, place))
        for place, row in placed
    ]
    if not rows:
        raise HoldfastError(f"{path}: no rows; add one row per sentence, with {' and '.join(columns)}")
    if len({row.split is None for row in rows}) > 1:
        raise HoldfastError(f"{path}: only some rows have a split; give every row one, or none")
    return rows


def read_texts(path: str | Path, *, text_column: str = "text") -> list[str]:
    """Return the sentences of any source that `read_pairs` accepts, or of a .txt file, one per line."""
    if Path(path).suffix.lower() == ".txt":
        texts = [line.strip() for line in _lines(Path(path))]
        texts = [text for text in texts if text]
    else:
        texts = [_cell(row, text_column, place) for place, row in _placed_rows(path, (text_column,))]
    if not texts:
        raise HoldfastError(f"{path}: no sentences; give a file with some")
    return texts


def stream_from_files(
    path: str | Path, *, text_column: str = "text", label_column: str = "label", seed: int = 0
) -> Stream:
    """Return a stream from a folder, with one task per file in order of name, or from one file or dataset.

    A `split` column decides the split; without it each label is split about 70/10/20 at random. Several tasks
    that all have the same labels are domain-incremental, others class-incremental.
    """
    sources = [path] if _is_hugging_face(path) or not Path(path).is_dir() else _files(Path(path))
    tasks = tuple(
        _task(source, read_pairs(source, text_column=text_column, label_column=label_column), seed)
        for source in sources
    )
    shared = len(tasks) > 1 and len({task.labels for task in tasks}) == 1
    return Stream(stem(path), tasks, "domain-incremental" if shared else "class-incremental")


def digest(path: str | Path) -> str:
    """Return a hash of the files of a stream."""
    if _is_hugging_face(path):
        files = [Path(file["filename"]) for _, part in hub_parts(str(path)) for file in part.cache_files]
    else:
        files = _files(Path(path)) if Path(path).is_dir() else [Path(path)]
    return digest_of(files)


def _placed_rows(path: str | Path, columns: Collection[str]) -> Iterator[Placed]:
    if _is_hugging_face(path):
        return _hub_rows(str(path), columns)
    file = Path(path)
    if file.is_dir():
        raise HoldfastError(f"{file}: is a folder; give one of its files")
    if not file.is_file():
        raise HoldfastError(f"{file}: no such file; check the path")
    return _file_rows(file, columns)


def _file_rows(file: Path, columns: Collection[str], data: bytes | None = None) -> Iterator[Placed]:
    if file.suffix.lower() not in SUFFIXES:
        raise HoldfastError(
            f"{file}: cannot read {file.suffix or 'suffixless'} files; use {', '.join(SUFFIXES)}"
        )
    rows = jsonl_rows if file.suffix.lower() == ".jsonl" else table_rows
    return rows(file, columns, data)


def table_rows(path: Path, columns: Collection[str], data: bytes | None = None) -> Iterator[Placed]:
    """Yield the rows of a CSV or TSV file with their line numbers, after checking for these columns.

    `data` is the file's content, if it is in memory.
    """
    csv.field_size_limit(FIELD_LIMIT)
    reader = csv.reader(_lines(path, data), delimiter=DELIMITERS[path.suffix.lower()], strict=True)
    header: list[str] = []
    while True:
        place = f"{path}, line {reader.line_num + 1}"
        try:
            fields = next(reader)
        except StopIteration:
            break
        except csv.Error as error:
            raise HoldfastError(f"{place}: broken row ({error}); check its quotes") from error
        if not fields:
            continue
        if not header:
            header = fields
            _require(columns, header, place)
            if twice := [name for name in (*columns, "split") if header.count(name) > 1]:
                raise HoldfastError(f"{place}: two columns are called {twice[0]!r}; rename one")
        elif len(fields) != len(header):
            raise HoldfastError(
                f"{place}: {len(fields)} fields where the header has {len(header)};"
                " quote fields that contain the delimiter"
            )
        else:
            yield place, dict(zip(header, fields, strict=True))
    if not header:
        raise HoldfastError(f"{path}: the file is empty; it needs a header line and one row per sentence")


def jsonl_rows(path: Path, columns: Collection[str] = (), data: bytes | None = None) -> Iterator[Placed]:
    """Yield the objects of a JSONL file with their line numbers, after checking each for these columns.

    `data` is the file's content, if it is in memory.
    """
    for number, line in enumerate(_lines(path, data), start=1):
        if not line.strip():
            continue
        place = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = str(error).partition(":")[0]  # the rest is a position within this line
            raise HoldfastError(f"{place}: broken JSON ({reason}); put one object on each line") from error
        if not isinstance(row, dict):
            raise HoldfastError(f"{place}: not a JSON object; put one object on each line")
        _require(columns, row, place)
        yield place, row


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise HoldfastError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def _lines(path: Path, data: bytes | None = None) -> Iterator[str]:
    offset = 0
    with _open(path) if data is None else BytesIO(data) as file:
        for number, raw in enumerate(file, start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                at = offset + error.start
                raise HoldfastError(
                    f"{path}, line {number}: not UTF-8 at byte {at}; save the file as UTF-8"
                ) from error
            if "\0" in line:
                raise HoldfastError(f"{path}, line {number}: contains a NUL byte; save the file as UTF-8")
            offset += len(raw)
            yield line.removeprefix("\ufeff") if number == 1 else line


def _require(columns: Collection[str], present: Collection[str], place: str) -> None:
    for column in columns:
        if column not in present:
            raise HoldfastError(
                f"{place}: no column {column!r}{did_you_mean(column, present)}; the columns are"
                f" {', '.join(present)}: choose with --text-column and --label-column"
            )


def _cell(row: Mapping[str, Any], column: str, place: str) -> str:
    value = row[column]
    if isinstance(value, list | dict):
        raise HoldfastError(f"{place}: column {column!r} contains a list or an object; use text")
    value = "" if value is None else str(value)
    # pandas, JSON and spreadsheets write a missing value in these ways.
    if value.strip().casefold() in ("", "nan"):
        raise HoldfastError(f"{place}: column {column!r} is empty or NaN; fill it in or delete the row")
    if not whole(value):
        raise HoldfastError(f"{place}: column {column!r} has an unpaired surrogate; save it as UTF-8")
    return value


def _split(row: Mapping[str, Any], place: str) -> str | None:
    if "split" not in row:
        return None
    value = _cell(row, "split", place)
    if value not in SPLITS:
        raise HoldfastError(f"{place}: unknown split {value!r}; use {', '.join(SPLITS)}")
    return SPLITS[value]


def _is_hugging_face(path: str | Path) -> bool:
    marks = ("dataset_dict.json", "dataset_info.json", "state.json")
    return str(path).startswith(HUB) or any((Path(path) / mark).is_file() for mark in marks)


def _hub_rows(path: str, columns: Collection[str]) -> Iterator[Placed]:
    parts = hub_parts(path)
    for split, part in parts:
        place = f"{path}, split {split!r}" if split else path
        _require(columns, part.column_names, place)
        names = {column: getattr(part.features[column], "names", None) for column in columns}
        for number, found in enumerate(part, start=1):
            row = {column: _class_name(found[column], names[column]) for column in columns}
            if len(parts) > 1:
                row["split"] = split
            elif "split" in found:
                row["split"] = found["split"]
            yield f"{place}, row {number}", row


def _class_name(value: Any, names: list[str] | None) -> Any:
    if names is None or value is None:
        return value
    return names[value] if value >= 0 else None  # the hub marks a missing label with -1


def hub_parts(path: str) -> list[tuple[str, Any]]:
    """Return the splits of a saved Hugging Face dataset or of `hf:owner/name`, with their names."""
    datasets = require("datasets", "datasets")
    hub_id = path.removeprefix(HUB)
    try:
        loaded = datasets.load_from_disk(path) if hub_id == path else datasets.load_dataset(hub_id)
    except Exception as error:  # the exceptions of the hub client vary with its version
        reason = " ".join(str(error).split())
        raise HoldfastError(f"{path}: cannot be loaded ({reason}); check the name and the network") from error
    return list(loaded.items()) if isinstance(loaded, dict) else [("", loaded)]


def _files(folder: Path) -> list[Path]:
    files = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
    if not files:
        raise HoldfastError(f"{folder}: no {', '.join(SUFFIXES)} files; put one file per task there")
    return files


def stem(path: str | Path) -> str:
    """Return the name of a data source without its folder, owner or suffix."""
    return str(path).rpartition("/")[2] if str(path).startswith(HUB) else Path(path).resolve().stem


def _task(path: str | Path, rows: Rows, seed: int) -> Task:
    if rows[0].split is None:
        parts = _stratified(path, rows, seed)
    else:
        parts = {split: [row for row in rows if row.split == split] for split in ("train", "valid", "test")}
    for split, part in parts.items():
        if not part:
            raise HoldfastError(
                f"{path}: no {split!r} rows in the split column; mark some rows {split!r}, or drop the column"
            )
        if unseen := {row.label for row in part} - {row.label for row in parts["train"]}:
            raise HoldfastError(
                f"{path}: label {min(unseen)!r} is in the {split!r} rows but not in 'train';"
                " add it to 'train'"
            )
    return Task(stem(path), **{split: Split.of([row[:2] for row in part]) for split, part in parts.items()})


def _stratified(path: str | Path, rows: Rows, seed: int) -> dict[str, Rows]:
    by_label: defaultdict[str, Rows] = defaultdict(list)
    for row in rows:
        by_label[row.label].append(row)
    parts: dict[str, Rows] = {"train": [], "valid": [], "test": []}
    for label, members in by_label.items():
        if len(members) < 3:
            raise HoldfastError(
                f"{path}: label {label!r} has {len(members)} of the 3 examples a split needs;"
                " add examples or delete the label"
            )
        # The seed includes the label, so that adding a label does not change the split of the others.
        Random(f"{seed}/{label}").shuffle(members)
        valid = max(1, round(0.1 * len(members)))
        test = valid + max(1, round(0.2 * len(members)))
        parts["valid"] += members[:valid]
        parts["test"] += members[valid:test]
        parts["train"] += members[test:]
    return parts

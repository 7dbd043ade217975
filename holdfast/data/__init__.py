"""Data: streams by name, or from a file, a folder or a Hugging Face dataset of sentences."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from holdfast.data.clinc import clinc150
from holdfast.data.paper import ANNOMI_CSV, ANNOMI_ORDERS, HWU64_ORDERS, annomi, annomi_from_csv, hwu64
from holdfast.data.readers import HUB, digest, read_pairs, stream_from_files
from holdfast.data.tasks import Scenario, Split, Stream, Task, recut
from holdfast.errors import HoldfastError, did_you_mean, require
from holdfast.storage.cache import data_home

__all__ = [
    "STREAMS",
    "ClassSummary",
    "Split",
    "Stream",
    "StreamSource",
    "Task",
    "check_stream_name",
    "describe",
    "digest",
    "load_stream",
    "read_pairs",
    "stream_from_files",
]

Loader = Callable[[str | Path | None], Stream]


@dataclass(frozen=True)
class StreamSource:
    """A named stream: its description, its loader (from a data directory) and its numbered orders."""

    name: str
    scenario: Scenario
    summary: str
    load: Loader
    orders: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Orders of the tasks that are defined; without any, orders from 2 are fixed shuffles."""
    shuffled: Literal["tasks", "labels"] = "tasks"
    """What these shuffle: the order of the tasks, or which labels are in which task."""


@dataclass(frozen=True)
class ClassSummary:
    """One row of a data table: a label of a task, its count in each split, and example sentences."""

    task: str
    label: str
    train: int
    valid: int
    test: int
    examples: tuple[str, ...]


def load_stream(
    name: str,
    *,
    order: str | None = None,
    data_dir: str | Path | None = None,
    text_column: str = "text",
    label_column: str = "label",
) -> Stream:
    """Load a stream by its registry name, by the path of a file or folder, or by `hf:owner/name`.

    `order` is the number of a task order, or task names separated by commas; None is order 1. The paper
    defines the orders of its own streams. For other streams order 1 is the stream's own order, and higher
    numbers are fixed shuffles of the tasks; those of `clinc150` shuffle the labels over the tasks.
    `data_dir` defaults to HOLDFAST_DATA, else to the download cache.

    >>> stream = load_stream("tasks")  # a folder with one CSV file per task
    >>> [(task.name, len(task.train)) for task in stream]
    [('week1', 15), ('week2', 10)]
    """
    check_stream_name(name)
    source = STREAMS.get(name)
    orders = source.orders if source else {}
    if source:
        stream = source.load(data_dir)
    else:
        stream = stream_from_files(name, text_column=text_column, label_column=label_column)
    numbered = {str(number): names for number, names in orders.items()}
    numbered.setdefault("1", tuple(task.name for task in stream))
    chosen = order or "1"
    if chosen.isdecimal() and int(chosen) > 1 and not orders:
        if source and source.shuffled == "labels":
            return recut(stream, int(chosen))
        numbered[chosen] = _shuffled(numbered["1"], int(chosen))
    return stream.ordered(numbered.get(chosen) or [part.strip() for part in chosen.split(",")])


ORDERS = 1000  # maximum number of numbered orders: finding order n means drawing all before it


def _shuffled(names: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Return the order with this number, different from all orders with smaller numbers."""
    most = min(math.factorial(len(names)), ORDERS)
    if number > most:
        raise HoldfastError(f"order {number}: {len(names)} tasks have orders 1 to {most}; choose one")
    found, before = names, {names}
    for one in range(2, number + 1):
        draw = random.Random(one)
        while found in before:
            found = tuple(draw.sample(sorted(names), len(names)))
        before.add(found)
    return found


def check_stream_name(name: str) -> None:
    """Raise an error unless a name is a registered stream, a path or a hub name."""
    if not (name in STREAMS or name.startswith(HUB) or Path(name).exists()):
        raise HoldfastError(
            f"unknown stream {name!r}{did_you_mean(name, STREAMS)}; the streams are {', '.join(STREAMS)},"
            " or give the path of a file or folder, or hf:owner/name"
        )


def describe(stream: Stream, examples: int = 2) -> list[ClassSummary]:
    """Return a table of the stream: per task and label, the counts and the first training sentences."""
    table = []
    for task in stream:
        train, valid, test = task.train.counts(), task.valid.counts(), task.test.counts()
        for label in task.labels:
            texts = dict.fromkeys(
                text for text, own in zip(task.train.texts, task.train.labels, strict=True) if own == label
            )
            shown = tuple(texts)[:examples]
            table.append(ClassSummary(task.name, label, train[label], valid[label], test[label], shown))
    return table


def _home(_: str | Path | None) -> Stream:
    _require_templates()
    from holdfast.data.home import home

    return home()


def _home_domains(_: str | Path | None) -> Stream:
    _require_templates()
    from holdfast.data.home import home_domains

    return home_domains()


def _require_templates() -> None:
    for package in ("hassil", "home_assistant_intents"):
        require(package, "bench")


def _in_data_dir(name: str, read: Callable[[Path], Stream]) -> Loader:
    def load(data_dir: str | Path | None) -> Stream:
        place = data_home(data_dir)
        if data_dir is None and not place.is_dir():
            raise HoldfastError(
                f"stream {name!r} needs a data directory: pass --data-dir, set HOLDFAST_DATA,"
                f" or run `holdfast data get {name}`"
            )
        return read(place)

    return load


STREAMS = {
    source.name: source
    for source in (
        StreamSource("home", "class-incremental", "Home Assistant's intents, four tasks of five", _home),
        StreamSource(
            "home-domains",
            "domain-incremental",
            "turn on, turn off or query lights, fans and covers",
            _home_domains,
        ),
        StreamSource(
            "hwu64",
            "class-incremental",
            "HWU64 intents, five tasks of five, as in the paper",
            _in_data_dir("hwu64", hwu64),
            HWU64_ORDERS,
        ),
        StreamSource(
            "annomi",
            "domain-incremental",
            "AnnoMI client talk (change, sustain, neutral) over six domains, as in the paper",
            _in_data_dir("annomi", annomi),
            ANNOMI_ORDERS,
        ),
        StreamSource(
            "annomi-raw",
            "domain-incremental",
            "the same six domains from the public AnnoMI CSV",
            _in_data_dir("annomi-raw", lambda data_dir: annomi_from_csv(data_dir / ANNOMI_CSV)),
            ANNOMI_ORDERS,
        ),
        StreamSource(
            "clinc150",
            "class-incremental",
            "CLINC150 intents, 15 tasks of ten; each order is another cut into tasks",
            _in_data_dir("clinc150", clinc150),
            shuffled="labels",
        ),
    )
}

"""The paper's two streams, intents (HWU64) and client behaviour (AnnoMI), with three task orders each."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from holdfast.data.readers import table_rows
from holdfast.data.tasks import Scenario, Split, Stream, Task
from holdfast.errors import HoldfastError, require

HWU64_ORDERS = {
    number: tuple(f"Split{i}" for i in splits)
    for number, splits in {1: (0, 1, 2, 3, 4), 2: (5, 4, 2, 3, 1), 3: (11, 6, 10, 8, 7)}.items()
}
ANNOMI_ORDERS = {
    1: ("Alcohol", "Smoking", "Drug", "Exercise", "Medicine", "Anxiety"),
    2: ("Anxiety", "Medicine", "Alcohol", "Exercise", "Smoking", "Drug"),
    3: ("Drug", "Exercise", "Medicine", "Smoking", "Anxiety", "Alcohol"),
}
# A topic with several domains ("smoking cessation; reducing alcohol consumption") goes to the first match.
ANNOMI_KEYWORDS = {
    "Alcohol": ("reducing alcohol",),
    "Smoking": ("smoking cessation",),
    "Drug": ("reducing drug use",),
    "Exercise": ("exercise", "weight loss"),
    "Medicine": ("medicine", "diabetes", "asthma"),
    "Anxiety": ("anxiety management", "being assertive", "increasing self-confidence", "managing life"),
}
ANNOMI_CSV = Path("annomi_raw", "AnnoMI-simple.csv")


def hwu64(data_dir: Path) -> Stream:
    """Load the intents of a home assistant: the authors' twelve splits of five, or those present."""
    folder = _folder(data_dir, "hwu64", "hwu64_json")
    names = [name for name in (f"Split{i}" for i in range(12)) if (folder / name).is_dir()]
    return _from_json(folder, names, "intent", "hwu64", "class-incremental")


def annomi(data_dir: Path) -> Stream:
    """Load client talk from motivational interviews (change, sustain, neutral) in six domains."""
    folder = _folder(data_dir, "annomi", "annomi_strat_json")
    return _from_json(folder, ANNOMI_ORDERS[1], "polarity", "annomi", "domain-incremental")


def annomi_from_csv(path: Path, seed: int = 0) -> Stream:
    """Load the six domains from the public CSV and split them; seed 0 gives exactly the authors' split."""
    columns = ("topic", "interlocutor", "utterance_text", "client_talk_type")
    if not path.is_file():
        raise _missing(path, "annomi-raw")
    domains: defaultdict[str, list[tuple[str, str]]] = defaultdict(list)
    for _, row in table_rows(path, columns):
        domain = _domain(row["topic"])
        if domain and row["interlocutor"] == "client":
            domains[domain].append((row["utterance_text"], row["client_talk_type"]))
    try:
        tasks = tuple(_stratified(name, domains[name], seed) for name in ANNOMI_KEYWORDS)
    except ValueError as error:
        raise HoldfastError(
            f"{path}: a domain has too few client utterances to split;"
            " delete the file and run `holdfast data get annomi-raw`"
        ) from error
    return Stream("annomi-raw", tasks, "domain-incremental")


def _domain(topic: str) -> str | None:
    topic = topic.casefold()
    return next(
        (name for name, keywords in ANNOMI_KEYWORDS.items() if any(keyword in topic for keyword in keywords)),
        None,
    )


def _stratified(name: str, pairs: Sequence[tuple[str, str]], seed: int) -> Task:
    train_test_split = require("sklearn.model_selection", "bench").train_test_split

    def parted(pairs: Sequence[tuple[str, str]], share: float) -> list[list[tuple[str, str]]]:
        labels = [label for _, label in pairs]
        parts: list[list[tuple[str, str]]] = train_test_split(
            pairs, test_size=share, stratify=labels, random_state=seed
        )
        return parts

    rest, test = parted(pairs, 0.2)
    train, valid = parted(rest, 0.1)
    return Task(name, Split.of(train), Split.of(valid), Split.of(test))


def _from_json(folder: Path, names: Sequence[str], label: str, stream: str, scenario: Scenario) -> Stream:
    def split(name: str, part: str) -> Split:
        path = folder / name / f"{part}.json"
        try:
            rows = json.loads(path.read_bytes()).values()
            return Split.of([(row["sentence"], row[label]) for row in rows])
        except OSError as error:
            raise _missing(path, stream) from error
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise HoldfastError(
                f"{path}: not a JSON object of rows with sentence and {label};"
                f" delete it and run `holdfast data get {stream}`"
            ) from error

    if not names:
        raise _missing(folder / "Split0", stream)
    tasks = tuple(Task(name, *(split(name, part) for part in ("train", "dev", "test"))) for name in names)
    return Stream(stream, tasks, scenario)


def _folder(data_dir: Path, ours: str, authors: str) -> Path:
    for name in (ours, authors):
        if (data_dir / name).is_dir():
            return data_dir / name
    raise HoldfastError(
        f"{data_dir}: no folder {ours} or {authors}; run `holdfast data get {ours}`"
        " or pass another --data-dir"
    )


def _missing(path: Path, stream: str) -> HoldfastError:
    return HoldfastError(f"{path}: not found; run `holdfast data get {stream}` or pass another --data-dir")

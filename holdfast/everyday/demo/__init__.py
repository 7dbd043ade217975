"""The first minute: two weeks of intents, a correction, and the same by plain fine-tuning."""

from __future__ import annotations

import csv
import shutil
from dataclasses import dataclass
from pathlib import Path

from holdfast.data.readers import read_pairs
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.everyday import teach
from holdfast.learning.learner import Learner

WEEKS = (1, 2)
HERE = Path(__file__).parent


@dataclass
class Tally:
    """How many questions of a week, which are never taught, a learner answered correctly."""

    week: int
    right: int
    number: int


@dataclass
class Week:
    """A learner after a week of the demo."""

    learner: Learner
    asked: list[Tally]
    """Its answers to the questions of this week and of those before."""
    wrong: list[tuple[str, str, str]]
    """The questions of this week that it answered wrongly: text, label, answer."""


def unpack(folder: Path) -> None:
    """Write the sentences of the demo into a new or empty folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise HoldfastError(f"{folder} already exists and is not empty; choose a new folder")
    folder.mkdir(parents=True, exist_ok=True)
    for source in sorted(HERE.glob("*.csv")):
        shutil.copyfile(source, folder / source.name)


def teach_week(
    folder: Path,
    week: int,
    *,
    method: str = "auto",
    model: str = "minilm",
    progress: Progress | None = None,
) -> Week:
    """Teach a week to the learner of a method, in a folder that `unpack` has filled; ask it the questions."""
    source = str(folder / f"week{week}.csv")
    learnt = teach.learn(_state(folder, method), source, method=method, model=model, progress=progress)
    return _asked(folder, learnt.learner, week)


def correct(folder: Path, text: str, label: str, *, progress: Progress | None = None) -> Week:
    """Teach a sentence with its right label after the last week; ask the questions of all weeks again."""
    source = folder / "correction.csv"
    with source.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), (text, label)])
    learnt = teach.learn(_state(folder, "auto"), str(source), progress=progress)
    return _asked(folder, learnt.learner, WEEKS[-1])


def _state(folder: Path, method: str) -> Path:
    return folder / ("intents" if method == "auto" else method)


def _asked(folder: Path, learner: Learner, week: int) -> Week:
    found = []
    for number in WEEKS[:week]:
        rows = read_pairs(str(folder / f"questions{number}.csv"))
        answers = learner.predict([row.text for row in rows])
        wrong = [
            (r.text, r.label, answer) for r, answer in zip(rows, answers, strict=True) if answer != r.label
        ]
        found.append(Tally(number, len(rows) - len(wrong), len(rows)))
    return Week(learner, found, wrong)

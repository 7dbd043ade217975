"""The process of one job: read the order from stdin, work, keep the report up to date."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from typing_extensions import override

from holdfast.data.readers import Row
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.serve.jobs import before
from holdfast.storage.files import Busy, write_json
from holdfast.storage.generations import Store

EVERY = 0.2  # minimum seconds between two writes of a report
SHOWN = 1000  # changed sentences that a comparison lists
CONFUSIONS = 20  # that it lists
QUOTED = re.compile(r", such as .*")  # a note may quote a text; a report does not


FOLDERS = re.compile(r"(?<![\w/.~-])/(?:[^\s/'\":;,()]+/)*(?=[^\s/])")  # of an absolute path


class Stopped(BaseException):
    """The service asked the job to end."""


class Stopping:
    """Whether a job was asked to end: by a signal, or by a file for a process that is still starting.

    The signal ends the job at once while it works, and at most once. At other times it is only noted.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.signalled = False
        self.working = False

    def signal(self, number: int, frame: FrameType | None) -> None:
        """Handle the signal."""
        self.signalled = True
        if self.working:
            self.working = False
            raise Stopped

    def check(self) -> None:
        """Raise `Stopped` if the job was asked to end."""
        if self.signalled or self.file.exists():
            raise Stopped


class Reporting(Progress):
    """Writes what a job does into its report."""

    def __init__(self, path: Path, report: dict[str, Any]) -> None:
        self.path = path
        self.report = report
        self._written = 0.0

    def tell(self, *, now: bool = False, **news: Any) -> None:
        """Add to the report; write it unless it was written a moment ago."""
        self.report |= news
        if now or time.monotonic() - self._written > EVERY:
            self._written = time.monotonic()
            write_json(self.path, self.report)

    @override
    def trial(self, number: int, what: str) -> None:
        self.tell(doing=f"training {number}: {what}", done=0, total=0)

    @override
    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        self.tell(done=epoch, total=epochs)

    @override
    def looked(self, done: int, total: int) -> None:
        self.tell(doing="reading sentences", done=done, total=total)

    @override
    def note(self, text: str) -> None:
        text = QUOTED.sub("", text.removeprefix("note: "))
        self.tell(now=True, notes=[*self.report.get("notes", []), text])


def _learn(path: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from holdfast.everyday import teach

    learnt = teach.learn(
        path,
        arguments["name"],
        given=[Row(*row) for row in arguments["rows"]],
        model=arguments["model"],
        again=arguments["again"],
        progress=progress,
    )
    entry = learnt.learner.history[-1] if learnt.lesson else {}
    return {
        "generation": learnt.generation,
        "already": learnt.lesson is None,
        "sentences": entry.get("sentences", 0),
        "new": learnt.new,
        "more": learnt.more,
        "score": entry.get("score"),
        "labels": len(learnt.learner.classes_),
    }


def _forget(path: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from holdfast.everyday import correct

    done = correct.forget_label(
        path, arguments["label"], purge=arguments["purge"], model=arguments["model"], progress=progress
    )
    return asdict(done)


def _correct(path: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from holdfast.everyday import correct

    rows = [(text, label) for text, label, *_ in arguments["rows"]]
    options: dict[str, Any] = {
        "again": arguments["again"],
        "model": arguments["model"],
        "progress": progress,
    }
    if arguments["to"] is None:
        return correct.remove_rows(path, rows, **options).answer()
    return correct.relabel_rows(path, rows, arguments["to"], **options).answer()


def _rename(path: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from holdfast.everyday import correct

    old, new, model = arguments["old"], arguments["new"], arguments["model"]
    return correct.rename_label(path, old, new, model=model, progress=progress).answer()


def _merge(path: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    from holdfast.everyday import correct

    labels, into, model = arguments["labels"], arguments["into"], arguments["model"]
    return correct.merge_labels(path, labels, into, model=model, progress=progress).answer()


def _compare(path: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Compare two generations. Changed sentences are told by their place in the rows, not by their text."""
    from holdfast.data.tasks import Split
    from holdfast.everyday.evaluate import compared
    from holdfast.learning.learner import Learner

    rows = [(text, label) for text, label, split in arguments["rows"] if split in (None, "test")]
    if not rows:
        raise HoldfastError("no 'test' rows in the split column; mark some, or drop the column")
    numbers = arguments["first"], arguments["second"]
    first, second = (Learner.load(path, number, model=arguments["model"]) for number in numbers)
    found = compared(first, second, Split.of(rows))
    both = zip(rows, found.first.predicted, found.second.predicted, strict=True)
    changed = [(place, row[1], old, new) for place, (row, old, new) in enumerate(both) if old != new]
    return {"generations": numbers, **found.answer(CONFUSIONS), "changed": changed[:SHOWN]}


def _suggest(path: Path, arguments: dict[str, Any], progress: Progress) -> dict[str, Any]:
    """Suggest texts to label, told by their places in the request."""
    from holdfast.everyday.suggest import suggest
    from holdfast.learning.learner import Learner

    learner = Learner.load(path, model=arguments["model"])
    found = [asdict(one) for one in suggest(learner, arguments["texts"], arguments["n"])]
    every = [{name: value for name, value in one.items() if name != "text"} for one in found]
    return {"learner": learner.generation, "suggestions": every}


KINDS: dict[str, Callable[[Path, dict[str, Any], Progress], dict[str, Any]]] = {
    "learn": _learn,
    "compare": _compare,
    "correct": _correct,
    "rename": _rename,
    "suggest": _suggest,
    "merge": _merge,
    "forget": _forget,
}


def current(path: Path) -> int | None:
    """Return the current generation of a learner; None if there is none that can be read."""
    try:
        return Store(path).current
    except (HoldfastError, OSError):
        return None


def changed(path: Path, before: int | None) -> str:
    """Return what to say of the learner after a job that was not done."""
    now = current(path)
    if now == before:
        return ""
    if now is None:
        return "; the learner's current generation cannot be read"
    return f"; generation {now} was committed while the job ran: look at it before you send the job again"


def without_folders(text: str, *known: str | None) -> str:
    """Return a message with the names of files, but not where they are.

    >>> without_folders("/srv/my learners/mail/CURRENT is damaged; see /etc/motd", "/srv/my learners/mail")
    'mail/CURRENT is damaged; see motd'
    """
    for path in known:
        if path and Path(path).is_absolute():
            text = text.replace(path, Path(path).name)
    return FOLDERS.sub("", text)


def work(order: dict[str, Any], stopping: Stopping | None = None) -> None:
    """Do what an order says; every outcome ends in the report."""
    path, learner = Path(order["report"]), Path(order["path"])
    stopping = stopping or Stopping(path.with_suffix(".stop"))
    report = json.loads(path.read_text())
    progress = Reporting(path, report | {"pid": os.getpid()})
    began = time.monotonic()
    generation = current(learner)
    try:
        stopping.working = True
        progress.tell(now=True)  # whoever stops the job finds its pid, or it finds the file
        while before(path.with_suffix(".lock")):
            stopping.check()
            time.sleep(0.05)
        generation = current(learner)
        stopping.check()
        progress.tell(now=True, status="running", doing="starting")
        outcome = _attempt(order, progress)
        if outcome["status"] != "done":
            outcome["error"] += changed(learner, generation)
        stopping.working = False
    except Stopped:
        said = changed(learner, generation) or "; the learner is as it was before"
        outcome = {"status": "stopped", "error": f"the job was stopped{said}"}
    for name in ("doing", "done", "total"):
        progress.report.pop(name, None)
    outcome["seconds"] = round(time.monotonic() - began, 3)
    try:
        progress.tell(now=True, **outcome)
    except (HoldfastError, ValueError):  # the disk is full, or the result cannot be written
        outcome["result"] = {"generation": current(learner)}
        outcome.setdefault("error", "done, but the report could not be written whole")
        write_json(path, report | outcome)


def _attempt(order: dict[str, Any], progress: Reporting) -> dict[str, Any]:
    """Return the outcome of a job's work."""
    arguments = order["arguments"]
    try:
        while True:
            try:
                result = KINDS[order["kind"]](Path(order["path"]), arguments, progress)
                return {"status": "done", "result": result}
            except Busy:  # a person works on the same directory from the command line
                progress.tell(doing="waiting for another process that works on this learner")
                time.sleep(0.1)
    except HoldfastError as error:
        said = without_folders(str(error), order["path"], arguments["model"])
    except Exception as error:  # without its message, which may quote a text
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}" if trace else "?"
        said = f"internal error: {type(error).__name__} at {place}"
    return {"status": "failed", "error": said}


def start() -> None:
    """Read one order from stdin and do it."""
    stopping = Stopping(Path())
    signal.signal(signal.SIGTERM, stopping.signal)
    os.nice(5)  # answers come first
    order = json.loads(sys.stdin.buffer.read())
    stopping.file = Path(order["report"]).with_suffix(".stop")
    work(order, stopping)


if __name__ == "__main__":
    start()

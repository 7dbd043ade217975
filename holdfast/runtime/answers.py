"""Questions to a classifier, its answers, and how both are read and written."""

from __future__ import annotations

import csv
import io
import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, Literal, Protocol

from holdfast.data.tasks import FAILED, UNKNOWN, printable, whole

Format = Literal["text", "jsonl", "csv"]
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet may evaluate cells that begin with these
CHUNK = 4096  # texts of a file that are classified at a time


@dataclass(frozen=True)
class Asked:
    """What to answer for each text."""

    top: int = 1
    """How many labels."""
    reject: float | None = None
    """Share of known sentences to keep; texts farther out get no label."""
    least: float | None = None
    """Probability below which a text gets no label."""
    cover: float | None = None
    """Share of known sentences whose set of labels must contain the right one."""


PLAIN = Asked()


@dataclass
class Answer:
    """A learner's prediction for one text."""

    text: str
    label: str | None
    """None if the text was rejected or could not be read."""
    probability: float
    top: list[tuple[str, float]]
    error: str = ""
    """Why there is no answer; empty if there is one."""
    set: list[str] | None = None
    """The prediction set, if one was asked for."""


Answers = Callable[[Sequence[str], Asked], list[Answer]]


class Answerer(Protocol):
    """What answers without being a learner, such as an exported artefact."""

    def answers(self, texts: Sequence[str], asked: Asked = PLAIN) -> list[Answer]:
        """Return predictions."""


def line_by_line(answers: Answers) -> Answers:
    """Return answers for lines of a stream; a line that is not UTF-8 gets an error."""

    def to_lines(lines: Sequence[str], asked: Asked = PLAIN) -> list[Answer]:
        found = iter(answers([line for line in lines if whole(line)], asked))
        wrong = "the line is not UTF-8; convert it first"
        return [
            next(found) if whole(line) else Answer(printable(line), None, 0.0, [], wrong) for line in lines
        ]

    return to_lines


def written(found: Sequence[Answer], style: Format, *, header: bool = True) -> Iterator[str]:
    """Yield answers as lines: tab-separated for people, JSONL or CSV for programs."""
    if style == "csv" and header:
        yield "text,label,probability" + (",set" if found and found[0].set is not None else "")
    for answer in found:
        label = FAILED if answer.error else UNKNOWN if answer.label is None else answer.label
        if style == "jsonl":
            top = [{"label": name, "probability": round(value, 6)} for name, value in answer.top]
            record: dict[str, Any] = {
                "text": answer.text,
                "label": answer.label,
                "probability": round(answer.probability, 6),
            }
            record |= {"top": top} if len(top) > 1 else {}
            record |= {"set": answer.set} if answer.set is not None else {}
            if answer.error:
                record = {"text": answer.text, "error": answer.error}
            yield json.dumps(record, ensure_ascii=False)
        elif style == "csv":
            more = [json.dumps(answer.set, ensure_ascii=False)] if answer.set is not None else []
            yield csv_line([cell(answer.text), cell(label), f"{answer.probability:.6f}", *more])
        else:
            named = answer.top if answer.label is None and len(answer.top) > 1 else answer.top[1:]
            rest = "".join(f"\t{printable(name)} {value:.3f}" for name, value in named)
            rest += f"\t{{{', '.join(map(printable, answer.set))}}}" if answer.set is not None else ""
            rest += f"\t{answer.error}" if answer.error else ""
            text = " ".join(answer.text.split())
            yield f"{printable(label)}\t{answer.probability:.3f}\t{text}{rest}"


def cell(text: str) -> str:
    """Return a text as a cell that a spreadsheet does not evaluate."""
    return f"'{text}" if text.startswith(FORMULA) else text


def csv_line(values: Sequence[Any]) -> str:
    """Return a line of CSV; None is an empty cell."""
    line = io.StringIO()  # the writer's default line end makes it quote line breaks
    csv.writer(line).writerow(values)
    return line.getvalue().removesuffix("\r\n")


def chunks(texts: Sequence[str], size: int = CHUNK) -> Iterator[Sequence[str]]:
    """Split a list into pieces of at most `size` texts."""
    return (texts[start : start + size] for start in range(0, len(texts), size))


def incoming(stream: BinaryIO, most: int = 256) -> Iterator[list[str]]:
    """Yield lists of the lines that have arrived, without empty ones; no line waits for a later one.

    Bytes that are not UTF-8 become unpaired surrogates.
    """
    lines: queue.Queue[str | None] = queue.Queue(maxsize=4 * most)

    def read() -> None:
        try:
            for line in stream:
                lines.put(line.decode(errors="surrogateescape").rstrip("\r\n"))
        finally:
            lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    open_ = True
    while open_:
        batch: list[str | None] = [lines.get()]
        while len(batch) < most and not lines.empty():
            batch.append(lines.get())
        open_ = batch[-1] is not None
        if texts := [line for line in batch if line]:
            yield texts

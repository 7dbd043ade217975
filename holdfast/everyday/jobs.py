"""Jobs behind the everyday commands: learn a file, forget a label, classify texts, evaluate on a file."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import queue
import shutil
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

from holdfast.data.readers import Rows, read_pairs, stem, whole
from holdfast.data.tasks import FAILED, UNKNOWN, Split, Task, printable
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.fields import unknown
from holdfast.learning import directory as state
from holdfast.learning.learner import Learner
from holdfast.learning.lesson import Lesson
from holdfast.learning.sections import lesson_id, read
from holdfast.maths.metrics import label_scores, macro_f1
from holdfast.storage.generations import Store

Format = Literal["text", "jsonl", "csv"]
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet may evaluate cells that begin with these
CHUNK = 4096  # texts of a file that are classified at a time


# ---- learning -----------------------------------------------------------------------------------------


@dataclass
class Learnt:
    """Result of learning a file."""

    learner: Learner
    lesson: Lesson | None
    """None if the same rows had been learnt before."""
    generation: int
    new: list[str]
    more: list[str]


def learn(
    path: Path,
    source: str,
    *,
    method: str | None = None,
    model: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    generations: int | None = None,
    budget: int | None = None,
    again: bool = False,
    progress: Progress | None = None,
    hyper_parameters: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> Learnt:
    """Teach a file to the learner in a directory, created if absent, and commit a generation.

    Rows that the learner has learnt before, in any order, are not counted twice unless `again` is true.
    """
    rows = read_pairs(source, text_column=text_column, label_column=label_column)
    with state.working_in(path):
        learner = _opened(path, method, model, hyper_parameters or {}, settings or {})
        learner.progress = progress or Progress()
        learner.work_in(path / ".trials")
        if generations is not None:
            learner.made_of.keep = generations
        usual = getattr(learner.method, "sentences", None)
        if budget is not None:
            if usual is None:
                raise HoldfastError(
                    f"--budget works only with auto, not with {learner.made_of.method}; leave it out"
                )
            learner.method.set(sentences=budget)
        learner.check_room((row.label for row in rows), f"is {label_column!r} the label column?")
        known = set(learner.classes_)
        mark = lesson_id(learner.key, _mark(rows))
        if not again and (done := _committed(learner, mark, rows)):
            shutil.rmtree(path / ".trials", ignore_errors=True)
            learner.write_card(path, learner.card())
            return Learnt(learner, None, done, [], [])
        if not again and any(entry.get("id") == mark for entry in learner.history):
            rows = [row for row in rows if row.label not in learner.classes_]
            learner.progress.note("note: only the rows of labels that were forgotten since are learnt again")
        for oddity in oddities(rows, learner.classes_):
            learner.progress.note(f"note: {oddity}")
        if cut := learner.model.cut([row.text for row in rows if row.split != "test"]):
            most = learner.settings.max_length
            learner.progress.note(
                f"note: texts of which only the first {most} tokens are read: {cut}; --set max_length=N can "
                "change that in a new directory"
            )
        lesson = _taught(learner, source, rows)
        learner.history[-1] |= {"id": mark, "generation": Store(path).next}
        if budget is not None:
            learner.method.set(sentences=usual)  # the budget was for this file only
        generation = learner.commit(path)
        shutil.rmtree(path / ".trials", ignore_errors=True)
    labels = dict.fromkeys(row.label for row in rows if row.split in (None, "train"))
    new = [label for label in labels if label not in known]
    return Learnt(learner, lesson, generation, new, [label for label in labels if label in known])


def _mark(rows: Rows) -> str:
    """Return a hash of a file's rows, in any order."""
    return hashlib.sha256(repr(sorted(rows, key=repr)).encode()).hexdigest()[:16]


def _committed(learner: Learner, mark: str, rows: Rows) -> int:
    """Return the generation that has learnt these rows, or 0; a label forgotten since counts as new."""
    known = all(row.label in learner.classes_ for row in rows if row.split in (None, "train"))
    found = [entry.get("generation", 0) for entry in learner.history if entry.get("id") == mark]
    return (found[-1] or learner.generation) if found and known else 0


def _taught(learner: Learner, source: str, rows: Rows) -> Lesson:
    """Teach a file's rows as one lesson; without a split column, some are held out for validation."""
    name = printable(stem(source))
    if rows[0].split is None:
        return learner.learn([row.text for row in rows], [row.label for row in rows], name)
    ordered = sorted(rows)  # their order in the file has no effect
    parts = {part: Split.of([row[:2] for row in ordered if row.split == part]) for part in ("train", "valid")}
    if not len(parts["train"]):
        raise HoldfastError(f"{source}: no 'train' rows in the split column; mark some, or drop the column")
    taught = {*parts["train"].labels, *learner.classes_}
    if unseen := sorted(set(parts["valid"].labels) - taught):
        raise HoldfastError(f"{source}: label {unseen[0]!r} has 'valid' rows but no 'train' rows; add some")
    return learner.learn(Task(name, **parts, test=Split((), ())))


def _opened(
    path: Path,
    method: str | None,
    model: str | None,
    hyper_parameters: dict[str, Any],
    settings: dict[str, Any],
) -> Learner:
    """Return the learner of a directory, or a new one; refuse to change the options of its creation."""
    if Store(path).current is None:
        training = replace(state.EVERYDAY, **settings)
        return Learner.create(model or "minilm", method or "auto", settings=training, **hyper_parameters)
    only_for_new(path, [*hyper_parameters, *settings])
    learner = Learner.load(path, model=model)
    if method not in (None, made := learner.made_of.method):
        raise HoldfastError(
            f"{path} was created with --method {made}; leave --method out, or choose another directory"
        )
    return learner


def only_for_new(path: Path, names: Iterable[str]) -> None:
    """Refuse settings for a directory that already holds a learner."""
    if Store(path).current is not None and (given := sorted(names)):
        raise HoldfastError(
            f"{path} already holds a learner: --set {given[0]} works only for a new directory"
        )


def oddities(rows: Rows, known: Sequence[str]) -> list[str]:
    """Return notes about a file: repeated rows, texts with several labels, labels that look alike."""
    found = []
    pairs = Counter((row.text, row.label) for row in rows)
    if repeated := sum(count - 1 for count in pairs.values()):
        found.append(f"rows that repeat another row: {repeated}; they count as often as they occur")
    labels: defaultdict[str, set[str]] = defaultdict(set)
    for text, label in pairs:
        labels[text].add(label)
    if torn := {text: own for text, own in labels.items() if len(own) > 1}:
        text, own = next(iter(torn.items()))
        found.append(
            f"texts with more than one label: {len(torn)}, such as {_short(text)!r}: {', '.join(sorted(own))}"
        )
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for label in (*known, *(row.label for row in rows)):
        alike[" ".join(label.split()).casefold()].add(label)
    for own in alike.values():
        if len(own) > 1:
            spelt = " and ".join(repr(label) for label in sorted(own))
            found.append(
                f"labels {spelt} differ only in case or spaces and count as {len(own)}; is that intended?"
            )
    return found


@dataclass
class Forgotten:
    """Result of forgetting a label."""

    generation: int
    traces: str
    """What still carries traces of the label; empty if nothing does."""
    known: bool
    """Whether the current generation knew the label."""
    dropped: list[int]
    """Older generations that were deleted."""
    names: bool = False
    """Whether ids of lessons, or names that contain the label, were removed."""


def forget_label(
    path: Path,
    label: str,
    *,
    generations: int | None = None,
    purge: bool = False,
    model: str | None = None,
    progress: Progress | None = None,
) -> Forgotten:
    """Remove a label from a learner.

    `purge` also removes older generations, unfinished trials, the ids of all lessons, and names of lessons
    that contain the label. It can be repeated: a second call finishes one that was killed. If no generation
    knows the label any more, it removes ids and names only.
    """
    with state.working_in(path, new=False):
        store = Store(path)
        learner = Learner.load(path, model=model)
        learner.progress = progress or Progress()
        before, known = store.generations, label in learner.classes_
        if not known and not purge:
            raise HoldfastError(unknown(label, learner.classes_, "label"))
        ever = known or label in _ever_known(store)
        traces = learner.forget(label) if known else ""
        names = purge and learner.drop_names(label)
        shutil.rmtree(path / ".trials", ignore_errors=True)  # a killed lesson may have left traces of it
        if not ever and not names and generations is None:
            learner.write_card(path, learner.card())  # a purge may have been killed before it did
            return Forgotten(learner.generation, "", known=False, dropped=[])
        number = learner.commit(path, keep=1 if purge and ever else generations)
        dropped = [one for one in before if one not in store.generations]
        return Forgotten(number, traces, known, dropped, names)


def _ever_known(store: Store) -> set[str]:
    """Return the labels of all generations that can be read."""
    labels: set[str] = set()
    for number in store.generations:
        with suppress(HoldfastError):
            labels.update(read(store.load(number), store.root).state[1]["labels"])
    return labels


# ---- classifying --------------------------------------------------------------------------------------


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


def answers_to_lines(learner: Learner, lines: Sequence[str], asked: Asked = PLAIN) -> list[Answer]:
    """Return the predictions for lines of a stream; a line that is not UTF-8 gets an error."""
    texts = [line for line in lines if whole(line)]
    found = iter(answers(learner, texts, asked))
    wrong = "the line is not UTF-8; convert it first"
    return [next(found) if whole(line) else Answer(printable(line), None, 0.0, [], wrong) for line in lines]


def answers(learner: Learner, texts: Sequence[str], asked: Asked = PLAIN) -> list[Answer]:
    """Return predictions."""
    if not len(texts):
        return []
    for number, text in enumerate(texts, start=1):
        if not whole(text):
            raise HoldfastError(f"text {number} has an unpaired surrogate; save it as plain UTF-8 text")
    classes, features = learner.classes_, learner.model.embed(texts)
    far = [False] * len(texts) if asked.reject is None else learner.far_out(features, asked.reject)
    likely = learner.probabilities(features)
    sets = [None] * len(texts) if asked.cover is None else learner.sets(texts, likely, asked.cover)
    best, places = likely.topk(min(max(asked.top, 1), len(classes)), dim=1)
    found = []
    for text, away, own, values, order in zip(texts, far, sets, best.tolist(), places.tolist(), strict=True):
        ranked = [(classes[i], value) for i, value in zip(order, values, strict=True)]
        unsure = asked.least is not None and ranked[0][1] < asked.least
        label = None if away or unsure else ranked[0][0]
        found.append(Answer(text, label, ranked[0][1], ranked, set=own))
    return found


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
            line = io.StringIO()  # the writer's default line end makes it quote line breaks
            more = [json.dumps(answer.set, ensure_ascii=False)] if answer.set is not None else []
            csv.writer(line).writerow([_cell(answer.text), _cell(label), f"{answer.probability:.6f}", *more])
            yield line.getvalue().removesuffix("\r\n")
        else:
            rest = "".join(f"\t{printable(name)} {value:.3f}" for name, value in answer.top[1:])
            rest += f"\t{{{', '.join(map(printable, answer.set))}}}" if answer.set is not None else ""
            rest += f"\t{answer.error}" if answer.error else ""
            text = " ".join(answer.text.split())
            yield f"{printable(label)}\t{answer.probability:.3f}\t{text}{rest}"


def _cell(text: str) -> str:
    """Return a text as a cell that a spreadsheet does not evaluate."""
    return f"'{text}" if text.startswith(FORMULA) else text


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


# ---- evaluating ---------------------------------------------------------------------------------------


@dataclass
class Evaluation:
    """Scores of a learner on a file."""

    score: float
    rows: list[tuple[str, float, float, float, int]]
    """Label, precision, recall, F1 and number of sentences."""
    pairs: Counter[tuple[str, str]]
    """Number of sentences for each pair of gold and predicted label."""


def evaluated(learner: Learner, split: Split) -> Evaluation:
    """Return the macro-F1 over the gold labels, the scores of each, and the confusions."""
    predicted = [answer.label or "" for piece in chunks(split.texts) for answer in answers(learner, piece)]
    rows = [(label, *values) for label, values in label_scores(split.labels, predicted).items()]
    pairs = Counter(zip(split.labels, predicted, strict=True))
    return Evaluation(macro_f1(split.labels, predicted), rows, pairs)


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:57]}..."

"""Teach a file to the learner in a directory."""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from typing_extensions import override

from holdfast.data.readers import Rows, read_pairs, stem
from holdfast.data.tasks import Split, Task, check_labels, printable, task_of
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.everyday.lessons import Earlier, mark_of
from holdfast.learning import directory as state
from holdfast.learning.learner import Learner
from holdfast.learning.lesson import Lesson
from holdfast.learning.sections import label_counts, lesson_id, read
from holdfast.methods import METHODS, method_of_learner
from holdfast.methods.base import Method
from holdfast.storage.generations import Store

ANY_WIDTH = 8  # of a head that only says whether it can learn some rows


@dataclass
class Learnt:
    """Result of learning a file."""

    learner: Learner
    lesson: Lesson | None
    """None if the same rows had been learnt before."""
    generation: int
    new: list[str]
    more: list[str]
    notes: list[str] = field(default_factory=list)
    """What is odd about the file."""
    dropped: list[int] = field(default_factory=list)
    """Older generations that were deleted because a number of generations to keep was given."""


@dataclass
class Planned:
    """What learning a file would change."""

    labels: dict[str, int]
    """Rows that would be learnt of each label."""
    known: dict[str, int | None]
    """Sentences that the learner has of each of its labels; None where they are not counted."""
    notes: list[str]
    learnt_before: int = 0
    """The generation that has learnt these rows already; 0 if none has."""
    creates: bool = False
    """Whether the directory holds no learner yet."""

    @property
    def new(self) -> list[str]:
        """Labels that the learner does not know yet."""
        return [label for label in self.labels if label not in self.known]


def learn(
    path: str | Path,
    source: str,
    *,
    given: Rows | None = None,
    method: str | None = None,
    model: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    generations: int | None = None,
    budget: int | None = None,
    again: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
    hyper_parameters: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> Learnt:
    """Teach a file to the learner in a directory, created if absent, and commit a generation.

    Rows that the learner has learnt before, in any order, are not counted twice unless `again` is true. With
    `strict`, labels that look alike and texts with several labels are errors.
    `given` are rows that are in memory already; `source` is then only the name of the lesson.
    """
    path = Path(path)
    columns = {"text_column": text_column, "label_column": label_column}
    rows = read_pairs(source, **columns) if given is None else list(given)
    with state.working_in(path):
        learner = _opened(path, method, model, hyper_parameters or {}, settings or {})
        learner.progress = progress or Progress()
        learner.work_in(path / ".trials")
        if generations is not None:
            learner.made_of.keep = generations
        usual = getattr(learner.method, "sentences", None)
        if budget is not None:
            _check_budget(learner.method)
            learner.method.set(sentences=budget)
        learner.check_room((row.label for row in rows), f"is {label_column!r} the label column?")
        known = set(learner.classes_)
        mark = mark_of(rows)
        if before := None if again else Earlier.of(learner).learnt(rows):
            done, missing = before
            if not missing:
                shutil.rmtree(path / ".trials", ignore_errors=True)
                learner.write_card(path, learner.card())
                return Learnt(learner, None, done or learner.generation, [], [])
            rows = [row for row in rows if row.label in missing]
            learner.progress.note("note: only the rows of labels that were forgotten since are learnt again")
        odd = oddities(rows, learner.classes_)
        if strict:
            refuse(source, odd)
        for oddity in odd:
            learner.progress.note(f"note: {oddity}")
        if cut := learner.model.cut([row.text for row in rows if row.split != "test"]):
            most = learner.settings.max_length
            learner.progress.note(
                f"note: texts of which only the first {most} tokens are read: {cut}; --set max_length=N can "
                "change that in a new directory"
            )
        lesson = _taught(learner, source, rows)
        learner.history[-1] |= {"id": lesson_id(learner.key, mark), "generation": Store(path).next}
        if budget is not None:
            learner.method.set(sentences=usual)  # the budget was for this file only
        before_it = Store(path).generations
        generation = learner.commit(path)
        after_it = Store(path).generations
        shutil.rmtree(path / ".trials", ignore_errors=True)
    labels = dict.fromkeys(row.label for row in rows if row.split in (None, "train"))
    new = [label for label in labels if label not in known]
    more = [label for label in labels if label in known]
    dropped = [] if generations is None else [one for one in before_it if one not in after_it]
    return Learnt(learner, lesson, generation, new, more, list(map(str, odd)), dropped)


def planned(
    path: str | Path,
    source: str,
    *,
    method: str | None = None,
    text_column: str = "text",
    label_column: str = "label",
    budget: int | None = None,
    again: bool = False,
    strict: bool = False,
    hyper_parameters: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
) -> Planned:
    """Return what `learn` would change, or refuse what it would refuse, apart from what the encoder decides.

    Nothing is written, and no encoder is loaded.
    """
    path = Path(path)
    rows = read_pairs(source, text_column=text_column, label_column=label_column)
    known: dict[str, int | None] = {}
    before: tuple[int, set[str]] | None = None
    if Store(path).current is not None:
        only_for_new(path, [*(hyper_parameters or {}), *(settings or {})])
        saved = read(Store(path).load(), path)
        _check_method(path, method, saved.origin.method)
        known = label_counts(saved)
        before = None if again else Earlier.of_saved(saved).learnt(rows)
        used = METHODS[saved.origin.method]()
    else:
        state.check_new(path)
        used = method_of_learner(method or "auto", hyper_parameters or {})
    if budget is not None:
        _check_budget(used)
    if before is not None:
        generation, missing = before
        if not missing:
            return Planned({}, known, [], generation or Store(path).current or 0)
        rows = [row for row in rows if row.label in missing]
    odd = oddities(rows, list(known))
    if strict:
        refuse(source, odd)
    head = used.make_head(ANY_WIDTH, replace(state.EVERYDAY, **(settings or {})), 0)
    head.admit(_task(source, rows, known))
    taught = Counter(row.label for row in rows if row.split in (None, "train"))
    check_labels(label for label in taught if label not in known)
    creates = Store(path).current is None
    return Planned(dict(sorted(taught.items())), known, list(map(str, odd)), creates=creates)


def _task(source: str, rows: Rows, known: Iterable[str]) -> Task:
    """Return a file's rows as one lesson; without a split column, some are held out for validation."""
    name = printable(stem(source))
    if rows[0].split is None:
        return task_of([row.text for row in rows], [row.label for row in rows], name)
    _check_splits(source, rows, known)
    ordered = sorted(rows)  # their order in the file has no effect
    parts = {part: Split.of([row[:2] for row in ordered if row.split == part]) for part in ("train", "valid")}
    return Task(name, **parts, test=Split((), ()))


def _taught(learner: Learner, source: str, rows: Rows) -> Lesson:
    """Teach a file's rows as one lesson; a computed head also learns what is held out of them."""
    if rows[0].split is not None:
        return learner.learn(_task(source, rows, learner.classes_))
    return learner.learn([row.text for row in rows], [row.label for row in rows], printable(stem(source)))


def _check_splits(source: str, rows: Rows, known: Iterable[str]) -> None:
    """Raise an error unless a file with splits teaches something, and every label that it validates."""
    taught = {row.label for row in rows if row.split in (None, "train")}
    if not taught:
        raise HoldfastError(f"{source}: no 'train' rows in the split column; mark some, or drop the column")
    if unseen := sorted({row.label for row in rows if row.split == "valid"} - {*taught, *known}):
        raise HoldfastError(f"{source}: label {unseen[0]!r} has 'valid' rows but no 'train' rows; add some")


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
    _check_method(path, method, learner.made_of.method)
    return learner


def _check_method(path: Path, method: str | None, made: str) -> None:
    if method not in (None, made):
        raise HoldfastError(
            f"{path} was created with --method {made}; leave --method out, or choose another directory"
        )


def _check_budget(method: Method) -> None:
    if "sentences" not in method.hparams():
        made = next(name for name, one in METHODS.items() if one is type(method))
        raise HoldfastError(f"--budget works only with auto, not with {made}; leave it out")


def only_for_new(path: Path, names: Iterable[str]) -> None:
    """Refuse settings for a directory that already holds a learner."""
    if Store(path).current is not None and (given := sorted(names)):
        raise HoldfastError(
            f"{path} already holds a learner: --set {given[0]} works only for a new directory"
        )


class Oddity(NamedTuple):
    """Something odd about a file that may be a mistake."""

    kind: Literal["repeated", "contradiction", "look-alike"]
    text: str

    @override
    def __str__(self) -> str:
        return self.text


def oddities(rows: Rows, known: Sequence[str]) -> list[Oddity]:
    """Return what is odd about a file: repeated rows, texts with several labels, labels that look alike."""
    found = []
    pairs = Counter((row.text, row.label) for row in rows)
    if repeated := sum(count - 1 for count in pairs.values()):
        text = f"rows that repeat another row: {repeated}; they count as often as they occur"
        found.append(Oddity("repeated", text))
    labels: defaultdict[str, set[str]] = defaultdict(set)
    for text, label in pairs:
        labels[text].add(label)
    if torn := {text: own for text, own in labels.items() if len(own) > 1}:
        text, own = next(iter(torn.items()))
        such = f"{_short(text)!r}: {', '.join(sorted(own))}"
        found.append(Oddity("contradiction", f"texts with more than one label: {len(torn)}, such as {such}"))
    given = {row.label for row in rows}
    alike: defaultdict[str, set[str]] = defaultdict(set)
    for label in (*known, *given):
        alike[_bare(label)].add(label)
    found += [
        Oddity("look-alike", _told_alike(own)) for own in alike.values() if len(own) > 1 and own & given
    ]
    return found


def _folded(label: str) -> str:
    """Return a label without case, hyphens and underscores, in one Unicode form."""
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", label).casefold())
    return " ".join(re.sub(r"[_-]", " ", folded).split())


def _bare(label: str) -> str:
    """Return the same with whole numbers and truth values written in one way: 1, 1.0 and true are one."""
    folded = _folded(label)
    return {"true": "1", "false": "0"}.get(folded) or re.sub(r"^(\d+)\.0+$", r"\1", folded)


def _told_alike(labels: set[str]) -> str:
    """Return what to say of labels that look alike."""
    numbers = len({_folded(label) for label in labels}) > 1
    how = "case, spaces, hyphens, underscores or Unicode form"
    how = "how a number or a truth value is written" if numbers else how
    equal = len({unicodedata.normalize("NFC", label) for label in labels}) < len(labels)  # to the eye
    spelt = " and ".join((ascii if equal else repr)(label) for label in sorted(labels))
    return f"labels {spelt} differ only in {how} and count as {len(labels)}; is that intended?"


def refuse(source: str, odd: Sequence[Oddity]) -> None:
    """Raise an error for labels that look alike and for texts with several labels."""
    if wrong := [one.text for one in odd if one.kind != "repeated"]:
        more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
        raise HoldfastError(f"{source}: {wrong[0]}{more}; fix the file, or leave out --strict")


def _short(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= 60 else f"{flat[:57]}..."

"""Task and Stream: labelled sentences, and the order and scenario in which they are learnt."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Literal, cast, get_args
from unicodedata import category

from typing_extensions import override

from holdfast.errors import HoldfastError

Scenario = Literal["class-incremental", "domain-incremental", "joint"]
UNKNOWN, FAILED = "(unknown)", "(error)"  # answers that are not labels
PARTS = ("train", "valid", "test")
SEVERAL = (
    "teach one learner per label with yes and no, or wrap the classifier of scikit-learn: "
    "MultiOutputClassifier(HoldfastClassifier())"
)
CONTROL = {"Cc", "Cs", "Zl", "Zp"}  # control characters, surrogates, line and paragraph separators


@dataclass(frozen=True)
class Split:
    """Sentences and their gold labels.

    >>> Split(("wake me at six", "play jazz"), ("alarm", "music")).counts()
    Counter({'alarm': 1, 'music': 1})
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.texts) != len(self.labels):
            raise ValueError(f"{len(self.texts)} texts but {len(self.labels)} labels")

    def __len__(self) -> int:
        return len(self.texts)

    @override
    def __repr__(self) -> str:
        return f"Split({len(self)} texts, {len(self.counts())} labels)"

    def spelled(self) -> str:
        """Return all texts and labels as one string, by which data is recognised."""
        return f"Split(texts={self.texts!r}, labels={self.labels!r})"

    def counts(self) -> Counter[str]:
        """Return the number of sentences of each label."""
        return Counter(self.labels)

    def capped(self, per_class: int | None) -> Split:
        """Return the first `per_class` sentences of each label, in their order; None keeps all."""
        if per_class is None:
            return self
        taken: Counter[str] = Counter()
        kept = []
        for text, label in zip(self.texts, self.labels, strict=True):
            if taken[label] < per_class:
                taken[label] += 1
                kept.append((text, label))
        return Split.of(kept)

    @staticmethod
    def of(pairs: Sequence[tuple[str, str]]) -> Split:
        """Return a split made from (text, label) pairs."""
        return Split(tuple(text for text, _ in pairs), tuple(label for _, label in pairs))


@dataclass(frozen=True)
class Task:
    """One task to learn. A label is identified by its string, never by an integer offset.

    >>> rows = Split(("play jazz", "wake me at six"), ("music", "alarm"))
    >>> Task("week 1", train=rows, valid=rows, test=rows).labels
    ('alarm', 'music')
    """

    name: str
    train: Split
    valid: Split
    test: Split

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels this task teaches, sorted."""
        return tuple(sorted(set(self.train.labels)))

    @override
    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(getattr(self, part))} {part}" for part in PARTS)
        return f"Task({self.name!r}, {len(self.labels)} labels, {sizes})"

    def capped(self, *, train: int | None, valid: int | None) -> Task:
        """Return the task with at most these numbers of sentences per class; test is unchanged."""
        return replace(self, train=self.train.capped(train), valid=self.valid.capped(valid))


def check_labels(labels: Iterable[str]) -> None:
    """Raise an error if a label is blank, has a control character or line break, or is a reserved answer."""
    for label in labels:
        if not label.strip():
            raise HoldfastError("the name of a label is empty; give one")
        if label in (UNKNOWN, FAILED):
            raise HoldfastError(
                f"{label!r} cannot be a label: it stands for an answer without one; rename it"
            )
        if printable(label) != label:
            raise HoldfastError(f"label {label!r} contains a line break or control character; remove it")


def printable(text: str) -> str:
    """Return a text with its line breaks, control characters and surrogates escaped."""
    return "".join(
        character.encode("unicode_escape").decode() if category(character) in CONTROL else character
        for character in text
    )


def whole(text: str) -> bool:
    """Return whether a text can be encoded as UTF-8: it has no unpaired surrogate."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def missing(value: Any) -> bool:
    """Return whether a value is None, NaN, or the missing value of pandas."""
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return getattr(value, "shape", ()) == () and bool(value != value)


def check_texts(texts: object, what: str = "text") -> None:
    """Raise an error unless this is a list, an array or a column of texts.

    `what` says what one of them is, for the messages.
    """
    if isinstance(texts, str):
        raise HoldfastError(f"the {what}s are one string; give a list of strings")
    columns = getattr(texts, "shape", (0,))
    listed = hasattr(texts, "__len__") and hasattr(texts, "__getitem__")
    if not listed or isinstance(texts, bytes | Mapping) or len(columns) != 1:
        kind = type(texts).__name__
        raise HoldfastError(f"the {what}s are {kind}, not a list; give a list of strings, or one column")
    for place, value in enumerate(cast(Sequence[object], texts), start=1):
        if not isinstance(value, str):
            found = f"{printable(reprlib.repr(value))} ({type(value).__name__})"
            advice = "fill it in or drop the row" if missing(value) else "use str()"
            raise HoldfastError(f"{what} {place} is not text but {found}; {advice}")
        if not whole(value):
            raise HoldfastError(f"{what} {place} has an unpaired surrogate; save it as plain UTF-8 text")


def several(labels: object) -> bool:
    """Return whether labels are a table, or lists of labels."""
    dimensions = len(getattr(labels, "shape", (0,)))
    if dimensions != 1:
        return dimensions > 1
    each = labels if isinstance(labels, Collection) else ()
    return any(isinstance(one, list | tuple | Set) or getattr(one, "shape", ()) for one in each)


def check_pairs(texts: Sequence[str], labels: Sequence[str]) -> None:
    """Raise an error unless these are texts and as many labels, one for each."""
    check_texts(texts)
    if several(labels):
        raise HoldfastError(f"a text has several labels; {SEVERAL}")
    check_texts(labels, "label")
    if len(texts) != len(labels):
        raise HoldfastError(f"{len(texts)} texts but {len(labels)} labels; give one label per text")


def task_of(texts: Sequence[str], labels: Sequence[str], name: str, *, seed: int = 0) -> Task:
    """Return a task made from texts and labels, with some held out for validation by `held_out`.

    The order of the texts has no effect.
    """
    check_pairs(texts, labels)
    train, valid = held_out(Split.of(sorted(zip(texts, labels, strict=True))), seed)
    return Task(name, train=train, valid=valid, test=Split((), ()))


def held_out(split: Split, seed: int = 0) -> tuple[Split, Split]:
    """Split off a tenth of each label's sentences for validation: at least one, none if fewer than three.

    The seed includes the label, so that adding a label does not change the split of the others.
    """
    places: dict[str, list[int]] = {}
    for place, label in enumerate(split.labels):
        places.setdefault(label, []).append(place)
    out: set[int] = set()
    for label, own in places.items():
        if len(own) >= 3:
            out.update(Random(f"{seed}/{label}").sample(own, max(1, round(0.1 * len(own)))))
    pairs = list(zip(split.texts, split.labels, strict=True))
    return (
        Split.of([pair for place, pair in enumerate(pairs) if place not in out]),
        Split.of([pair for place, pair in enumerate(pairs) if place in out]),
    )


@dataclass(frozen=True)
class Stream:
    """Tasks in the order they arrive, and their scenario.

    >>> rows = Split(("play jazz",), ("music",))
    >>> stream = Stream("mine", (Task("week 1", rows, rows, rows),), "class-incremental")
    >>> [task.name for task in stream]
    ['week 1']
    """

    name: str
    tasks: tuple[Task, ...]
    scenario: Scenario

    def __post_init__(self) -> None:
        if self.scenario not in get_args(Scenario):
            raise ValueError(f"unknown scenario {self.scenario!r}")
        if not self.tasks:
            raise HoldfastError(f"stream {self.name!r} has no tasks")
        names = [task.name for task in self.tasks]
        if twice := [name for name, n in Counter(names).items() if n > 1]:
            raise HoldfastError(f"stream {self.name!r} has two tasks called {twice[0]!r}; names must differ")

    @override
    def __repr__(self) -> str:
        return f"Stream({self.name!r}, {len(self)} tasks, {len(self.labels)} labels, {self.scenario})"

    def __iter__(self) -> Iterator[Task]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    @property
    def labels(self) -> tuple[str, ...]:
        """All labels of the stream, in the order of first appearance."""
        return tuple(dict.fromkeys(label for task in self.tasks for label in task.labels))

    def ordered(self, names: Sequence[str]) -> Stream:
        """Return the stream with only these tasks, in this order."""
        known = {task.name: task for task in self.tasks}
        if unknown := [name for name in names if name not in known]:
            raise HoldfastError(
                f"stream {self.name!r} has no task {unknown[0]!r}; its tasks are {', '.join(known)}"
            )
        return replace(self, tasks=tuple(known[name] for name in names))

    def capped(self, *, train: int | None, valid: int | None) -> Stream:
        """Return the stream with every task capped (see `Task.capped`)."""
        return replace(self, tasks=tuple(task.capped(train=train, valid=valid) for task in self.tasks))


def recut(stream: Stream, number: int) -> Stream:
    """Return a stream with its labels shuffled over the tasks.

    The tasks keep their names and their numbers of labels. `number` is the seed. The result does not
    depend on the tasks the labels are in now.
    """
    rows: dict[str, dict[str, list[tuple[str, str]]]] = {part: {} for part in PARTS}
    for task in stream:
        for part in PARTS:
            split: Split = getattr(task, part)
            for text, label in zip(split.texts, split.labels, strict=True):
                rows[part].setdefault(label, []).append((text, label))
    labels = sorted(stream.labels)
    Random(number).shuffle(labels)
    tasks = []
    for task in stream:
        own, labels = labels[: len(task.labels)], labels[len(task.labels) :]
        splits = (Split.of([row for label in own for row in rows[part].get(label, ())]) for part in PARTS)
        tasks.append(Task(task.name, *splits))
    return replace(stream, tasks=tuple(tasks))

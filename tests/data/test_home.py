"""The streams generated from Home Assistant's templates, with the installed package."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from dataclasses import astuple

import pytest

from holdfast.data.home import (
    SIZES,
    Part,
    Syllabus,
    _templates,
    domains_syllabus,
    home,
    home_domains,
    home_syllabus,
)
from holdfast.data.tasks import Split, Stream, Task
from holdfast.errors import HoldfastError

each_stream = pytest.mark.parametrize("build", [home, home_domains])


def parts(task: Task) -> dict[Part, Split]:
    return {"train": task.train, "valid": task.valid, "test": task.test}


def pairs(stream: Stream) -> list[tuple[str, str]]:
    return [
        pair
        for task in stream
        for split in parts(task).values()
        for pair in zip(split.texts, split.labels, strict=True)
    ]


def digest(stream: Stream) -> str:
    return hashlib.sha256(repr(astuple(stream)).encode()).hexdigest()


def test_home_is_four_tasks_of_five_distinct_intents() -> None:
    stream = home()
    assert (stream.name, stream.scenario) == ("home", "class-incremental")
    assert [task.name for task in stream] == ["home-1", "home-2", "home-3", "home-4"]
    assert [len(task.labels) for task in stream] == [5, 5, 5, 5]
    assert len(stream.labels) == 20
    assert {"HassTurnOn", "HassTurnOff", "HassGetState"} <= set(stream.labels)


def test_home_domains_is_three_tasks_of_the_same_three_labels() -> None:
    stream = home_domains()
    assert (stream.name, stream.scenario) == ("home-domains", "domain-incremental")
    assert [task.name for task in stream] == ["light", "fan", "cover"]
    assert {task.labels for task in stream} == {("ask state", "turn off", "turn on")}


def test_a_domain_speaks_of_its_own_things() -> None:
    light, fan, cover = home_domains()
    assert all("fan" in text for text in fan.train.texts)
    assert not any("fan" in text for text in light.train.texts + cover.train.texts)
    opened = [t for t, label in zip(cover.train.texts, cover.train.labels, strict=True) if label == "turn on"]
    assert all(text.startswith(("open", "raise", "lift")) for text in opened)


@each_stream
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_label_has_enough_sentences_in_every_part(build: Callable[[int], Stream], seed: int) -> None:
    for task in build(seed):
        for part, split in parts(task).items():
            counts = split.counts()
            assert set(counts) == set(task.labels)
            # A few sentences are dropped because two labels share them.
            assert all(0.9 * SIZES[part] <= n <= SIZES[part] for n in counts.values())


@each_stream
def test_the_seed_decides_the_sentences(build: Callable[[int], Stream]) -> None:
    build.cache_clear()
    first = build(0)
    build.cache_clear()
    assert build(0) == first
    assert [task.labels for task in build(1)] == [task.labels for task in first]
    assert all(a.train.texts != b.train.texts for a, b in zip(build(1), first, strict=True))


@pytest.mark.slow
@each_stream
def test_another_process_builds_the_same_stream(build: Callable[[int], Stream]) -> None:
    name = build.__name__
    code = (
        f"import dataclasses, hashlib; from holdfast.data.home import {name}; "
        f"print(hashlib.sha256(repr(dataclasses.astuple({name}(0))).encode()).hexdigest())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4321", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == digest(build(0))


@each_stream
def test_no_sentence_occurs_twice(build: Callable[[int], Stream]) -> None:
    labels = defaultdict(list)
    for text, label in pairs(build(0)):
        labels[text].append(label)
    assert {text: owners for text, owners in labels.items() if len(owners) > 1} == {}


@pytest.mark.parametrize("syllabus", [home_syllabus, domains_syllabus])
def test_no_template_is_in_two_parts(syllabus: Callable[[int], Syllabus]) -> None:
    owners = defaultdict(set)
    for labels in syllabus(0).values():
        for label, phrasings in labels.items():
            assert list(phrasings) == list(SIZES)
            assert all(phrasings.values())
            for part, templates in phrasings.items():
                for template in templates:
                    owners[label, template.text].add(part)
    assert {key: found for key, found in owners.items() if len(found) > 1} == {}


def test_most_templates_train() -> None:
    for labels in home_syllabus(0).values():
        for phrasings in labels.values():
            total = sum(len(templates) for templates in phrasings.values())
            assert 0.6 <= len(phrasings["train"]) / total <= 0.8


@each_stream
def test_sentences_are_clean(build: Callable[[int], Stream]) -> None:
    for text, _ in pairs(build(0)):
        assert text
        assert not set("{}<>[]()|;") & set(text)
        assert text == " ".join(text.lower().split())
        assert " %" not in text


def test_a_slot_without_words_is_named_in_the_error() -> None:
    template = _templates("HassBroadcast")[0]
    with pytest.raises(HoldfastError, match=r"no words for \{message\}"):
        template.say(random.Random(0))


def test_an_unknown_intent_is_named_in_the_error() -> None:
    with pytest.raises(HoldfastError, match="HassNoSuchThing"):
        _templates("HassNoSuchThing")


def test_a_name_fits_the_domain() -> None:
    (locks,) = (t for t in _templates("HassTurnOn") if t.text == "lock [<the>] {name}")
    assert locks.domains == ("lock",)
    assert locks.say(random.Random(0)).startswith("lock ")

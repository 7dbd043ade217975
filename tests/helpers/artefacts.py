"""Exported artefacts of toy learners, and changes that an attacker or a bad disk makes to one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from helpers.learners import TEXTS, taught

from holdfast.everyday.export import export
from holdfast.everyday.predict import answers
from holdfast.learning.learner import Learner
from holdfast.runtime.answers import Answer, Asked
from holdfast.runtime.artefact import MANIFEST
from holdfast.storage.files import sealed

ODD = ["", " ", "music0", "Ünïcode 東京 🙂", "the light1 " * 300]
"""Sentences at the edges: nothing, one word, unknown characters, more than fits."""
SENTENCES = [*TEXTS, *ODD]


def state_of(tiny: str, place: Path, method: str = "auto", **options: Any) -> Path:
    """Return the directory of a learner of two lessons."""
    learner = taught(tiny, method, **options)
    learner.save(place)
    return place


def exported(state: Path, place: Path, **options: Any) -> Path:
    export(state, place, **options)
    return place


def same_answers(expected: list[Answer], found: list[Answer]) -> None:
    """Expect the same labels, order and sets, and probabilities that agree to 1e-4."""
    assert [one.text for one in expected] == [one.text for one in found]
    assert [one.label for one in expected] == [one.label for one in found]
    assert [one.set for one in expected] == [one.set for one in found]
    for mine, its in zip(expected, found, strict=True):
        assert [label for label, _ in mine.top] == [label for label, _ in its.top], mine.text
        apart = [abs(a - b) for (_, a), (_, b) in zip(mine.top, its.top, strict=True)]
        assert max(apart) < 1e-4, mine.text


def learners_answers(state: Path, asked: Asked = Asked()) -> list[Answer]:  # noqa: B008
    return answers(Learner.load(state), SENTENCES, asked)


def changed(artefact: Path, **values: Any) -> None:
    """Change the manifest and seal it again, as somebody does who wants to attack."""
    manifest = json.loads((artefact / MANIFEST).read_text())
    (artefact / MANIFEST).write_bytes(sealed(manifest | values))

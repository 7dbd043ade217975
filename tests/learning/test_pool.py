"""Runs that share trainings: bit-equal results, and only identical trainings are shared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from helpers.learners import make_learner, make_method
from helpers.toys import class_stream, small
from helpers.weights import assert_same_bits, weights_of

from holdfast.data.tasks import Stream
from holdfast.events import Progress
from holdfast.learning import trials
from holdfast.learning.learner import Learner
from holdfast.learning.trials import LIBRARIES
from holdfast.methods import METHODS
from holdfast.storage.tensors import hash_of

ALIKE = [
    ("mas", {}),
    ("frozen", {}),
    ("ewc", {}),
    ("ancl-mas", {}),
    ("la", {}),
    ("la", {"fraction": 0.5}),
    ("la", {"thr": 0.5, "penalty": "proximal"}),
    ("si", {}),
    ("la", {"importance": "rwalk"}),
    ("seq", {}),
    ("lwf", {}),
]
"""Runs that share one pool, in this order: later ones can reuse trainings of earlier ones."""


def _swap_words(tokenizer: dict[str, Any]) -> None:
    vocabulary = tokenizer["model"]["vocab"]
    words = [word for word in vocabulary if not word.startswith("[")]
    numbers = [vocabulary[word] for word in words]
    vocabulary |= dict(zip(words, reversed(numbers), strict=True))


EDITS: dict[str, Callable[[dict[str, Any]], None]] = {
    "config": lambda config: config.update(hidden_dropout_prob=0.2),
    "tokenizer": _swap_words,
}


class Watch(Progress):
    def __init__(self) -> None:
        self.found: list[bool] = []

    def scored(self, score: float, reused: bool) -> None:
        self.found.append(reused)


def taught(
    model: str, name: str, values: dict[str, Any], pool: Path | None, stream: Stream, **rest: Any
) -> tuple[Learner, list[Any]]:
    method = make_method(name, **values)
    settings = rest.pop("settings", small(epochs=2, lam_trials=1))
    learner = make_learner(model, method, stream, settings, progress=Watch(), shared=pool, **rest)
    lessons = [learner.learn(task) for task in stream]
    told = [
        (
            lesson.decision.trial.choice,
            lesson.decision.notes,
            [trial.summary() for trial in lesson.trials],
            lesson.chosen_passes,
            lesson.search_passes,
        )
        for lesson in lessons
    ]
    return learner, told


def reused(learner: Learner) -> int:
    assert isinstance(learner.progress, Watch)
    return sum(learner.progress.found)


@pytest.mark.slow
def test_runs_that_share_end_as_runs_that_do_not(one_layer: str, tmp_path: Path) -> None:
    pool, stream = tmp_path, class_stream()
    found = {}
    for number, (name, values) in enumerate(ALIKE):
        alone, story = taught(one_layer, name, values, None, stream)
        shared, its_story = taught(one_layer, name, values, pool, stream)
        assert_same_bits(weights_of(alone), weights_of(shared))
        assert repr(its_story) == repr(story), name
        assert not reused(alone)
        found[number] = reused(shared)
    # mas runs first and finds nothing; frozen, ewc, ancl-mas and la reuse its trainings in their first tasks.
    assert found[0] == 0
    assert all(found[number] >= 2 for number in (1, 3, 4, 5)), found
    assert found[2] >= 1, "ewc shares its first task with mas"
    assert found[5] > found[6] >= 1, "a proximal pull changes the training, but not the gold run"
    assert not any(found[number] for number in (7, 8, 9, 10)), (
        "observed trainings or those with another state are not shared"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"settings": small(epochs=2, lam_trials=1, batch_size=6)},
        {"scenario": True},
        {"task": True},
        {"code": True},
        {"model": True},
        {"config": True},
        {"tokenizer": True},
        {"precision": True},
        {"library": True},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_decides_a_training_is_in_its_name(
    one_layer: str, tiny_bert: str, tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = replace(class_stream(), tasks=class_stream().tasks[:1])
    pool = tmp_path / "pool"
    taught(one_layer, "mas", {}, pool, stream)
    same, _ = taught(one_layer, "mas", {}, pool, stream)
    assert reused(same) == 1
    model = tiny_bert if change.pop("model", False) else one_layer
    for name, edit in EDITS.items():
        if change.pop(name, False):  # the same weights with another configuration or tokenizer
            model = str(shutil.copytree(one_layer, tmp_path / "edited"))
            part = tmp_path / "edited" / f"{name}.json"
            content = json.loads(part.read_text())
            edit(content)
            part.write_text(json.dumps(content))
    if change.pop("scenario", False):
        stream = replace(stream, scenario="domain-incremental")
    if change.pop("task", False):
        task = stream.tasks[0]
        train = replace(task.train, texts=task.train.texts[::-1], labels=task.train.labels[::-1])
        stream = replace(stream, tasks=(replace(task, train=train),))
    if change.pop("code", False):
        monkeypatch.setattr(trials, "code_hash", lambda: "other code")
    if change.pop("precision", False):
        monkeypatch.setattr(Accelerator, "mixed_precision", "bf16")
    if change.pop("library", False):
        monkeypatch.setitem(LIBRARIES, "transformers", "0")
    other, _ = taught(model, "mas", {}, pool, stream, **change)
    assert not reused(other)


def test_closed_form_heads_share_nothing(one_layer: str, tmp_path: Path) -> None:
    taught(one_layer, "mas+slda", {}, tmp_path, class_stream())
    assert not list(tmp_path.iterdir())


def test_a_method_with_hooks_of_its_own_shares_nothing() -> None:
    """A subclass that changes the training need not know about sharing."""
    for name in ("mas", "la", "ancl-mas"):
        assert METHODS[name]().shared_as() is not None

        class Other(METHODS[name]):
            def prepare(self, learner: Any, task: Any) -> Any:
                return super().prepare(learner, task)

        assert Other().shared_as() is None
    assert {name for name in METHODS if make_method(name).shared_as() is not None} == {
        *("seq", "mas", "frozen", "ewc", "ancl-mas", "la")
    }


def test_only_code_that_decides_a_training_is_in_its_name(tmp_path: Path, monkeypatch: Any) -> None:
    package = shutil.copytree(trials.PACKAGE, tmp_path / "holdfast")
    monkeypatch.setattr(trials, "PACKAGE", package)
    hash_now = trials.code_hash.__wrapped__
    before = hash_now()
    (package / "report" / "page.py").write_text("# edited")
    assert hash_now() == before
    (package / "learning" / "fit.py").write_text("# edited")
    assert hash_now() != before


def test_fingerprints_tell_apart() -> None:
    one = torch.tensor([1.0, 2.0])
    values = [
        one,
        one.double(),
        one.view(2, 1),
        one + 1,
        {"a": one},
        {"b": one},
        [one, one],
        [[one], one],
        1,
        "1",
    ]
    assert len({hash_of(value) for value in values}) == len(values)
    assert hash_of({"a": 1, "b": 2}) == hash_of({"b": 2, "a": 1})

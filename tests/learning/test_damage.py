"""Damaged and hostile states: each loads, or is refused in one line."""

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import damage
from helpers.learners import STREAM, TEXTS, create, taught

from holdfast.errors import HoldfastError
from holdfast.heads.sums import factored
from holdfast.learning.learner import Learner
from holdfast.maths.products import cholesky
from holdfast.storage.generations import Store

METHODS = ["slda", "rda", "klda", "ranpac", "la", "adabop"]


def tried(changes: list[damage.Change], root: Path) -> int:
    """Load, use and teach every state; return how many were refused."""
    Learner.load(root)  # undamaged
    refused = 0
    for _, sections, tensors in changes:
        Store(root, keep=1).commit(tensors, sections)
        try:
            learner = Learner.load(root)
            learner.predict_proba(TEXTS[:2])
            learner.learn(["music0 light1"] * 3 + ["music1"] * 3, ["new"] * 3 + ["old"] * 3)
        except HoldfastError as error:
            refused += "\n" not in str(error)
    return refused


@pytest.mark.parametrize("number", [10, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", METHODS)
def test_a_changed_tensor(method: str, number: int, one_layer: str, tmp_path: Path) -> None:
    taught(one_layer, method, tasks=1).save(tmp_path)
    assert tried(damage.some(damage.in_tensors(Store(tmp_path).load()), number), tmp_path)


@pytest.mark.parametrize("number", [30, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("method", ["slda", "la"])
def test_a_changed_value(method: str, number: int, one_layer: str, tmp_path: Path) -> None:
    taught(one_layer, method, tasks=1).save(tmp_path)
    assert tried(damage.some(damage.in_json(Store(tmp_path).load()), number), tmp_path)


@pytest.mark.parametrize("name", ["weights", "calibration", "head.slda", "method.alpha", "zeal"])
def test_an_unknown_json_section_is_refused_by_its_name(name: str, one_layer: str, tmp_path: Path) -> None:
    taught(one_layer, tasks=1).save(tmp_path)
    saved = Store(tmp_path).load()
    Store(tmp_path).commit(saved.tensors, {**saved.sections, name: {"x": 1}})
    with pytest.raises(HoldfastError, match=f"unknown section '{name}'"):
        Learner.load(tmp_path)


@pytest.mark.parametrize(
    ("method", "name"),
    [("slda", "head.zeal"), ("slda", "method.zeal"), ("la", "head.slda"), ("la", "calibration")],
)
def test_an_unknown_tensor_section_is_refused_by_its_name(
    method: str, name: str, one_layer: str, tmp_path: Path
) -> None:
    """A section of another kind of head too: dropping it would lose what a later version has stored."""
    taught(one_layer, method, tasks=1).save(tmp_path)
    saved = Store(tmp_path).load()
    Store(tmp_path).commit({**saved.tensors, name: {"x": torch.ones(1)}}, saved.sections)
    with pytest.raises(HoldfastError, match=f"unknown section '{name}'"):
        Learner.load(tmp_path)


def test_a_negative_importance_is_refused(one_layer: str, tmp_path: Path) -> None:
    taught(one_layer, "la", tasks=1).save(tmp_path)
    saved = Store(tmp_path).load()
    alpha = {name: -value - 1 for name, value in saved.tensors["method.alpha"].items()}
    Store(tmp_path).commit({**saved.tensors, "method.alpha": alpha}, saved.sections)
    with pytest.raises(HoldfastError, match="has a negative importance in alpha/"):
        Learner.load(tmp_path)


@pytest.mark.parametrize("seed", [-1, 2**62])
def test_a_seed_that_no_generator_takes_is_refused(seed: int, one_layer: str, tmp_path: Path) -> None:
    taught(one_layer, "klda", tasks=1).save(tmp_path)
    saved = Store(tmp_path).load()
    Store(tmp_path).commit(saved.tensors, damage.put(saved.sections, ("learner", "seed"), seed))
    with pytest.raises(HoldfastError, match="negative or too large"):
        Learner.load(tmp_path)
    with pytest.raises(HoldfastError, match=r"the seed .* is not a whole number between"):
        create(one_layer, seed=seed)


# ---- memory -------------------------------------------------------------------------------------------


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("method", ["slda", "la", "auto"])
def test_a_learner_that_is_no_longer_used_is_freed_at_once(
    method: str, one_layer: str, tmp_path: Path, no_collection: None
) -> None:
    learner = taught(one_layer, method, tasks=1)
    learner.predict_proba(TEXTS)
    learner.save(tmp_path)
    loaded = Learner.load(tmp_path)
    loaded.predict(TEXTS)
    left = [weakref.ref(learner), weakref.ref(learner.model), weakref.ref(loaded), weakref.ref(loaded.model)]
    del learner, loaded
    assert [one() for one in left] == [None] * 4


def test_no_text_stays_in_memory(one_layer: str) -> None:
    learner = create(one_layer)
    learner.learn([f"swordfish{i} music0" for i in range(6)], ["open"] * 3 + ["shut"] * 3)
    gc.collect()
    found = [
        o
        for o in gc.get_objects()
        if isinstance(o, tuple) and any(isinstance(x, str) and x.startswith("swordfish") for x in o)
    ]
    assert not found


# ---- numbers ------------------------------------------------------------------------------------------


def test_a_nearly_singular_matrix_is_regularised() -> None:
    direction = torch.randn(6, 1, dtype=torch.float64)
    flat = direction @ direction.T  # of rank one
    factor = factored(flat)
    assert torch.isfinite(factor).all()
    torch.testing.assert_close(factor @ factor.T, flat, rtol=1e-3, atol=1e-3)
    sound = torch.eye(6, dtype=torch.float64) + flat
    assert torch.equal(factored(sound), cholesky(sound))
    with pytest.raises(HoldfastError, match="no sums of squares"):
        factored(-sound)


def test_sentences_that_are_all_the_same_are_learnt(one_layer: str) -> None:
    learner = create(one_layer, "slda", shrinkage=1e-4)
    learner.learn([STREAM.tasks[0].train.texts[0]] * 8, ["a"] * 4 + ["b"] * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isfinite(learner.predict_proba(TEXTS)).all()

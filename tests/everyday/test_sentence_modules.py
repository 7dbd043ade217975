"""Modules for sentence-transformers: the same probabilities, and one line where they are impossible."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.artefacts import SENTENCES, state_of
from helpers.command_line import call, refused
from helpers.learners import FAST
from scipy.special import log_softmax

from holdfast.errors import HoldfastError
from holdfast.everyday.sentence_modules import export_modules
from holdfast.learning.learner import Learner

transformers = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


@pytest.mark.parametrize(
    ("method", "options"),
    [("slda", {}), ("slda", {"normalise": True, "settings": replace(FAST, vector="cls")})],
)
def test_the_modules_give_the_learners_logits(
    method: str, options: dict[str, Any], tiny_bert: str, tmp_path: Path
) -> None:
    state = state_of(tiny_bert, tmp_path / "state", method, **options)
    export_modules(state, tmp_path / "modules")
    learner = Learner.load(state)
    labels = json.loads((tmp_path / "modules" / "labels.json").read_text())
    assert labels == {"generation": learner.generation, "labels": learner.classes_}
    found = transformers.SentenceTransformer(str(tmp_path / "modules"), device="cpu").encode(SENTENCES)
    assert found.shape == (len(SENTENCES), len(learner.classes_))
    expected = learner.predict_proba(SENTENCES)
    assert np.abs(np.exp(log_softmax(found.astype(float), 1)) - expected).max() < 1e-5
    assert not list((tmp_path / "modules").rglob("*.tmp"))
    for file in (tmp_path / "modules").rglob("*.json"):
        assert str(tmp_path) not in file.read_text(), file
        assert tiny_bert not in file.read_text(), file


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("klda", {}, "the head of this learner is not linear"),
        ("rda", {}, "the head of this learner is not linear"),
        ("slda", {"layers": 2}, "reads 2 layers"),
        ("auto", {}, "not linear|reads 2 layers"),
        ("seq", {}, "has adapters"),
        ("slda", {"settings": replace(FAST, vector="pooler")}, "reads the pooler"),
    ],
)
def test_what_cannot_be_modules_is_one_line(
    method: str, options: dict[str, Any], why: str, tiny_bert: str, tmp_path: Path
) -> None:
    state = state_of(tiny_bert, tmp_path / "state", method, **options)
    with pytest.raises(HoldfastError, match=f"({why}).*those of the method slda"):
        export_modules(state, tmp_path / "modules")
    assert not (tmp_path / "modules").exists()


def test_the_command(tiny_bert: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    state, place = state_of(tiny_bert, tmp_path / "state", "slda"), tmp_path / "modules"
    made = ("export", str(state), str(place), "--sentence-transformers")
    assert call(*made, "--format", "json") == 0
    assert json.loads(capsys.readouterr().out) == {"directory": str(place), "generation": 1, "labels": 4}
    refused(capsys, "exists; choose a new or empty directory", *made)
    refused(capsys, "lies in the learner's own", "export", str(state), str(state / "x"), made[-1])
    for more in ([], [str(place), "--onnx"], [str(place), "--force"]):
        refused(capsys, "needs a new DIR", "export", str(state), "--sentence-transformers", *more)

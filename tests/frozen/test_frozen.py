"""Numbers that a rearrangement of the code must not change. `helpers.frozen` asks the code for them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from helpers import frozen

EXPECTED = json.loads((frozen.HERE / "expected.json").read_text())


def test_every_record_keeps_its_name():
    assert frozen.spec_digests() == EXPECTED["digests"]


def test_the_tables_of_the_small_study(tmp_path):
    found = frozen.report_of_small(tmp_path)
    assert found.keys() == EXPECTED["small"].keys()
    for name, rows in EXPECTED["small"].items():
        assert found[name] == rows, name


def test_the_tables_of_the_language_model_study(tmp_path):
    assert frozen.report_of_lm(tmp_path) == EXPECTED["lm"]


@pytest.mark.parametrize("name", ["slda", "la"])
def test_a_saved_learner_answers_as_it_did(name, tmp_path, monkeypatch):
    shutil.copytree(frozen.MODEL, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    learner, expected = frozen.load_state(name), EXPECTED["states"][name]
    assert learner.classes_ == expected["classes"]
    assert learner.predict(frozen.TEXTS) == expected["labels"]
    found = torch.tensor(learner.predict_proba(frozen.TEXTS))
    torch.testing.assert_close(found, torch.tensor(expected["probabilities"]).to(found), rtol=1e-4, atol=1e-5)


def test_a_saved_importance_is_what_it_was():
    values, card = frozen.load_importance()
    assert card == EXPECTED["importance"]["card"]
    assert {name: pytest.approx(float(v.double().sum())) for name, v in values.items()} == EXPECTED[
        "importance"
    ]["sums"]


def close(found: object, expected: object) -> bool:
    """Whether two nested values are the same, numbers to 1e-6."""
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(close(found[key], expected[key]) for key in expected)
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(close, found, expected))
    if isinstance(expected, float):
        return found == pytest.approx(expected, rel=1e-6, abs=1e-6)
    return found == expected


@pytest.mark.parametrize("name", frozen.METHOD_NAMES)
def test_two_runs_of_a_method_are_equal_to_the_bit(name):
    assert frozen.taught(name, "classes") == frozen.taught(name, "classes")


@pytest.mark.parametrize("case", EXPECTED["methods"])
def test_a_method_ends_where_it_did(case):
    found, expected = frozen.taught(*case.split("/")), EXPECTED["methods"][case]
    assert found.keys() == expected.keys()
    for part in expected:
        assert close(found[part], expected[part]), f"{part}: {found[part]} instead of {expected[part]}"


OVERALL = {"seq": 24.67, "frozen": 36.19, "mas": 45.10, "la": 47.95, "auto": 95.44, "mtl": 96.99}


@pytest.mark.slow
def test_the_table_of_the_quick_suite(tmp_path):
    """The table that `make study` prints, to one point: rounding differs between machines."""
    holdfast = [sys.executable, "-m", "holdfast"]
    subprocess.run([*holdfast, "bench", "quick", "--out", str(tmp_path)], check=True)
    done = subprocess.run([*holdfast, "report", str(tmp_path)], check=True, capture_output=True, text=True)
    for method, overall in OVERALL.items():
        row = re.search(rf"^\W*{re.escape(method)}\W+\d+/\d+\W+(\d+\.\d+)", done.stdout, re.MULTILINE)
        assert row is not None, done.stdout
        assert float(row[1]) == pytest.approx(overall, abs=1.0), method
    assert len(list(Path(tmp_path).glob("*.json"))) == len(OVERALL) + 1  # and the manifest

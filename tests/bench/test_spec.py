"""The digest of a spec depends on everything that determines the run, and on nothing else."""

from __future__ import annotations

import dataclasses
import shutil
import sys
from pathlib import Path

import pytest
from helpers.runs import SETTINGS, spec, write_stream
from helpers.toys import domain_stream

from holdfast.bench import Spec, run
from holdfast.errors import HoldfastError


def test_the_name_covers_the_spec(files, one_layer):
    base = spec(files, one_layer)
    changes = {
        "method": "mas",
        "order": "task1,task0",
        "seed": 1,
        "preset": "small",
        "per_class": 3,
        "model": "minilm",
        "set": {"epochs": 3},
        "threads": 2,
        "tasks": 2,
    }
    names = {dataclasses.replace(base, **{key: value}).digest() for key, value in changes.items()}
    assert len(names | {base.digest()}) == 1 + len(changes)
    assert base.digest() == spec(files, one_layer).digest()


def test_the_name_covers_nothing_else(files, one_layer, monkeypatch):
    base = spec(files, one_layer).digest()
    monkeypatch.setattr(sys.modules[run.__module__], "_revision", lambda: "another")
    monkeypatch.setattr("holdfast.__version__", "9.9")
    assert spec(files, one_layer).digest() == base
    turned = Spec.create(method="seq", stream=str(files), settings=SETTINGS[::-1], model=one_layer)
    assert turned.digest() == base, "the order of settings does not matter"
    assert spec(files, one_layer, order="").digest() == base, "the default order"


def test_the_name_follows_the_contents_of_files(one_layer, tmp_path):
    here = write_stream(tmp_path / "here", domain_stream(), 2)
    there = write_stream(tmp_path / "there", domain_stream(), 2)
    name = spec(here, one_layer).digest()
    assert spec(there, one_layer).digest() == name, "the content of the files counts, not their path"
    file = there / "north.csv"
    file.write_text(file.read_text().replace("glad", "gled", 1))
    assert spec(there, one_layer).digest() != name


def test_the_name_follows_the_contents_of_a_model(files, one_layer, tmp_path):
    name = spec(files, one_layer).digest()
    moved = shutil.copytree(one_layer, tmp_path / "moved")
    assert spec(files, str(moved)).digest() == name, "the content of the model counts, not its path"
    config = moved / "config.json"
    config.write_text(config.read_text().replace("{", "{ ", 1))
    assert spec(files, str(moved)).digest() != name


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_a_seed_that_no_generator_takes_is_refused(files: Path, seed: int) -> None:
    with pytest.raises(HoldfastError, match="seed: from 0 to"):
        Spec.create(method="seq", stream=str(files), seed=seed)

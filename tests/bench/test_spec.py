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


def test_a_spec_names_its_plan_and_its_optimiser(files, one_layer):
    base = spec(files, one_layer)
    assert (base.set["plan"], base.set["optimizer"]) == ("paper", "adamw")
    others = {spec(files, one_layer, "seq", one).digest() for one in ("plan=stable", "optimizer=sgd")}
    assert len(others | {base.digest()}) == 3
    assert spec(files, one_layer, "seq", "plan=paper") == base
    assert "plan" not in base.title
    assert spec(files, one_layer, "seq", "plan=stable").title.count("plan=stable") == 1


def test_the_stable_plan_trains_as_long_as_early_stopping_wants(files, one_layer):
    made = {
        plan: Spec.create(method="seq", stream=str(files), preset="small", settings=[f"plan={plan}"])
        for plan in ("paper", "stable")
    }
    assert {plan: one.settings().epochs for plan, one in made.items()} == {"paper": 10, "stable": 60}
    assert spec(files, one_layer, "seq", "plan=stable").settings().epochs == 2, "a set number counts"


def test_a_spec_of_before_is_another_run_and_is_not_run_again(files, one_layer, tmp_path):
    base = spec(files, one_layer)
    content = base.to_json()
    content["set"] = {name: v for name, v in content["set"].items() if name not in ("plan", "optimizer")}
    before = Spec.from_json(content)
    assert before.digest() != base.digest()
    assert Spec.from_json(before.to_json()) == before, "its name does not change"
    with pytest.raises(HoldfastError, match="made before runs named their plan"):
        run(before, tmp_path / "out")
    assert not (tmp_path / "out").exists()

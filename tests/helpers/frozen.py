"""Compute the numbers that tests/frozen/ fixes.

Change this file when the code is rearranged, but neither the tests nor the expected numbers.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

# As in tests/conftest.py, for tests/frozen/write.py.
os.environ.setdefault("MKL_CBWR", "AVX2")

import torch
from helpers.learners import make_learner, make_method
from helpers.toys import class_stream, domain_stream, save_tiny_bert, small

from holdfast import METHODS, Learner
from holdfast.bench.spec import Spec
from holdfast.lm import Importance
from holdfast.studies.lm_report import write_study
from holdfast.studies.views import write_report

HERE = Path(__file__).parents[1] / "frozen"
RESULTS = Path(__file__).parents[2] / "results"
MODEL = HERE / "model"
STATES = HERE / "states"
IMPORTANCE = HERE / "importance"
METHOD_NAMES = list(METHODS)
STREAMS = {"classes": class_stream, "domains": domain_stream}
TEXTS = [
    "music0 music1 the music2 music0",
    "light1 of light2 light0",
    "mail0 mail2 a mail1",
    "stock1 stock1 red",
]
HEX = re.compile(r"\b[0-9a-f]{12,16}\b")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def spec_digests() -> dict[str, str]:
    """Return the spec digest of every classification record by the record's path."""
    found = {}
    for path in sorted(RESULTS.glob("*/*.json")):
        record = json.loads(path.read_text())
        if path.parent.name != "lm" and "scores" in record:
            found[path.relative_to(RESULTS).as_posix()] = Spec.from_json(record["spec"]).digest()
    return found


def numbers(text: str) -> list[str]:
    """Return the numbers in a text as printed, without names of records and revisions."""
    return NUMBER.findall(HEX.sub(" ", text))


def report_of_small(scratch: Path) -> dict[str, list[list[str]]]:
    """Return the numbers in each table of the report on results/small, row by row."""
    folder = scratch / "small"
    shutil.copytree(RESULTS / "small", folder, ignore=shutil.ignore_patterns(".trials", "tables", "report.*"))
    write_report(folder)
    return {path.stem: _rows(path) for path in sorted((folder / "tables").glob("*.csv"))}


def _rows(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return [numbers(" ".join(row[:-1])) for row in list(csv.reader(file))[1:]]


def report_of_lm(scratch: Path) -> list[list[str]]:
    """Return the numbers in the report on results/lm, line by line."""
    folder = scratch / "lm"
    shutil.copytree(RESULTS / "lm", folder, ignore=shutil.ignore_patterns(".trials", "report.*"))
    write_study(folder)
    lines = (folder / "report.md").read_text().splitlines()
    return [found for line in lines if line.startswith("|") and (found := numbers(line))]


def save_model() -> None:
    """Write the encoder of the saved learners."""
    save_tiny_bert(MODEL, layers=1)


def save_importance() -> None:
    """Write an importance artefact of a tiny language model."""
    from helpers import tiny

    tiny.importance(tiny.llama()).save(IMPORTANCE)


def save_state(method: str) -> dict[str, Any]:
    """Teach a learner two tasks, save it and return its predictions for some texts."""
    learner = Learner.create("model", method, settings=small(epochs=2), generations=1)
    learner.origin.model = "model"  # relative to tests/frozen
    for task in class_stream().tasks[:2]:
        learner.learn(task)
    learner.save(STATES / method)
    shutil.rmtree(STATES / method / ".trials", ignore_errors=True)
    (STATES / method / ".lock").unlink(missing_ok=True)
    learner = load_state(method)
    return {
        "classes": learner.classes_,
        "labels": learner.predict(TEXTS),
        "probabilities": learner.predict_proba(TEXTS).tolist(),
    }


def load_state(name: str) -> Learner:
    """Load a saved learner. The working directory must contain its model."""
    return Learner.load(STATES / name)


def load_importance() -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Return the values and the card of the saved importance artefact."""
    found = Importance.load(IMPORTANCE)
    return found.values, vars(found.card)


def taught(name: str, stream_name: str) -> dict[str, Any]:
    """Learn two tiny tasks in float64; return choices, scores and a few weights."""
    stream = STREAMS[stream_name]()
    extra = {"sentences": 10**9} if name == "auto" else {}
    learner = make_learner(str(MODEL), make_method(name, **extra), stream, small(epochs=2))
    learner.model.double()
    tasks = list(learner.method.curriculum(stream))[:2]
    torch.manual_seed(0)
    chosen = [learner.learn(task).decision for task in tasks]
    weights = {n: w.detach() for n, w in learner.model.named_parameters() if w.requires_grad}
    places = sorted(weights)[:: max(1, len(weights) // 4)]
    memory = learner.model.memory()
    return {
        "choices": [_plain(decision.trial.choice) for decision in chosen],
        "valid": [decision.trial.score for decision in chosen],
        "test": [learner.score(task.test) for task in stream.tasks[:2]],
        "weights": {place: _some(weights[place]) for place in places},
        "memory": {n: _some(memory[n]) for n in sorted(memory) if n in ("counts", "sums", "chosen", "heat")},
    }


def _plain(choice: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value if value is None or value != float("inf") else "inf" for name, value in choice.items()
    }


def _some(value: torch.Tensor) -> list[float]:
    """Return the norm and the first three numbers of a tensor."""
    flat = value.double().flatten()
    return [float(flat.norm()), *flat[:3].tolist()]

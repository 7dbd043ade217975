"""Every file-system step of a run, of an importance and of a protected training may be the last, or fail."""

from __future__ import annotations

import json
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import faults
from helpers.runs import spec, told, write_stream
from helpers.tiny import importance, llama, sequences
from helpers.toys import class_stream

from holdfast.bench.run import run
from holdfast.errors import HoldfastError
from holdfast.lm.artefact import Importance, measure
from holdfast.lm.finetune import Recipe, finetune
from holdfast.lm.protect import Protect

MOST = [pytest.param(2, id="some"), pytest.param(10_000, marks=pytest.mark.slow, id="all")]


def as_command(action: Callable[[], Any]) -> Callable[[], int]:
    """Return an action whose errors become one line and exit code 2."""

    def command() -> int:
        try:
            action()
        except (HoldfastError, OSError) as error:  # the command line prints both in one line
            print(error, file=sys.stderr)
            return 2
        return 0

    return command


def everywhere(
    action: Callable[[], Any], root: Path, most: int, check: Callable[[], None], hows: tuple[str, ...]
) -> None:
    """Let every step be the last or fail; then repeat the action, and check what it has written."""
    root.mkdir()
    whole = faults.run(as_command(action), root)
    assert whole.code == 0, whole.errors
    points = [(how, step) for how in hows for step in range(len(whole.steps))]
    assert len(points) > 10
    for how, step in random.Random(0).sample(points, min(most, len(points))):
        what = f"{how} before step {step}, {whole.steps[step].what} {whole.steps[step].path}"
        shutil.rmtree(root)
        root.mkdir()
        found = faults.run(as_command(action), root, fail_at=step, how=how)
        assert found.code in ((faults.KILLED,) if how == "kill" else (0, 2)), f"{what}: {found.errors}"
        assert how == "kill" or found.errors.count("\n") == (found.code == 2), f"{what}: {found.errors}"
        assert as_command(action)() == 0, what
        check()
        left = [path for path in root.rglob("*") if ".tmp" in path.name or "partial" in path.name]
        assert not left, what


@pytest.mark.parametrize("most", MOST)
def test_a_run(most: int, one_layer: str, tmp_path: Path) -> None:
    files = write_stream(tmp_path / "files", class_stream(), 2)
    asked, out = spec(files, one_layer, "seq", "epochs=1"), tmp_path / "out"
    expected = told(json.loads(json.dumps(run(asked, tmp_path / "undisturbed"))))

    def check() -> None:
        assert told(json.loads((out / f"{asked.digest()}.json").read_text())) == expected
        assert not [path for path in (out / ".trials").rglob("*") if path.is_file()]

    everywhere(lambda: run(asked, out), out, most, check, ("kill", *faults.ERRORS))


@pytest.mark.parametrize("most", MOST)
def test_an_importance(most: int, tmp_path: Path) -> None:
    model, data, out = llama(), sequences(45), tmp_path / "out"
    expected = measure(model, data, name="tiny", data="words").values

    def check() -> None:
        found = Importance.load(out)
        assert found.card.sequences == 45
        for name, value in expected.items():
            torch.testing.assert_close(found.values[name], value)

    everywhere(
        lambda: measure(model, data, name="tiny", data="words", directory=out),
        out,
        most,
        check,
        ("kill", *faults.ERRORS),
    )


@pytest.mark.parametrize("most", MOST)
def test_the_checkpoints_of_a_protected_training(most: int, tmp_path: Path) -> None:
    """Errors inside the Trainer are its own; only kills are tried."""
    data, out = sequences(8), tmp_path / "out"
    ends: list[dict[str, torch.Tensor]] = []

    def train() -> None:
        torch.manual_seed(0)
        model = llama()
        protect = Protect(model, importance(model), lam=0.1)
        finetune(model, data, 0, Recipe(epochs=2, batch=4, save_every=1), out, protect=protect)
        ends.append({name: weight.detach().clone() for name, weight in model.named_parameters()})

    train()
    shutil.rmtree(out)

    def check() -> None:
        assert all(torch.equal(ends[-1][name], value) for name, value in ends[0].items())

    everywhere(train, out, most, check, ("kill",))

"""Every script of benchmarks/ runs on tiny models and little data; its figures are not checked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import tiny
from helpers.clinc import plant
from helpers.paths import ROOT

pytestmark = pytest.mark.slow
SCRIPTS = {path.stem for path in (ROOT / "benchmarks").glob("*.py")}


@pytest.fixture(scope="module")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a folder with a language model."""
    folder = tmp_path_factory.mktemp("lm")
    tiny.llama().save_pretrained(folder)
    tiny.tokenizer().save_pretrained(folder)
    return str(folder)


def script(name: str, *words: str, codes: tuple[int, ...] = (0,)) -> str:
    """Run a script and return its output."""
    done = subprocess.run(
        [sys.executable, f"benchmarks/{name}.py", *words],
        cwd=ROOT, env=os.environ | {"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode in codes, done.stdout + done.stderr
    return done.stdout


def test_none_is_forgotten() -> None:
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    assert tested >= SCRIPTS


def test_speed(one_layer: str) -> None:
    said = script("speed", "--json", "--sentences", "32", "--repeats", "1", "--model", one_layer)
    assert {"fit_vs_bare", "memory_la_vs_seq"} <= json.loads(said).keys()


def test_everyday(one_layer: str) -> None:
    said = script("everyday", "--json", "--sentences", "60", "--turns", "1", "--model", one_layer)
    assert json.loads(said)["sentences"] == 60


def test_accuracy(one_layer: str, tmp_path: Path) -> None:
    """Every peer, one and all sentences a label; measured results are reused."""
    words = ("red", "blue", "music0", "mail1", "stock2", "food0")
    rows = [[f"{word} w{i} {word}", f"intent{i:02}"] for i in range(12) for word in words]
    data_dir = plant(tmp_path, train=rows, val=rows[:24], test=rows)
    common = ["--data-dir", str(data_dir), "--out", str(tmp_path / "out"), "--model", one_layer]
    common += ["--pairs", "20", "--shots", "1", "all"]
    found = json.loads(script("accuracy", "--json", *common))
    peers = ("default", "slda", "nearest-mean", "sgd", "logistic", "setfit")
    assert {f"{peer} {shots}" for peer in peers for shots in ("1", "all")} <= found.keys()
    for name, result in found.items():
        assert len(result["after"]) == (1 if name.startswith(("logistic", "setfit")) else 2)
        assert 0 <= result["macro_f1"] <= 100
        assert result["seconds"] > 0
        assert result["state"] > 0
    assert found["default all"]["directory"] >= found["default all"]["state"]
    assert found["default all"]["rejected"].keys() == {"0.80", "0.90", "0.95", "0.99"}
    assert 0 <= found["default all"]["auroc"] <= 1
    table = script("accuracy", *common)
    assert f"| sgd | {found['sgd 1']['macro_f1']:.1f} | {found['sgd all']['macro_f1']:.1f} | " in table


def test_bench_scaling(one_layer: str) -> None:
    # Exit code 1 means that a threshold was missed, which is irrelevant for data this small.
    said = script("bench_scaling", "--json", "--runs", "1", "--model", one_layer, codes=(0, 1))
    assert json.loads(said)["ratios"]["one job, one thread"] == 1


def test_privacy(one_layer: str) -> None:
    said = script("privacy", "--json", "--sizes", "5", "20", "--model", one_layer)
    assert json.loads(said)["membership"]["5"] > 0.9


def test_open_directions(one_layer: str) -> None:
    said = script("open_directions", "--stream", "home", "--model", one_layer)
    assert "mass 4000" in said


def test_paired(one_layer: str, tmp_path: Path) -> None:
    common = ["--stream", "home", "--preset", "quick"]
    for method in ("slda", "klda"):
        words = ["run", *common, "--model", one_layer, "--method", method, "--out", str(tmp_path)]
        subprocess.run([sys.executable, "-m", "holdfast", *words], check=True, cwd=ROOT)
    said = script("paired", str(tmp_path), *common, "--method", "slda", "--against", "klda", "--draws", "20")
    assert "| klda | " in said
    assert "none in common" not in said


def test_half(tiny_lm: str) -> None:
    assert "to one in float32" in script("half", "--model", tiny_lm, "--tokens", "16")


def test_protection(tiny_lm: str) -> None:
    said = script("protection", "--json", "--model", tiny_lm, "--steps", "2", codes=(0, 1))
    assert json.loads(said)


def test_search(one_layer: str) -> None:
    words = ["--json", "--stream", "home", "--order", "home-1,home-2", "--model", one_layer]
    said = script("search", *words, "--epochs", "1", "--most", "9")
    found = json.loads(said)
    assert found["printed"]["trainings"] == 9
    assert not found["printed"]["ended"]
    assert found["stable"]["trainings"] < 30

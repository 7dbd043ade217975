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


def test_prefix(tiny_bert: str) -> None:
    words = ("--layers", "1", "--sentences", "30", "--repeats", "1", "--model", tiny_bert)
    assert json.loads(script("prefix", "--json", *words))["epoch"] > 0


def test_serving_load(one_layer: str, tmp_path: Path) -> None:
    words = ("--clients", "2", "--sentences", "3", "--seconds", "1", "--turns", "1", "--rows", "20")
    words = (*words, "--out", str(tmp_path))
    found = json.loads(script("serving_load", "--json", "--model", one_layer, *words).splitlines()[-1])
    assert found["batch"]["wrong"] == found["single"]["wrong"] == found["learning"]["wrong"] == 0
    assert found["learning"]["job"] == "done"
    assert json.loads((tmp_path / f"load-home-{Path(one_layer).name}.json").read_text()) == found
    assert "uvicorn" in found["versions"]


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
    peers = ("default", "exact", "slda", "nearest-mean", "sgd", "logistic", "setfit")
    assert {f"{peer} {shots}" for peer in peers for shots in ("1", "all")} <= found.keys()
    for name, result in found.items():
        assert len(result["after"]) == (1 if name.startswith(("logistic", "setfit")) else 2)
        assert 0 <= result["macro_f1"] <= 100
        assert result["seconds"] > 0
        assert result["state"] > 0
    assert found["default all"]["directory"] >= found["default all"]["state"]
    assert found["default all"]["rejected"].keys() == {"0.80", "0.90", "0.95", "0.99"}
    assert found["exact all"]["covered"].keys() == {"0.80", "0.90", "0.95", "0.99"}
    assert 0 <= found["default all"]["auroc"] <= 1
    kept = [*common, "--kept", "--again", "--methods", "default", "--json"]
    assert json.loads(script("accuracy", *kept))["default all"]["after"] == found["default all"]["after"]
    spread = json.loads(script("accuracy", *common, "--orders", "2"))
    assert spread["range"] == pytest.approx(spread["highest"] - spread["lowest"], abs=2e-3)
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
    said = script("search", *words, "--epochs", "1", "--most", "20", "--bisect")
    found = json.loads(said)
    assert found["printed"]["trainings"] >= found["printed"]["trained"]


def test_frontier_compares_at_equal_new_score(tmp_path: Path) -> None:
    """Records by hand: old = 1 - new for mas, 0.1 more for la, 0.2 more with the head modulated."""
    for seed in (0, 1):
        for old in ("a", "b"):
            for method, head, more in (("mas", False, 0.0), ("la", False, 0.1), ("la", True, 0.2)):
                for lam, new in ((1.0, 0.6), (2.0, 0.4), (3.0, 0.2)):
                    scores = {"new_valid": new, "old_valid": 1 - new + more, "new_test": 0.0, "old_test": 0.5}
                    one = {"study": "frontier", "stream": "s", "old": old, "new": "c", "seed": seed}
                    one |= {"method": method, "modulate_head": head, "lambda": lam} | scores
                    (tmp_path / f"{old}{seed}{method}{head}{lam}.json").write_text(json.dumps(one))
    (tmp_path / "other.json").write_text('{"study": "another"}')
    found = json.loads(script("frontier", "--report", "--json", "--out", str(tmp_path)))["s"]
    assert found["thr"]["la, valid, thr 0.9"]["mean"] is None, "no λ = 0"
    for name, more in (("la", 0.1), ("la, head", 0.2)):
        row = found["curves"][f"{name}, valid, all scores"]
        assert (row["pairs"], row["count"]) == (2, 4)
        assert row["mean"] == pytest.approx(more)
        assert row["interval"] == pytest.approx([more, more])
        assert row["area"] == pytest.approx(0.4 * more)
        assert found["curves"][f"{name}, valid, from 0.9 of the best"]["area"] == pytest.approx(0.06 * more)
        assert found["curves"][f"{name}, test, all scores"]["mean"] == 0
    one = {
        "study": "frontier",
        "stream": "s",
        "old": "a",
        "new": "c",
        "seed": 0,
        "method": "seq",
        "lambda": 0.0,
    }
    one |= {"modulate_head": False, "new_valid": 0.65, "old_valid": 0.0, "new_test": 0.0, "old_test": 0.0}
    (tmp_path / "free.json").write_text(json.dumps(one))
    found = json.loads(script("frontier", "--report", "--json", "--out", str(tmp_path)))["s"]["thr"]
    assert found["la, valid, thr 0.9"] == {  # .9 · .65 = .585: the λ whose new score is .6
        "pairs": 1, "count": 1, "better": 1, "mean": pytest.approx(0.1), "interval": pytest.approx([0.1, 0.1])
    }  # fmt: skip
    assert found["la, valid, thr 0.95"]["mean"] == 0, "none reaches .6175: λ = 0 for both"


def test_frontier(one_layer: str, tmp_path: Path) -> None:
    """Records are made once; the comparison is read from them."""
    words = ["--stream", "home", "--pairs", "home-1>home-2", "--model", one_layer, "--out", str(tmp_path)]
    words += ["--seeds", "0", "--lams", "0.1", "100", "--epochs", "1", "--json"]
    found = json.loads(script("frontier", *words))
    records = {path: path.read_text() for path in tmp_path.glob("*.json")}
    assert len(records) == 1 + 2 * 3
    assert script("frontier", *words) == script("frontier", *words, "--report")
    assert {path: path.read_text() for path in tmp_path.glob("*.json")} == records
    assert len(found["home"]["curves"]) == 8
    each = [json.loads(text) for text in records.values()]
    assert {(one["method"], one["modulate_head"]) for one in each} == {
        ("seq", False), ("mas", False), ("la", False), ("la", True)
    }  # fmt: skip


def test_serving(one_layer: str, tmp_path: Path) -> None:
    words = ("red", "blue", "music0", "mail1", "stock2", "food0")
    rows = [[f"{word} w{i} {word}", f"intent{i:02}"] for i in range(12) for word in words]
    data_dir = plant(tmp_path, train=rows, val=rows[:24], test=rows)
    common = ["--data-dir", str(data_dir), "--work", str(tmp_path / "work"), "--model", one_layer]
    few = ["--turns", "1", "--sentences", "5", "--tenants", "3", "--taught", "2", "--labels", "4"]
    found = json.loads(script("serving", *common, *few, "--out", str(tmp_path / "out")))
    assert found["tenants"]["in_memory"] == found["service"]["in_memory"] == 3
    assert 0 < found["service"]["start_mb"] < found["service"]["rss_mb"]
    assert found["parity"]["onnx"]["largest_difference_of_a_probability"] < 1e-4
    assert len(list((tmp_path / "out").iterdir())) == 1


def test_suggest(one_layer: str, tmp_path: Path) -> None:
    """Half of the intents can be hidden; both halves write a record."""
    words = ("red", "blue", "music0", "mail1", "stock2", "food0")
    rows = [[f"{word} w{i} {word}", f"intent{i:02}"] for i in range(12) for word in words]
    data_dir = plant(tmp_path, train=rows, val=[[f"{t} again", label] for t, label in rows], test=rows)
    common = ["--json", "--data-dir", str(data_dir), "--out", str(tmp_path / "out"), "--model", one_layer]
    for half in ([], ["--development"]):
        found = json.loads(script("suggest", *common, *half, "--seeds", "2", "--hidden", "3", "--lines", "2"))
        assert len(found["seeds"]) == 2
        assert 0 <= found["bars"]["ratio"]["worst"] <= 1.5
        assert all(len(one["hidden"]) == 3 and one["lines"] == 2 for one in found["seeds"])
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"clinc150.json", "development.json"}

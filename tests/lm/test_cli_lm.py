"""The `holdfast lm` commands with a tiny model, and their one-line error messages."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.tiny import pairs, saved

from holdfast.app import main as cli


def call(*arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["holdfast", *arguments])
    try:
        cli.main()
    except SystemExit as end:
        return int(end.code or 0)
    return 0


@pytest.fixture
def model(tmp_path: Path) -> str:
    return str(saved(tmp_path / "tiny"))


def data(path: Path, seed: int = 0) -> str:
    path.write_text(
        "\n".join(json.dumps({"prompt": pair.prompt, "answer": pair.answer}) for pair in pairs(12, seed))
    )
    return str(path)


def test_from_importance_to_a_protected_model(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = data(tmp_path / "old.jsonl"), data(tmp_path / "new.jsonl", 3)
    imp, tuned = str(tmp_path / "imp"), str(tmp_path / "tuned")
    common = ("--model", model, "--threads", "1")
    assert call("lm", "importance", *common, "--data", old, "--out", imp, monkeypatch=monkeypatch) == 0
    assert "importance from 12 sequences" in capsys.readouterr().out
    train = (
        "lm",
        "finetune",
        *common,
        "--data",
        new,
        "--protect",
        imp,
        "--lam",
        "1",
        "--out",
        tuned,
        "--steps",
        "3",
    )
    assert call(*train, "--lr", "0.01", monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "training: 3/3 steps" in shown
    assert "model: " in shown
    assert call("lm", "eval", "--model", tuned, "--data", old, monkeypatch=monkeypatch) == 2
    assert f"{tuned} holds no model; did you mean {tuned}/model?" in capsys.readouterr().err
    evaluate = ("lm", "eval", "--model", f"{tuned}/model", "--data", old, "--threads", "1")
    assert call(*evaluate, monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "loss " in shown
    assert "token accuracy " in shown


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("importance", "--out", "{out}", "--kind", "mass"), "is not one of 'mas', 'fisher'"),
        (("importance", "--out", "{out}", "--data", "cod"), "did you mean 'code'"),
        (("importance", "--out", "{out}", "--dtype", "int8"), "is not one of 'float32', 'bfloat16'"),
        (("importance", "--out", "{out}", "--data", "{broken}"), "line 2: broken JSON"),
        (
            ("importance", "--out", "{out}", "--data", "gsm8k", "--data-dir", "{out}"),
            "does not exist; download it from",
        ),
        (("finetune", "--out", "{out}", "--lam", "1"), "need --protect"),
        (("finetune", "--out", "{out}", "--protect", "{out}"), "needs a strength"),
        (  # checked before the model is loaded
            ("finetune", "--out", "{out}", "--protect", "{out}", "--lam", "1", "--model", "no/such"),
            "does not exist; measure an importance with: holdfast lm importance --out",
        ),
        (("finetune", "--out", "{out}", "--mode", "los"), "is not one of 'proximal', 'loss'"),
        (("eval", "--task", "hellaswag"), "is not one of 'perplexity', 'gsm8k', 'mbpp'"),
        (("eval", "--part", "train"), "is not one of 'test', 'valid'"),
        (("eval", "--model", "no/such/model"), "unknown model"),
    ],
)
def test_what_is_wrong_is_one_line(
    arguments: tuple[str, ...],
    expected: str,
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"prompt": "a", "answer": "b"}\n{"prompt"')
    filled = [word.format(out=tmp_path / "out", broken=broken) for word in arguments]
    given = [] if "--model" in filled else ["--model", model]
    assert call("lm", *filled, *given, monkeypatch=monkeypatch) == 2
    errors = capsys.readouterr().err.strip()
    assert expected in errors
    assert "\n" not in errors
    assert not (tmp_path / "out").exists()


def test_a_finished_importance_is_not_replaced(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, imp = data(tmp_path / "old.jsonl"), tmp_path / "imp"
    asked = ("lm", "importance", "--model", model, "--data", old, "--out", str(imp))
    assert call(*asked, monkeypatch=monkeypatch) == 0
    before = {path.name: path.read_bytes() for path in imp.iterdir()}
    capsys.readouterr()
    assert call(*asked, monkeypatch=monkeypatch) == 0
    shown = capsys.readouterr().out
    assert "already contains this importance from 12 sequences" in shown
    assert "measuring" not in shown
    assert call(*asked, "--count", "5", monkeypatch=monkeypatch) == 2
    wrong = capsys.readouterr().err.strip()
    assert "contains an importance of other settings (count); choose another folder, or delete" in wrong
    assert "\n" not in wrong
    assert {path.name: path.read_bytes() for path in imp.iterdir()} == before


def test_an_interrupted_importance_says_how_to_resume(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from holdfast.importance.sequences import SequenceSums

    imp, add = tmp_path / "imp", SequenceSums.add

    def interrupted(self: SequenceSums, *arguments: Any) -> None:
        if self.count == 7:
            raise KeyboardInterrupt
        add(self, *arguments)

    asked = ("lm", "importance", "--model", model, "--data", data(tmp_path / "old.jsonl"), "--out", str(imp))
    with monkeypatch.context() as patch:
        patch.setattr(SequenceSums, "add", interrupted)
        assert call(*asked, monkeypatch=monkeypatch) == 130
    assert "stopped; run the same command again to resume" in capsys.readouterr().err
    assert [path.name for path in imp.iterdir()] == ["partial.safetensors"]
    assert call(*asked, monkeypatch=monkeypatch) == 0
    assert "importance from 12 sequences" in capsys.readouterr().out


@pytest.mark.parametrize("made", ["file", "folder"])
def test_an_importance_does_not_go_where_other_things_are(
    model: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made: str,
) -> None:
    place, new = tmp_path / "project", data(tmp_path / "new.jsonl")
    own = place if made == "file" else place / "README.md"
    own.parent.mkdir(exist_ok=True)
    own.write_text("mine")
    asked = ("lm", "importance", "--model", model, "--data", new, "--out", str(place))
    assert call(*asked, monkeypatch=monkeypatch) == 2
    assert {"file": "cannot write to", "folder": "contains a README.md"}[made] in capsys.readouterr().err
    assert own.read_text() == "mine"


def test_the_importance_of_another_model_is_refused(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from helpers.tiny import llama

    imp, new = str(tmp_path / "imp"), data(tmp_path / "new.jsonl")
    assert (
        call("lm", "importance", "--model", model, "--data", new, "--out", imp, monkeypatch=monkeypatch) == 0
    )
    llama(7).save_pretrained(tmp_path / "tiny")
    train = ("lm", "finetune", "--model", model, "--data", new, "--protect", imp, "--lam", "1")
    assert call(*train, "--out", str(tmp_path / "out"), monkeypatch=monkeypatch) == 2
    assert "measured on different weights" in capsys.readouterr().err

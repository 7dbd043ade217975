"""--format json: every command has it, stdout holds one document, and the exit code is that of the text."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from helpers.command_line import call
from helpers.everyday import learnt_twice, rows_of, table
from helpers.records_by_hand import matrix, record_of
from helpers.tiny import pairs, saved
from helpers.web import serving

from holdfast.app.formats import add_format
from holdfast.app.main import app
from holdfast.app.terminal import console
from holdfast.data import fetch
from holdfast.errors import HoldfastError
from holdfast.serve import server
from holdfast.studies import lm_plan
from holdfast.studies.lm_plan import LMSpec
from holdfast.studies.suites import load_suite


def walked(group: typer.Typer, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the words and the function of every command."""
    for command in group.registered_commands:
        yield f"{name}{command.name or command.callback.__name__}", command.callback
    for inner in group.registered_groups:
        yield from walked(inner.typer_instance, f"{name}{inner.name} ")


COMMANDS = dict(walked(app))


@pytest.fixture(scope="module")
def made(one_layer: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a learner, files, records and a language model; nobody may change it."""
    place = tmp_path_factory.mktemp("formats")
    learnt_twice(place, one_layer)
    for name, rows in {
        "more.csv": rows_of(2),
        "test.csv": rows_of(0, "test"),
        "one.csv": rows_of(0)[:1],
        "texts.csv": rows_of(1, "test")[:2],
    }.items():
        table(place / name, rows)
    (place / "records").mkdir()
    for spec in load_suite("quick").specs:
        record = json.dumps(record_of(spec, matrix(0.1, 0.2, 0.3)))
        (place / "records" / f"{spec.digest()}.json").write_text(record)
    (place / "encoder").symlink_to(one_layer)
    saved(place / "tiny")
    lines = [json.dumps({"prompt": pair.prompt, "answer": pair.answer}) for pair in pairs(6)]
    (place / "pairs.jsonl").write_text("\n".join(lines))
    return place


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it as the working directory."""
    shutil.copytree(made, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


A, B = sorted({label for _, label in rows_of(0)})
STUDY = "--old pairs.jsonl --new pairs.jsonl --steps 1 --items 2 --max-tokens 32"
TUNE = "lm finetune --model tiny --data pairs.jsonl --steps 1 --out tuned"
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "learn": ("learn mine more.csv", {"generation": 3, "already_learnt": False}),
    "predict": ("predict mine --file texts.csv --top 2", {"state": "mine"}),
    "export": ("export mine artefact", {"directory": "artefact", "generation": 2}),
    "eval": ("eval mine test.csv", {"passed": True, "sentences": len(rows_of(0, "test"))}),
    "compare": ("compare mine --generations 1 2 --file test.csv", {"generations": [1, 2]}),
    "inspect": ("inspect mine", {"method": "auto", "lessons": 2}),
    "verify": ("verify mine", {"current": 2}),
    "rollback": ("rollback mine 1", {"generation": 1}),
    "forget-label": (f"forget-label mine {A}", {"generation": 3, "known": True}),
    "remove": ("remove mine one.csv", {"generation": 3, "exact": True, "sentences": 1}),
    "relabel": ("relabel mine one.csv --to other", {"generation": 3, "exact": True}),
    "rename-label": (f"rename-label mine {A} other", {"gone": [A]}),
    "merge-labels": (f"merge-labels mine {A} {B} --into {A}", {"gone": [B]}),
    "merge": ("merge mine mine --again", {"generation": 3}),
    "suggest": ("suggest mine texts.csv -n 1", {}),
    "drift": ("drift mine texts.csv", {"texts": 2}),
    "methods": ("methods", {}),
    "data list": ("data list", {}),
    "data show": ("data show more.csv", {"scenario": "class-incremental"}),
    "models list": ("models list", {}),
    "report": ("report records", {"missing": 0}),
    "bench": ("bench quick --out records", {"runs": 6, "failed": []}),
    "run": (
        "run --method slda --stream more.csv --model encoder --out out --set epochs=1",
        {"tasks": ["more"]},
    ),
    "demo": ("demo --model encoder --out demo", {"folder": "demo"}),
    "lm importance": ("lm importance --model tiny --data pairs.jsonl --out imp", {"sequences": 6}),
    "lm finetune": (TUNE, {"model": "tuned/model"}),
    "lm eval": ("lm eval --model tiny --data pairs.jsonl", {"task": "perplexity"}),
    "lm study": (
        f"lm study --model tiny {STUDY} --out study",
        {"out": "study", "report": "study/report.html"},
    ),
    "data get": ("data get annomi-raw --data-dir data", {"stream": "annomi-raw", "folder": "data"}),
    "models get": ("models get minilm", {"model": "minilm"}),
    "serve": ("serve mine --port 0", {"state": "mine"}),
}
SLOW = {"demo", "lm importance", "lm finetune", "lm eval", "run", "report", "bench", "export", "merge"}
SLOW |= {"lm study", "relabel", "rename-label", "merge-labels", "compare"}  # tests/everyday runs them as well


@pytest.fixture
def endpoints(here: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Replace what is fetched from elsewhere or would run for hours by something small on this machine."""
    file = b"transcript_id,utterance_text\n1,hello\n"
    with serving(lambda path: file if path.endswith("/AnnoMI-simple.csv") else None) as (url, _):
        sums = {"annomi_raw/AnnoMI-simple.csv": hashlib.sha256(file).hexdigest()}
        monkeypatch.setattr(fetch, "_checksums", lambda: sums)
        monkeypatch.setitem(fetch.fetch.__kwdefaults__, "base_url", url)
        monkeypatch.setenv("HOLDFAST_CACHE", str(here / "cache"))
        (here / "cache" / "models" / "minilm").mkdir(parents=True)
        monkeypatch.setattr(server.uvicorn.Server, "run", lambda self, sockets: None)
        monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)

        def short() -> Any:
            yield [LMSpec("untouched", stage="rates")]
            return {}

        monkeypatch.setattr(lm_plan, "study", short)
        yield


def test_every_command_has_a_case() -> None:
    assert set(COMMANDS) == set(CASES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES]
)
def test_a_command_answers_with_one_document(name: str, here: Path, endpoints: None, capsys) -> None:
    line, expected = CASES[name]
    assert call(*line.split(), "--format", "json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    assert answer
    assert answer | expected == answer
    assert not console.stderr, "later commands print on stdout again"


def test_a_service_says_where_it_is_in_both_formats(here: Path, endpoints: None, capsys) -> None:
    """Before it serves, so that a program that has started it can go on."""
    capsys.readouterr()
    assert call("serve", "mine", "--port", "0", "--format", "json") == 0
    found = json.loads(capsys.readouterr().out)
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/", found["address"])
    assert len(found["token"]) > 20
    (here / "token").write_text("a" * 20)
    assert call("serve", "mine", "--port", "0", "--format", "json", "--token-file", "token") == 0
    assert json.loads(capsys.readouterr().out)["token"] is None, "the given token is not printed"
    assert call("serve", "mine", "--port", "0") == 0
    assert re.match(r"serving mine at http://127\.0\.0\.1:\d+/#token=\S+\nwhoever", capsys.readouterr().out)


def test_what_people_read_goes_to_stderr(here: Path, capsys) -> None:
    assert call("inspect", "mine") == 0
    shown = capsys.readouterr()
    assert call("inspect", "mine", "--format", "json") == 0
    both = capsys.readouterr()
    assert both.err == shown.out
    labels = json.loads(both.out)["labels"]
    assert labels[A] == sum(label == A for _, label in rows_of(0))


def test_a_mistake_is_one_line_and_no_document(here: Path, capsys) -> None:
    for line in ("eval mine nosuch.csv", "rollback mine 9", "remove mine", "learn mine more.csv --set x"):
        assert call(*line.split(), "--format", "json") == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert len(shown.err.strip().splitlines()) == 1
    assert call("inspect", "mine", "--format", "yaml") == 2


def test_the_option_is_added_once() -> None:
    def own(format: str = "text") -> dict[str, Any]:
        return {"given": format}

    def without() -> dict[str, Any]:
        raise HoldfastError("wrong")

    assert list(add_format(own).__signature__.parameters) == ["format"]
    assert list(add_format(without).__signature__.parameters) == ["format"]
    with pytest.raises(HoldfastError):
        add_format(without)(format="json")
    assert not console.stderr


# ---- exit codes ---------------------------------------------------------------------------------------


def test_a_score_below_the_demanded_one_ends_with_1(here: Path, capsys) -> None:
    evaluate = ("eval", "mine", "test.csv", "--format", "json")
    assert call(*evaluate) == 0
    found = json.loads(capsys.readouterr().out)
    score = found["macro_f1"]
    assert call(*evaluate, "--fail-under", f"{score:.3f}"[:-1]) == 0
    capsys.readouterr()
    assert call(*evaluate, "--fail-under", "1") == (0 if score == 1 else 1)
    shown = capsys.readouterr()
    again = json.loads(shown.out)
    assert again["passed"] is (score == 1)
    table(here / "wrong.csv", [(text, A if label == B else B) for text, label in rows_of(0, "test")])
    assert call("eval", "mine", "wrong.csv", "--fail-under", "0.9") == 1
    assert "is below --fail-under 0.9" in capsys.readouterr().err
    assert call("eval", "mine", "test.csv", "--fail-under", "90") == 2


def test_confusions_come_first_and_add_up(here: Path, capsys) -> None:
    table(here / "wrong.csv", [(text, A if label == B else B) for text, label in rows_of(0, "test")])
    assert call("eval", "mine", "wrong.csv", "--format", "json") == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    numbers = [one["sentences"] for one in found["confusions"]]
    assert numbers == sorted(numbers, reverse=True)
    right = sum(one["recall"] * one["sentences"] for one in found["labels"])
    assert sum(numbers) + right == pytest.approx(found["sentences"])
    assert shown.err.index("predicted") < shown.err.index("precision")


def test_an_earlier_generation_is_evaluated(here: Path, capsys) -> None:
    source = table(here / "later.csv", rows_of(1, "test"))
    for number, known in (("1", False), ("2", True)):
        assert call("eval", "mine", source, "--generation", number, "--format", "json") == 0
        found = json.loads(capsys.readouterr().out)
        assert found["generation"] == int(number)
        assert bool(found["never_learnt"]) is not known
    assert call("eval", "mine", source, "--generation", "7") == 2

"""The language model study with a tiny Llama: plan, choices, records and report."""

from __future__ import annotations

import io
import json
import multiprocessing
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.command_line import call
from helpers.tiny import llama, pairs, tokenizer
from rich.console import Console

from holdfast.app.display import SuiteDisplay
from holdfast.bench.engine import Engine, JobEvent, Local
from holdfast.bench.worker import Job
from holdfast.errors import HoldfastError
from holdfast.lm.text import encode
from holdfast.report.plots import Plot
from holdfast.studies import lm_plan
from holdfast.studies import lm_study as module
from holdfast.studies.lm_plan import FINE, RATES, LMSpec, follow, study
from holdfast.studies.lm_report import StudyRecords, compared, frontier, strengths, write_study
from holdfast.studies.lm_study import COLLAPSED, Ability, Size, Study, correlation, named_study, records_of

SIZE = Size(steps=3, batch=4, max_tokens=32, items=6)


def ability(name: str, seed: int) -> Ability:
    return Ability(name, *(encode(pairs(16, 10 * seed + i), tokenizer(), 32) for i in range(3)))


class Noted(Study):
    """A study that logs its trainings to a file."""

    def train(self, trial: LMSpec) -> dict[str, Any]:
        with (self.out / "trained.txt").open("a") as file:
            file.write(f"{trial.words}\n")
        return super().train(trial)


def tiny_study(out: Path) -> Study:
    out.mkdir(exist_ok=True)
    return Noted(lambda dtype: llama().to(dtype), "tiny", 2, ability("old", 1), ability("new", 2), out, SIZE)


class InProcess(Engine):
    """Run the jobs of a study in this process."""

    def __init__(self, work: Study) -> None:
        self.work = work

    def at_once(self, threads: int) -> int:
        return 1

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        for number, job in enumerate(jobs):
            yield JobEvent(number, {"kind": "begun"})
            self.work.record(LMSpec.of(job.spec))
            yield JobEvent(number, {"kind": "done"})


def board(total: int, at_once: int) -> SuiteDisplay:
    return SuiteDisplay(Console(file=io.StringIO(), width=200), total, at_once, module.outcome)


def run(out: Path, plan: Any) -> dict[str, Any]:
    work = tiny_study(out)
    return work.run(plan, InProcess(work), board)


def played(losses: Any) -> tuple[list[LMSpec], dict[str, Any]]:
    """Run the plan with given losses."""
    seen: list[LMSpec] = []

    def answer(trials: list[LMSpec]) -> list[dict[str, Any]]:
        seen.extend(trials)
        found = map(losses, trials)
        return [{"old": {"valid": {"loss": old}}, "new": {"valid": {"loss": new}}} for old, new in found]

    return seen, follow(study(), answer) or {}


def test_rates_and_strength_are_chosen_on_validation_losses() -> None:
    def losses(trial: LMSpec) -> tuple[float, float]:
        if trial.kind == "naive":
            return {2e-5: 1.6, 5e-5: 1.60, 1e-4: 1.62, 2e-4: 1.66, 4e-4: 1.9}[trial.lr], abs(trial.lr - 1e-4)
        if trial.kind == "mas":
            return 1.6, abs(trial.strength - 0.001)
        return 1.6, 1.6

    seen, chosen = played(losses)
    assert chosen == {"best rate": 1e-4, "harsh rate": 2e-4, "chosen lambda": 0.001}
    sweep = [trial for trial in seen if trial.stage == "sweep" and trial.kind == "mas"]
    assert {trial.strength for trial in sweep} == {0.01, 0.1, 1.0, 10.0, 100.0, 1000.0}
    assert {trial.lr for trial in sweep} == {1e-4}
    assert (
        sum(trial.mode == "proximal" for trial in sweep)
        == 3 * sum(trial.mode == "loss" for trial in sweep)
        == 18
    )
    assert {trial.kind for trial in seen if trial.stage == "frontier"} == {
        *("l2", "flow", "wise", "la-merge", "mas")
    }
    for kind in ("mas", "la"):
        own = [trial for trial in seen if trial.stage == "harsh" and trial.kind == kind]
        assert {(trial.strength, trial.seed) for trial in own} == {(lam, s) for lam in FINE for s in range(3)}
    for kind, many in {"l2": 3, "flow": 3, "wise": 3, "la-merge": 4}.items():
        assert len({trial.strength for trial in seen if trial.kind == kind}) == many
    raw = [trial for trial in sweep if trial.mode == "loss"]
    assert all(trial.normalise == "none" for trial in raw), "the paper's form: raw importance"
    one = [trial for trial in seen if trial.stage == "elimination"]
    plain = LMSpec("mas", 1e-4, 1.0, mode="loss", normalise="none").spec()
    assert one[0].spec() == plain
    for trial in one[1:5]:
        assert sum(trial.spec()[name] != value for name, value in plain.items()) == 1, "exactly one change"
    assert [trial.kind for trial in one[5:]] == ["naive"] * 3, "controls without a penalty"


def test_where_nothing_is_harmed_the_highest_rate_is_the_harsh_one() -> None:
    _, chosen = played(lambda trial: (1.0, 1.0))
    assert chosen["harsh rate"] == 4e-4


@pytest.mark.slow
def test_a_whole_study_and_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    original = module.finetune

    def counted(model: Any, *args: Any, **kwargs: Any) -> float:
        trained.append(args)
        return original(model, *args, **kwargs)

    monkeypatch.setattr(module, "finetune", counted)
    chosen = run(tmp_path, study((0.01, 0.05), (0.1, 10.0), (0, 1)))
    assert set(chosen) == {"best rate", "harsh rate", "chosen lambda"}
    found = records_of(tmp_path)
    for record in found:
        for ability_name in ("old", "new"):
            assert record[ability_name]["test"]["tokens"] > 0
    usual = [r for r in found if (r["spec"]["kind"], r["spec"]["clip"]) == ("naive", 1.0)]
    assert all("correlation" in record for record in usual if record["spec"]["dtype"] == "float32")
    merges = sum(record["spec"]["kind"] in ("wise", "la-merge", "untouched") for record in found)
    assert len(trained) == len(found) - merges, "one training per record that needs one"
    trained.clear()
    run(tmp_path, study((0.01, 0.05), (0.1, 10.0), (0, 1)))
    assert not trained
    page = write_study(tmp_path, study((0.01, 0.05), (0.1, 10.0), (0, 1))).read_text()
    for title in (
        "plain fine-tuning at each rate",
        "as a proximal step",
        "one change at a time",
        "Old against new ability",
        "Strength of the penalty",
    ):
        assert title in page
    text = (tmp_path / "report.md").read_text()
    assert "| mas | loss | - |" in text
    assert "missing" not in text
    # A deleted record is recreated with the same values.
    path = next(path for path in tmp_path.glob("*.json") if '"la"' in path.read_text())
    before = json.loads(path.read_text())
    path.unlink()
    run(tmp_path, study((0.01, 0.05), (0.1, 10.0), (0, 1)))
    after = json.loads(path.read_text())
    assert {k: v for k, v in before.items() if k != "seconds"} == {
        k: v for k, v in after.items() if k != "seconds"
    }
    assert len(trained) == 1


def test_correlation_by_hand() -> None:
    start = {"layers.0.w": torch.zeros(4), "layers.1.w": torch.zeros(4)}
    end = {
        "layers.0.w": torch.tensor([1.0, -2.0, 3.0, -4.0]),
        "layers.1.w": torch.tensor([1.0, 2.0, 3.0, 4.0]),
    }
    alpha = {
        "layers.0.w": torch.tensor([2.0, 4.0, 6.0, 8.0]),
        "layers.1.w": torch.tensor([4.0, 3.0, 2.0, 1.0]),
    }
    found = correlation(start, end, alpha)
    assert sorted(found["layers"].values()) == pytest.approx([-1.0, 1.0])
    assert (found["min"], found["max"], found["mean"]) == pytest.approx((-1.0, 1.0, 0.0))


def test_correlation_by_kind_of_weight() -> None:
    names = ("layers.0.mlp.up.weight", "layers.1.mlp.up.weight", "layers.0.norm.weight")
    start = {name: torch.zeros(3) for name in names}
    end = {name: torch.tensor([1.0, 2.0, 3.0]) for name in names[:2]} | {names[2]: torch.zeros(3)}
    alpha = {names[0]: torch.tensor([1.0, 2.0, 3.0]), names[1]: torch.tensor([3.0, 2.0, 1.0])}
    alpha[names[2]] = torch.tensor([1.0, 2.0, 3.0])
    kinds = correlation(start, end, alpha)["kinds"]
    assert kinds["up"] == pytest.approx({"min": -1.0, "median": 0.0, "mean": 0.0, "max": 1.0})
    assert kinds["norm"] == dict.fromkeys(("min", "median", "mean", "max")), "undefined for unchanged weights"


def _make_all(out: Path) -> None:
    trials = [LMSpec("untouched"), *(LMSpec("naive", 0.01, seed=seed) for seed in range(3))]
    work = tiny_study(out)
    work.records(trials, InProcess(work), board)


@pytest.mark.slow
def test_two_processes_share_a_study(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    both = [spawn.Process(target=_make_all, args=(tmp_path / "two",)) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join(timeout=300)
        assert one.exitcode == 0
    _make_all(tmp_path / "one")
    two, one = (records_of(tmp_path / name) for name in ("two", "one"))
    assert len(two) == 4
    for name in ("one", "two"):
        assert len((tmp_path / name / "trained.txt").read_text().splitlines()) == 4, "each training ran once"
    assert [{**r, "seconds": 0} for r in two] == [{**r, "seconds": 0} for r in one]


def write_pairs(path: Path, seed: int) -> None:
    rows = (json.dumps({"prompt": one.prompt, "answer": one.answer}) for one in pairs(48, seed))
    path.write_text("\n".join(rows))


def named(folder: Path) -> list[str]:
    """Save a model and two abilities; return their paths."""
    llama().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    write_pairs(folder / "old.jsonl", 0)
    write_pairs(folder / "new.jsonl", 1)
    return [str(folder / name) for name in ("model", "old.jsonl", "new.jsonl")]


@pytest.mark.slow
def test_the_command_makes_records_and_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`holdfast lm study` with a short plan and real workers."""

    def short() -> Any:
        yield [LMSpec("untouched", stage="rates"), LMSpec("naive", 0.01, stage="rates")]
        return {}

    monkeypatch.setattr(lm_plan, "study", short)
    model, old, new = named(tmp_path)
    words = ["--model", model, "--old", old, "--new", new, "--steps", "3", "--items", "6", "--jobs", "2"]
    out = tmp_path / "out"
    assert call("lm", "study", *words, "--max-tokens", "32", "--out", str(out)) == 0
    said = capsys.readouterr().out
    assert "0 of 2 runs exist; 2 to make, 2 in parallel" in said
    assert re.search(r"\[2/2\] rates: \w.*: old \d\.\d{3}, new \d\.\d{3} in", said)
    assert len(records_of(out)) == 2
    assert "| naive | - | - | 0.01 |" not in (out / "report.md").read_text(), ()
    assert (out / "report.html").exists()
    assert call("lm", "study", *words, "--max-tokens", "32", "--out", str(out)) == 0
    assert "to make" not in capsys.readouterr().out, "existing records are not made again"


@pytest.mark.slow
def test_workers_make_what_this_process_would(tmp_path: Path) -> None:
    """Two workers produce the same records as this process."""
    names = named(tmp_path)
    trials = [LMSpec("untouched"), LMSpec("naive", 0.01), LMSpec("mas", 0.01, 1.0), LMSpec("la", 0.01, 1.0)]
    found = {}
    for where in ("here", "workers"):
        work = named_study(*names, tmp_path / where, SIZE, None)
        engine = InProcess(work) if where == "here" else Local(2)
        found[where] = work.records(trials, engine, board)
    assert [{**one, "seconds": 0} for one in found["here"]] == [
        {**one, "seconds": 0} for one in found["workers"]
    ]
    write_pairs(tmp_path / "new.jsonl", 2)
    work.path(trials[1]).unlink()
    with pytest.raises(HoldfastError, match=r"naive lr 0\.01: the data has changed"):
        work.records(trials, Local(1), board)


def record(trial: LMSpec, old: float, new: float, moved: float = 0.0) -> dict[str, Any]:
    """Return a record with these losses."""
    losses = {"old": old, "new": new}
    about = {"spec": {"model": "tiny", **trial.spec()}, "moved": moved, "digest": "abc"}
    return about | {
        name: {part: {"loss": value} for part in ("valid", "test")} for name, value in losses.items()
    }


def test_a_study_that_is_not_finished_shows_what_is_missing(tmp_path: Path) -> None:
    """Naive gains 0.4 and harms by 0.2; the protected training has 3/4 of the gain and 1/4 of the damage."""
    made = {
        LMSpec("untouched"): (1.0, 2.0),
        **{LMSpec("naive", rate): (1.2, 1.6) for rate in RATES},
        LMSpec("mas", RATES[0], 0.001): (1.05, 1.7),
    }
    for trial, losses in made.items():
        name = f"{trial.kind}-{trial.lr:g}-{trial.strength:g}-{trial.seed}"
        (tmp_path / f"{name}.json").write_text(json.dumps(record(trial, *losses)))
    (tmp_path / "other.json").write_text("[]")
    page = write_study(tmp_path, about={"model": "tiny"}).read_text()
    text = (tmp_path / "report.md").read_text()
    assert "| mas | proximal | - | 2e-05 | 0.001 | 1/3 | 1.050 | 1.700 | 75 % | 25 % |" in text
    assert "| mas | proximal | - | 2e-05 | 0.0001 | 0/3 | missing | missing | - | - |" in text
    assert "records planned so far" in text
    assert "mas-2e-05-0.001-0.json" in page, "numbers link to their records"
    [share] = [part for part in page.split("</td>") if part.endswith("75 %") or ">75 %<" in part]
    assert all(name in share for name in ("mas-2e-05-0.001-0", "naive-2e-05-0-0", "untouched-0-0-0"))
    write_study(tmp_path, about={"model": "another"})
    assert "75 %" not in (tmp_path / "report.md").read_text()


def test_the_frontier_compares_the_same_seeds():
    """A seed that only some methods have is left out."""
    gentle, rate = 0.001, 0.01
    records = [
        record(LMSpec("untouched"), 1.0, 2.0),
        record(LMSpec("naive", gentle), 1.01, 1.5),
        record(LMSpec("naive", rate), 1.2, 1.6),
        record(LMSpec("naive", rate, seed=1), 1.8, 1.6),
        record(LMSpec("mas", rate, 0.001), 1.1, 1.7),
        record(LMSpec("mas", rate, 0.001, seed=1), 1.5, 1.7),
        record(LMSpec("l2", rate, 0.001), 1.15, 1.75),
    ]
    plan = (gentle, rate), (0.1, 10.0), (0, 1)
    figure = frontier(StudyRecords(records, study(*plan)))
    assert figure is not None
    assert isinstance(figure.content, Plot)
    points = {line.name: (line.x, line.y) for line in figure.content.series}
    assert points == {
        "naive, by rate": ([1.5, 1.6], [1.01, 1.2]),
        "l2": ([1.75], [1.15]),
        "mas": ([1.7], [1.1]),
        "untouched": ([2.0], [1.0]),
    }
    assert frontier(StudyRecords(records[:1], study(*plan))) is None


def test_relative_importance_is_compared_at_the_same_strength_and_as_far_away():
    """LA at 0.001 moved by 7, half-way between MAS at 0.001 (6) and at 0.0001 (8)."""
    rate = 0.01
    records = [
        record(LMSpec("untouched"), 1.0, 2.0),
        record(LMSpec("naive", rate), 1.6, 1.4, moved=10.0),
        record(LMSpec("mas", rate, 0.0001), 1.4, 1.5, moved=8.0),
        record(LMSpec("mas", rate, 0.001), 1.2, 1.6, moved=6.0),
        record(LMSpec("la", rate, 0.001), 1.25, 1.5, moved=7.0),
        record(LMSpec("la", rate, 0.01), 1.0, 1.9, moved=1.0),
    ]
    table = compared(StudyRecords(records, study((rate,), (0.1,), (0,))))
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in table.rows}
    assert rows["0.0001"] == ["0/1"] + ["missing"] * 4
    assert rows["0.001"] == ["1/1", "+0.050", "-0.100", "-0.050", "-0.050"]
    assert rows["0.01"] == ["0/1"] + ["missing"] * 4, "no MAS training to compare with"
    lost = record(LMSpec("mas", rate, 0.01), COLLAPSED, COLLAPSED)
    del lost["moved"]  # a collapsed training has no distance
    again = compared(StudyRecords([*records, lost], study((rate,), (0.1,), (0,))))
    assert [[cell.text for cell in row] for row in again.rows] == [
        [cell.text for cell in row] for row in table.rows
    ]


def test_the_sweep_is_drawn_between_its_ends():
    """Seeds are averaged, and a collapsed training is left out."""
    rate = 0.01
    records = [
        record(LMSpec("untouched"), 1.0, 2.0),
        record(LMSpec("naive", rate), 1.2, 1.6),
        record(LMSpec("mas", rate, 10.0), 1.0, 1.9),
        record(LMSpec("mas", rate, 10.0, seed=1), 1.1, 2.0),
        record(LMSpec("mas", rate, 0.1, mode="loss", normalise="none"), 1.1, 1.7),
        record(LMSpec("mas", rate, 10.0, mode="loss", normalise="none"), COLLAPSED, COLLAPSED),
    ]
    figure = strengths(StudyRecords(records, study((rate,), (0.1, 10.0), (0, 1))))
    assert figure is not None
    assert isinstance(figure.content, Plot)
    drawn = {line.name: (line.x, line.y) for line in figure.content.series}
    assert drawn == {
        "old, proximal": ([10.0], [1.05]),
        "old, loss": ([0.1], [1.1]),
        "old, untouched": ([0.1, 10.0], [1.0, 1.0]),
        "old, naive": ([0.1, 10.0], [1.2, 1.2]),
        "new, proximal": ([10.0], [1.95]),
        "new, loss": ([0.1], [1.7]),
        "new, untouched": ([0.1, 10.0], [2.0, 2.0]),
        "new, naive": ([0.1, 10.0], [1.6, 1.6]),
    }
    assert strengths(StudyRecords(records[:2], study((rate,), (0.1, 10.0), (0, 1)))) is None

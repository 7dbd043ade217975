"""Reports on what users do: data that changes or moves, variants side by side, studies half done."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.records_by_hand import matrix, record_of
from helpers.reports import put, spec, tables_of

from holdfast.bench import Spec
from holdfast.bench.bench import _keep_manifest
from holdfast.bench.suite import Suite
from holdfast.report import page
from holdfast.report.figures import search_trace
from holdfast.report.means import against_best
from holdfast.report.plots import Plot
from holdfast.report.runs import Run
from holdfast.report.statistics import holm
from holdfast.studies.views import write_report


def texts(table: Any) -> list[list[str]]:
    return [[cell.text for cell in row] for row in table.rows]


def own_stream(folder: Path, word: str) -> str:
    for name in ("a", "b", "c"):
        place = folder / f"{name}.csv"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(f"text,label\n{word} {name},x\nother {name},y\n")
    return str(folder)


def test_records_of_data_as_it_was_before_give_way(tmp_path: Path) -> None:
    """A file is edited and the suite run again: the table is of the new data alone, and says so."""
    out = tmp_path / "out"
    for number, word in enumerate(("old", "new")):
        stream = own_stream(tmp_path / "mine", word)
        specs = tuple(Spec.create(method=method, stream=stream) for method in ("seq", "mas"))
        for one in specs:
            put(out, one, matrix(0.5 + 0.3 * number, 0.5, 0.5))
            os.utime(out / f"{one.digest()}.json", (number + 1, number + 1))
        _keep_manifest(Suite("mine", specs), out)
        newest = {one.digest() for one in specs}
    assert {run["digest"] for run in json.loads((out / "mine.suite.json").read_text())["runs"]} == newest
    written = write_report(out)
    [(section, _)] = written.sections
    assert {run.digest for run in section.made} == newest
    assert len(written.complaints) == 2
    (out / "mine.suite.json").unlink()  # by themselves, the newest count
    assert {run.digest for run in write_report(out).sections[0][0].made} == newest


def test_data_that_has_moved_is_one_study(tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = Spec.create(method="seq", stream=own_stream(tmp_path / "mine", "word"))
    after = Spec.create(method="mas", stream=own_stream(tmp_path / "elsewhere", "word"))
    put(out, before, matrix(0.1, 0.1, 0.9))
    put(out, after, matrix(0.5, 0.5, 0.9))
    moved = Spec.create(method="seq", stream=after.stream)
    assert moved.digest() == before.digest()
    _keep_manifest(Suite("mine", (moved, after)), out)
    [(section, tables)] = write_report(out).sections
    assert len(section.made) == 2
    assert texts(tables[0])[1][5] != "-", "forward transfer has its seq beside it"


def test_an_order_has_one_name(tmp_path: Path) -> None:
    stream = own_stream(tmp_path, "word")
    assert Spec.create(method="seq", stream=stream, order="1") == Spec.create(method="seq", stream=stream)
    assert Spec.create(method="seq", stream="home", order="1").order is None
    assert Spec.create(method="seq", stream="hwu64").order == "1"
    assert Spec.create(method="seq", stream=stream, order="2").order == "2"
    old = Spec.create(method="seq", stream="home").to_json() | {"order": "1"}
    assert Spec.from_json(old).order is None


def test_forward_transfer_is_measured_against_the_plain_seq(tmp_path: Path) -> None:
    put(tmp_path, spec("seq"), matrix(0.0, 0.0, 0.9))
    put(tmp_path, spec("seq", 1, 0, "lr=0.01"), [[0.9, None, None], [0.1, 0.2, None], [0.0, 0.0, 0.1]])
    put(tmp_path, spec("la"), matrix(0.5, 0.6, 0.9))
    rows = {row[0]: row for row in texts(tables_of(tmp_path)["main"])}
    assert rows["la"][5] == "0.00"
    assert rows["seq"][5] == rows["seq (lr 0.01)"][5] == "-"
    (tmp_path / f"{spec('seq').digest()}.json").unlink()
    rows = {row[0]: row for row in texts(tables_of(tmp_path)["main"])}
    assert rows["la"][5] == "75.00", "the only one there is"


@pytest.mark.parametrize(("view", "field"), [("thresholds", "thr"), ("tau", "fraction")])
def test_variants_of_a_row_are_rows_of_their_own(tmp_path: Path, view: str, field: str) -> None:
    specs = [spec("seq", 2), *(spec("la", 2, 0, f"{field}=0.7", *more) for more in ((), ("strategy=kt",)))]
    for one, last in zip(specs, (0.0, 0.3, 0.6), strict=True):
        put(tmp_path, one, matrix(last, last, 0.9))
    runs = [{"digest": one.digest(), "spec": one.to_json()} for one in specs]
    manifest = {"suite": "mine", "about": "", "view": view, "runs": runs}
    (tmp_path / "mine.suite.json").write_text(json.dumps(manifest))
    shown = [row for row in texts(tables_of(tmp_path)[view]) if view == "thresholds" or row[0] == "3"]
    assert len(shown) == 2
    assert sum("strategy kt" in " ".join(row) for row in shown) == 1
    assert ["50.00" in row for row in shown] != ["70.00" in row for row in shown]


def test_a_study_half_done_has_a_best_one_too() -> None:
    """By hand: la and mas share two orders, and no order is everybody's."""
    places = {number: (str(number), 0) for number in (1, 2, 3, 4)}
    found = {
        "la": {places[1]: 0.5, places[2]: 0.6},
        "mas": {places[1]: 0.4, places[2]: 0.45},
        "ewc": {places[3]: 0.9, places[4]: 0.8},
    }
    best, others = against_best(found)
    assert best == "la"
    assert others.keys() == {"mas"}
    del found["mas"]
    assert against_best(found) == ("", {}), "alone at its places, nothing is the best"


def test_a_gap_that_never_varies_is_not_a_certainty(tmp_path: Path) -> None:
    for order in (1, 2):
        put(tmp_path, spec("la", order), matrix(0.5, 0.5, 0.5))
        put(tmp_path, spec("seq", order), matrix(0.25, 0.25, 0.25))
    [row] = texts(tables_of(tmp_path)["compared"])
    assert row[3:] == ["+25.00", "-", "-"]
    assert holm([0.01, float("nan"), 0.02])[0] == pytest.approx(0.03), "three were looked at"


def test_numbers_that_are_none_are_left_out_with_a_line(tmp_path: Path) -> None:
    put(tmp_path, spec("seq"), matrix(0.1, 0.1, 0.9))
    spoilt = record_of(spec("la"), matrix(0.1, 0.1, 0.9))
    spoilt["scores"]["test"][2][0] = float("nan")
    (tmp_path / f"{spec('la').digest()}.json").write_text(json.dumps(spoilt))
    written = write_report(tmp_path)
    assert len(written.complaints) == 1
    assert [run.method for run in written.sections[0][0].made] == ["seq"]


PLOT, LEFT_OUT = "<svg viewBox", "Left out, to limit the size of this page"


def test_many_settings_share_the_room_of_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spread = {f"layer.{i}.weight": {"bins": [7] * 20, "mean": 0.3, "tau": 0.2} for i in range(24)}
    for number in range(10):
        one = spec("la", 1, 0, f"epochs={number + 1}")
        put(tmp_path, one, matrix(0.1, 0.2, 0.3), chosen={"spread": spread, "lam": 1.0})
    whole = write_report(tmp_path).page.read_text()
    assert LEFT_OUT not in whole
    monkeypatch.setattr(page, "ROOM", 90_000)
    small = write_report(tmp_path).page.read_text()
    assert LEFT_OUT in small
    assert len(whole) > 200_000
    assert len(small) < 90_000 + 20_000, "frame, style, titles and folds come on top of tables and figures"
    assert whole.count(PLOT) > small.count(PLOT) > 0
    assert small.count("main table</h3>") == 10, "every section has its main table"


def test_a_table_that_does_not_fit_shows_its_first_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(60):
        put(tmp_path, spec("la", 1, seed), matrix(0.1, 0.2, 0.3))
    monkeypatch.setattr(page, "ROOM", 20_000)
    written = write_report(tmp_path)
    found = re.search(r"(\d+) more rows are in tables/(01-\w+)\.csv", written.page.read_text())
    assert found is not None
    rows = (tmp_path / "tables" / f"{found[2]}.csv").read_text().splitlines()
    assert 0 < int(found[1]) < len(rows) - 1


def test_forward_transfer_finds_seq_beside_a_suite(tmp_path: Path) -> None:
    """A run made by itself, into a folder where a suite has run seq."""
    plain, loose = spec("seq"), spec("ewc")
    put(tmp_path, plain, matrix(0.0, 0.0, 0.9))
    put(tmp_path, loose, matrix(0.5, 0.6, 0.8))
    _keep_manifest(Suite("mine", (plain,)), tmp_path)
    found = {section.title: tables[0] for section, tables in write_report(tmp_path).sections}
    [row] = next(table.rows for title, table in found.items() if not title.startswith("mine"))
    assert row[0].text == "ewc"
    assert row[5].text != "-"
    assert plain.digest() in row[5].records


def test_one_bad_entry_leaves_the_rest_of_a_plan(tmp_path: Path) -> None:
    good, bad = spec("seq"), spec("la").to_json() | {"set": {"thr": 1.5}}
    put(tmp_path, good, matrix(0.0, 0.0, 0.9))
    runs = [{"digest": good.digest(), "spec": good.to_json()}, {"digest": "0" * 16, "spec": bad}]
    manifest = {"suite": "mine", "about": "", "view": "main", "runs": runs}
    (tmp_path / "mine.suite.json").write_text(json.dumps(manifest))
    written = write_report(tmp_path)
    assert ["run 2 left out" in line for line in written.complaints] == [True]
    assert [section.title.split(",")[0] for section, _ in written.sections] == ["mine"]


def test_sentences_that_changed_under_a_name_are_told(tmp_path: Path) -> None:
    for method, data in (("seq", "a"), ("la", "b")):
        one = spec(method)
        record = record_of(one, matrix(0.5, 0.6, 0.8)) | {"data": data}
        (tmp_path / f"{one.digest()}.json").write_text(json.dumps(record))
    written = write_report(tmp_path)
    assert ["different sentences" in line for line in written.complaints] == [True]
    other = record_of(two := spec("la", 2), matrix(0.5, 0.6, 0.8)) | {"data": "c"}
    (tmp_path / f"{two.digest()}.json").write_text(json.dumps(other))
    assert len(write_report(tmp_path).complaints) == 1, "other orders may have other tasks"
    rows = {row[0].text: row[5].text for row in written.sections[0][1][0].rows}
    assert rows["la"] == "-", "no forward transfer between them"


@pytest.mark.parametrize("odd", [None, "inf"])
def test_a_strategy_without_a_number_is_not_drawn(tmp_path: Path, odd: str | None) -> None:
    fixed = {"strategy": "kt", "down": 0.1}
    specs = [dataclasses.replace(spec("la"), set=fixed | {"tau": tau}) for tau in (0.1, odd)]
    for one in specs:
        put(tmp_path, one, matrix(0.5, 0.6, 0.8))
    runs = [{"digest": one.digest(), "spec": one.to_json()} for one in specs]
    manifest = {"suite": "mine", "about": "", "view": "strategies", "runs": runs}
    (tmp_path / "mine.suite.json").write_text(json.dumps(manifest))
    [(_, tables)] = write_report(tmp_path).sections
    assert len(tables[0].rows) == 2


def test_the_papers_thresholds_are_not_put_beside_fewer_tasks(tmp_path: Path) -> None:
    one = Spec.create(method="la", stream="hwu64", order="2", tasks=2, settings=["thr=0.9"])
    put(tmp_path, one, [[0.9, None], [0.5, 0.8]])
    manifest = {
        "suite": "m",
        "about": "",
        "view": "thresholds",
        "runs": [{"digest": one.digest(), "spec": one.to_json()}],
    }
    (tmp_path / "m.suite.json").write_text(json.dumps(manifest))
    [row] = tables_of(tmp_path)["thresholds"].rows
    assert [cell.text for cell in row[-5:]] == ["-"] * 5


def test_own_data_has_a_line_of_enough_too(tmp_path: Path) -> None:
    """Which share of gold is enough goes by the scenario, and that is in the record."""
    one = Spec.create(method="mas", stream=own_stream(tmp_path / "data", "x"))
    chosen = {"gold": 0.8, "lam": 1.0}
    record = record_of(one, matrix(0.5, 0.6, 0.8), chosen=chosen)
    for scenario, levels in (
        ("domain-incremental", [[76.0] * 2] * 3),
        ("class-incremental", [[72.0] * 2] * 3),
    ):
        run = Run("x", one.to_json(), record | {"scenario": scenario})
        figure = search_trace(run)
        assert figure is not None
        assert isinstance(figure.content, Plot)
        found = [line.y for line in figure.content.series if line.name == "enough"]
        assert found == [pytest.approx(level) for level in levels]
    assert Run("x", one.to_json(), record | {"scenario": ["odd"]}).share is None


def test_records_without_a_plan_are_told_apart(tmp_path: Path) -> None:
    """They count as plan=paper-v1 with adamw, and never as runs of a later default."""
    out = tmp_path / "out"
    new = [Spec.create(method="seq", stream="hwu64", settings=[way]) for way in ("plan=paper", "plan=stable")]
    content = new[0].to_json()
    content["set"] = {}
    old = Spec.from_json(content)
    for one in (*new, old):
        put(out, one, matrix(0.5, 0.5, 0.9))
    sections = {section.title: section for section, _ in write_report(out).sections}
    assert set(sections) == {
        "hwu64, preset full",
        "hwu64, preset full, plan stable",
        "hwu64, preset full, plan paper-v1",
    }
    assert all(len(section.made) == 1 for section in sections.values())
    assert sections["hwu64, preset full, plan paper-v1"].made[0].spec["set"] == {}

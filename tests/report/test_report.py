"""The report: every number from its record, missing runs as missing, one page that works offline."""

from __future__ import annotations

import csv
import io
import json
import math
import random
from pathlib import Path

import pytest
from helpers.records_by_hand import matrix, record_of
from helpers.reports import figure_of, plot_of, put, rows_of, spec, suite_folder
from rich.console import Console

from holdfast.errors import HoldfastError
from holdfast.report.plots import Ridges
from holdfast.report.runs import load_sections
from holdfast.report.statistics import compare, estimate, holm
from holdfast.report.tables import Cell, Table, as_csv, latex, markdown, ranked, show
from holdfast.studies.views import write_report


def test_the_main_table_by_hand(folder: Path) -> None:
    [(section, tables)] = write_report(folder).sections
    main = rows_of(tables[0])
    assert main["seq"][:2] == ["2/2", "35.00 (7.1)"]  # 40 and 30
    assert main["la"][:2] == ["3/3", "70.00 (17.3)"]  # 60, 60, 90
    assert main["mtl"][:3] == ["2/2", "95.00 (0.0)", "-"]
    # CF of la: (.9 - .6 + .9 - .6)/2, (.9 - .3 + .9 - .6)/2, 0
    assert main["la"][2] == "25.00 (22.9)"
    # FWT against seq of the same order: (.9 - .9 + .6 - .9)/2 and (.9 - .9 + .9 - .9)/2; order 3 has no seq
    assert main["la"][4] == "-7.50 (10.6) [2 of 3]"
    assert main["la"][5:] == ["34.20 (7.4)", "67.44 (8.8)", "7.88 (11.1)", "11.37 (9.2)"]
    ranks = {row[0].text: row[2].rank for row in tables[0].rows}
    assert ranks == {"seq": "", "la": "", "mtl": ""}, (
        "yardsticks are not ranked, and one alone is not the best"
    )
    for order in (1, 2):
        put(folder, spec("mas", order), matrix(0.0, 0.0, 0.8))
    [(_, tables)] = write_report(folder).sections
    ranks = {row[0].text: row[2].rank for row in tables[0].rows}
    assert ranks == {"seq": "", "la": "best", "mtl": "", "mas": "second"}, "by the orders that both have"
    assert section.title == "hwu64, preset full"


def test_every_number_names_its_records(folder: Path) -> None:
    [(_, tables)] = write_report(folder).sections
    la = next(row for row in tables[0].rows if row[0].text == "la")
    assert la[2].records == tuple(spec("la", order).digest() for order in (1, 2, 3))
    page = (folder / "report.html").read_text()
    for order in (1, 2, 3):
        assert f'href="{spec("la", order).digest()}.json"' in page


def test_run_by_run_and_compared(folder: Path) -> None:
    [(_, tables)] = write_report(folder).sections
    named = {table.name: table for table in tables}
    assert rows_of(named["01-by-order"])["la"] == ["60.00 (30.00)", "60.00 (45.00)", "90.00 (0.00)"]
    assert rows_of(named["01-by-order"])["seq"][2] == "-"
    [row] = named["01-compared"].rows
    assert [cell.text for cell in row[:4]] == ["la", "seq", "2", "+25.00"]


def test_what_is_missing_is_shown_as_missing(folder: Path, tmp_path: Path) -> None:
    runs = [spec("la", order) for order in (1, 2, 3)] + [spec("seq", order) for order in (1, 2, 3)]
    runs += [spec("ancl-mas", 1)]
    listed = [{"digest": one.digest(), "spec": one.to_json()} for one in runs]
    content = {"suite": "mine", "about": "what I planned", "view": "main", "runs": listed}
    (folder / "mine.suite.json").write_text(json.dumps(content))
    written = write_report(folder)
    planned, rest = written.sections
    assert {run.label for run in planned[0].missing} == {"seq", "ancl-mas"}
    assert rows_of(planned[1][0])["seq"][0] == "2/3"
    assert rows_of(planned[1][0])["ancl-mas"][:2] == ["0/1", "missing"]
    assert rows_of(planned[1][1])["seq"][2] == "missing"
    assert rows_of(rest[1][0]).keys() == {"mtl"}, "what no suite has asked for is shown after them"
    assert "missing: seq order 3 seed 0, ancl-mas order 1 seed 0" in (folder / "report.html").read_text()


def test_foreign_and_broken_files_are_left_out_with_a_line(folder: Path) -> None:
    before = [len(section.made) for section, _ in write_report(folder).sections]
    (folder / "broken.json").write_text('{"spec": ')
    (folder / "foreign.json").write_text('{"spec": {"method": "xgboost"}}')
    (folder / "list.json").write_text("[1]")
    (folder / "odd.suite.json").write_text('{"suite": "odd", "about": "", "view": "main", "runs": [{}]}')
    written = write_report(folder)
    assert [len(section.made) for section, _ in written.sections] == before
    assert len(written.complaints) == 4, written.complaints
    assert all("left out" in line and "\n" not in line for line in written.complaints)
    assert any("broken.json left out: not readable JSON" in line for line in written.complaints)


def test_a_copy_is_not_counted_twice(folder: Path) -> None:
    digest = spec("la").digest()
    (folder / "zcopy.json").write_text((folder / f"{digest}.json").read_text())
    written = write_report(folder)
    assert any("zcopy.json left out: the same run as" in line for line in written.complaints)
    [(_, tables)] = written.sections
    assert rows_of(tables[0])["la"][0] == "3/3"


def test_what_is_set_is_not_what_is_searched(folder: Path) -> None:
    """`lam = 0` is an ablation, even if 0 is the field's default: no row mixes it with the method."""
    put(folder, spec("la", 1, 0, "lam=0"), matrix(0.0, 0.0, 0.9))
    [(_, tables)] = write_report(folder).sections
    assert {"la", "la (lam 0.0)"} <= rows_of(tables[0]).keys()


def test_seeds_of_an_order_are_not_independent(tmp_path: Path) -> None:
    """Twelve runs of three orders are three pairs, not twelve."""
    for order in (1, 2, 3):
        for seed in range(4):
            put(tmp_path, spec("seq", order, seed), matrix(0.1 * order, 0.3, 0.9))
            put(tmp_path, spec("la", order, seed), matrix(0.15 * order, 0.3 + 0.01 * seed, 0.9))
    [(_, tables)] = write_report(tmp_path).sections
    [row] = next(table for table in tables if table.name.endswith("compared")).rows
    assert [cell.text for cell in row[:3]] == ["la", "seq", "3"]


def test_other_tables_of_the_folder_stay(folder: Path) -> None:
    (folder / "tables").mkdir()
    (folder / "tables" / "mine.tex").write_text("mine")
    (folder / "tables" / "99-old.tex").write_text("from an earlier report")
    write_report(folder)
    assert (folder / "tables" / "mine.tex").read_text() == "mine"
    assert not (folder / "tables" / "99-old.tex").exists()


def test_nothing_to_report(tmp_path: Path) -> None:
    with pytest.raises(HoldfastError, match="holds no records"):
        load_sections(tmp_path)
    with pytest.raises(HoldfastError, match="is not a folder"):
        load_sections(tmp_path / "none")


def test_settings_are_not_mixed(folder: Path) -> None:
    put(folder, spec("la", 1, 0, "epochs=3"), matrix(0.1, 0.1, 0.1))
    put(folder, spec("la", 1, 0, "fraction=0.5"), matrix(0.2, 0.2, 0.2))
    sections = {section.title: tables for section, tables in write_report(folder).sections}
    assert rows_of(sections["hwu64, preset full"][0])["la (fraction 0.5)"][1] == "20.00"
    assert rows_of(sections["hwu64, preset full, epochs 3"][0])["la"][1] == "10.00"


def test_several_seeds_have_intervals(tmp_path: Path) -> None:
    for seed, end in enumerate((0.5, 0.6, 0.7)):
        put(tmp_path, spec("seq", 1, seed), matrix(end, end, end))
    [(_, tables)] = write_report(tmp_path).sections
    # t(0.975, 2) * 0.1 / sqrt(3) = 4.3027 * 0.057735 = 0.24841
    assert rows_of(tables[1])["seq"][0] == "35.16 to 84.84"


def test_the_threshold_table(tmp_path: Path) -> None:
    place = suite_folder(tmp_path / "t", "thresholds", lambda one: matrix(one.set.get("thr", 0.9), 0.9, 0.9))
    [(_, tables)] = write_report(place).sections
    found = {(row[0].text, row[1].text): row for row in tables[0].rows}
    assert found.keys() == {(t, m) for t in ("90", "80", "70", "60") for m in ("ancl-lwf", "ancl-mas", "la")}
    row = [cell.text for cell in found["60", "la"]]
    assert row[2] == "4.5, 4.5"
    assert row[3] == "80.00"  # (.6 + .9 + .9)/3
    assert row[7:] == ["21.83", "45.84", "54.58", "3.05", "19.94"]


def test_the_tau_table_is_told_task_by_task(tmp_path: Path) -> None:
    place = suite_folder(
        tmp_path / "t", "tau", lambda one: matrix(one.set.get("fraction", 0.8) / 2, 0.9, 0.9)
    )
    [(_, tables)] = write_report(place).sections
    found = {(row[0].text, row[1].text): [cell.text for cell in row[2:]] for row in tables[0].rows}
    assert found.keys() == {(k, f) for k in "23" for f in ("0.90", "0.85", "0.80", "0.75", "0.70")}
    assert found["2", "0.90"][:4] == ["4.5", "0.5", "1", "85.00"], "after two tasks: (.8 + .9)/2"
    assert found["3", "0.90"][3:5] == ["75.00", "22.50"], "(.45 + .9 + .9)/3, (.9 - .45 + .9 - .9)/2"
    assert found["3", "0.75"][6:] == ["0.20", "0.39", "58.7", "44.11", "31.48"]


def test_the_strategy_figures(tmp_path: Path) -> None:
    place = suite_folder(tmp_path / "s", "strategies", lambda one: [[0.9, None], [0.5, 0.8]])
    write_report(place)
    page = (place / "report.html").read_text()
    for title in ("KT focus", "CF focus", "CF-KT balance, λ_down 0.01", "CF-KT balance, λ_down 1.0"):
        assert f"<figcaption>{title}</figcaption>" in page
    lines = plot_of(place, "KT focus").series
    names = [line.name for line in lines]
    assert names[:2] == ["CF, τ 0.1", "FWT, τ 0.1"]
    assert {"ancl-mas CF", "ancl-lwf FWT"} <= set(names), "reference points"
    assert lines[0].x == [0.01, 0.1, 0.5, 1.0]
    assert lines[0].y == pytest.approx([40.0] * 4)


def test_the_cost_table(tmp_path: Path) -> None:
    place = suite_folder(tmp_path / "c", "cost", lambda one: [[0.9, None], [0.5, 0.8]])
    [(_, tables)] = write_report(place).sections
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in tables[0].rows}
    passes = ["E1·b1 + b1 + E2_la·b2 + b2 + E2·b2", "b2, the last consolidation"]
    assert rows["la"] == [*passes, "7", "6", "6", "10", "1.0", "1024"]
    assert {"upgd (order first)", "rp2f (importance perturbation)"} <= rows.keys()


def test_relative_importance_is_drawn_with_its_cut_off(tmp_path: Path) -> None:
    bins = [0] * 6 + [10, 30] + [0] * 12
    spread = {"encoder.layer.0.adapter.down.weight": {"bins": bins, "mean": 0.36, "tau": 0.29}}
    put(tmp_path, spec("la"), matrix(0.1, 0.2, 0.3), chosen={"spread": spread, "lam": 1.0})
    content = figure_of(tmp_path, "la, order 1, seed 0: a").content
    assert isinstance(content, Ridges)
    assert content.rows == [("0.adapter.down.weight", [0.0] * 6 + [25.0, 75.0] + [0.0] * 12, 0.29)]


def test_a_name_cannot_break_out_of_the_page(tmp_path: Path) -> None:
    one = spec("seq")
    record = record_of(one, matrix(0.1, 0.1, 0.1))
    nasty = "</script><script>alert(1)</script>"
    record["trials"][0]["task"] = record["chosen"][0]["task"] = record["tasks"][0] = nasty
    tmp_path.joinpath(f"{one.digest()}.json").write_text(json.dumps(record))
    write_report(tmp_path)
    assert nasty not in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_page_of_a_thousand_records_stays_small(tmp_path: Path) -> None:
    rng = random.Random(0)
    for method in ("seq", "mas", "la", "ancl-mas", "ancl-lwf"):
        for order in (1, 2, 3):
            for seed in range(67):
                ends = (rng.random(), rng.random(), rng.random())
                spread = {
                    f"layer.{i}.weight": {
                        "bins": [rng.randrange(999) for _ in range(20)],
                        "mean": 0.3,
                        "tau": 0.24,
                    }
                    for i in range(72)
                }
                settings = [f"epochs={1 + seed % 4}"]  # four sections
                put(tmp_path, spec(method, order, seed, *settings), matrix(*ends), chosen={"spread": spread})
    assert len(list(tmp_path.glob("*.json"))) == 1005
    page = write_report(tmp_path).page
    assert page.stat().st_size < 1.5e6
    text = page.read_text()
    assert text.count("main table</h3>") == text.count("<figcaption>Macro-F1 over tasks") == 4


def test_a_page_needs_no_library(folder: Path) -> None:
    page = write_report(folder).page
    assert page.stat().st_size < 60_000, "seven runs"
    assert page.read_text().count("<script") == 1


# ---- statistics and tables by themselves ----------------------------------------------------------------


def test_estimates_by_hand() -> None:
    found = estimate([0.2, 0.4, 0.6])
    assert found.mean == pytest.approx(0.4)
    assert found.std == pytest.approx(0.2)
    assert found.half == pytest.approx(4.30265 * 0.2 / math.sqrt(3), rel=1e-4)
    assert estimate([0.3]).std is None


def test_paired_comparison_by_hand() -> None:
    found = compare([0.5, 0.7, 0.9], [0.4, 0.5, 0.6])  # gaps .1 .2 .3: t = .2/(.1/sqrt 3) = 3.4641, df 2
    assert found.difference.mean == pytest.approx(0.2)
    assert found.p == pytest.approx(0.07418, rel=1e-3)
    assert compare([0.5, 0.5], [0.5, 0.5]).p == 1.0
    assert math.isnan(compare([0.5, 0.6], [0.4, 0.5]).p), "the same gap twice tells nothing of chance"


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert math.isnan(holm([0.01, math.nan])[1])


def test_ranks() -> None:
    assert ranked([0.1, 0.3, None, 0.2], high=True) == ["", "best", "", "second"]
    assert ranked([0.1, 0.3, 0.2], high=False) == ["best", "", "second"]
    assert ranked([0.300001, 0.3, 0.2], high=True) == ["best", "best", "second"], "what prints alike"
    assert ranked([0.3, 0.3], high=True) == ["", ""]


def test_one_table_in_every_form() -> None:
    rows = [
        [Cell("a_b"), Cell("1.00 (0.1)", "best", ("x", "y"))],
        [Cell("c|d"), Cell("50 %", "second", ("z",))],
    ]
    table = Table("t", "λ & co", ["method", "Ov ↑"], rows, note="so it is")
    assert "| a_b | **1.00 (0.1)** |" in markdown(table)
    assert "| c\\|d | <u>50 %</u> |" in markdown(table)
    assert markdown(table).rstrip().endswith("so it is")
    assert list(csv.reader(io.StringIO(as_csv(table)))) == [
        ["method", "Ov ↑", "records"],
        ["a_b", "1.00 (0.1)", "x y"],
        ["c|d", "50 %", "z"],
    ]
    assert r"a\_b & \textbf{1.00 (0.1)} \\" in latex(table)
    assert r"\underline{50 \%}" in latex(table)
    assert r"\caption{$\lambda$ \& co. so it is}" in latex(table)
    assert r"\label{tab:t}" in latex(table)
    assert r"$-$1.5 to +2, CF-KT" in latex(Table("t", "", ["n"], [[Cell("-1.5 to +2, CF-KT")]]))
    shown = io.StringIO()
    show(Console(file=shown, width=80), table)
    assert "a_b" in shown.getvalue()

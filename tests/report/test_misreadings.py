"""What a reader could take amiss: ranks, numbers of the paper, colours, names that look like markup."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.records_by_hand import matrix, record_of
from helpers.reports import plot_of, put, rows_of, spec, suite_folder

from holdfast.report.means import ranks
from holdfast.report.tables import Cell, Table, latex, markdown
from holdfast.studies.views import write_report


def test_a_seed_more_of_one_method_takes_no_rank_away() -> None:
    usual = {("1", 0): 0.1, ("2", 0): 0.3}
    found = {"ewc": usual, "mas": dict.fromkeys(usual, 0.4), "la": usual | {("1", 1): 0.9}}
    assert ranks(found, high=True) == {"ewc": "second", "mas": "best", "la": "second"}


def test_an_ablation_has_no_number_in_the_paper(tmp_path: Path) -> None:
    put(tmp_path, spec("la"), matrix(0.1, 0.2, 0.3))
    put(tmp_path, spec("la", 1, 0, "lam=0"), matrix(0.1, 0.2, 0.3))
    put(tmp_path, spec("upgd", 1, 0, "order=first"), matrix(0.1, 0.2, 0.3))
    [(_, tables)] = write_report(tmp_path).sections
    rows = rows_of(tables[0])
    assert rows["la"][5] == "34.20 (7.4)"
    assert rows["upgd (order first)"][5] == "29.58 (4.7)"
    assert rows["la (lam 0.0)"][5:] == ["-"] * 4


def test_forward_transfer_names_only_runs_it_was_told_by(tmp_path: Path) -> None:
    put(tmp_path, spec("seq", 1), matrix(0.0, 0.0, 0.9))
    for order in (1, 2):
        put(tmp_path, spec("la", order), matrix(0.1, 0.2, 0.3))
    [(_, tables)] = write_report(tmp_path).sections
    la = next(row for row in tables[0].rows if row[0].text == "la")
    assert la[5].records == (spec("la", 1).digest(), spec("seq", 1).digest())


def test_the_line_of_a_search_is_of_one_rate(tmp_path: Path) -> None:
    one = spec("rp2f")
    record = record_of(one, matrix(0.1, 0.2, 0.3))
    for lesson in record["trials"]:
        lesson["trials"] = [
            {"choice": {"lr": rate, "lam": lam}, "score": 0.5}
            for rate, lam in ((0.0003, 1e-5), (0.003, 1e-5), (0.003, 1e-6))
        ]
    (tmp_path / f"{one.digest()}.json").write_text(json.dumps(record))
    drawn = plot_of(tmp_path, "rp2f, order 1, seed 0")
    assert drawn.series[0].x == [1e-6, 1e-5]
    assert drawn.x.log


def test_reference_lines_have_colours_of_their_own_and_are_means(tmp_path: Path) -> None:
    place = suite_folder(tmp_path / "s", "strategies", lambda one: [[0.9, None], [0.5, 0.8]])
    reference = next(path for path in place.glob("*.json") if '"ancl-mas"' in path.read_text()[:200])
    other = json.loads(reference.read_text())
    other["spec"]["seed"], other["scores"]["test"] = 1, [[0.9, None], [0.7, 0.8]]
    manifest = json.loads((place / "strategies.suite.json").read_text())
    manifest["runs"].append({"digest": "other", "spec": other["spec"]})
    (place / "strategies.suite.json").write_text(json.dumps(manifest))
    (place / "other.json").write_text(json.dumps(other))
    lines = plot_of(place, "KT focus").series
    levels = [line for line in lines if line.name.startswith("ancl")]
    assert [line.name for line in levels].count("ancl-mas CF") == 1
    assert next(line for line in levels if line.name == "ancl-mas CF").y == pytest.approx([30.0, 30.0])
    others = {line.colour for line in lines if line not in levels}
    assert not others & {line.colour for line in levels}


def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path: Path) -> None:
    table = Table("t", "a <b> | c", ["<i>x"], [[Cell("p <0.001\n| y")]])
    assert "#### a &lt;b&gt; \\| c" in markdown(table)
    assert "| p &lt;0.001 \\| y |" in markdown(table)
    assert r"p \textless{}0.001" in latex(table)
    assert r"\textbar{}" in latex(table)
    assert r"\caption{is it better? Yes.}" in latex(Table("t", "is it better?", [], note="Yes."))
    one = spec("mas")
    record = record_of(one, matrix(0.1, 0.2, 0.3), chosen={"lam": 1.0})
    for lesson in record["trials"]:
        lesson["task"] = "<i>task"
    (tmp_path / f"{one.digest()}.json").write_text(json.dumps(record))
    assert plot_of(tmp_path, "mas, order 1, seed 0").series[0].name == "<i>task"
    page = (tmp_path / "report.html").read_text()
    assert "<i>task" not in page
    assert "&lt;i&gt;task" in page


@pytest.mark.parametrize("stream", ["home", "hwu64"])
def test_reference_points_of_the_paper_are_told_where_they_belong(tmp_path: Path, stream: str) -> None:
    place = suite_folder(tmp_path / "s", "strategies", lambda one: [[0.9, None], [0.5, 0.8]])
    for path in place.glob("*.json"):
        path.write_text(path.read_text().replace('"hwu64"', f'"{stream}"'))
    page = write_report(place).page.read_text()
    assert ("The paper reports, after the second task: ancl-mas CF 4" in page) == (stream == "hwu64")

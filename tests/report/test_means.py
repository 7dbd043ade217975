"""Means, ranks and comparisons where methods have not all been run at the same places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_report import matrix, put, spec

from holdfast.bench import Spec
from holdfast.report import write_report
from holdfast.report.means import against_best, ranks, units
from holdfast.report.tables import Table


def tables_of(folder: Path) -> dict[str, Table]:
    [(_, tables)] = write_report(folder).sections
    return {table.name.partition("-")[2]: table for table in tables}


def test_orders_of_some_tasks_are_another_study(tmp_path: Path) -> None:
    """Two tasks by name are not averaged with all of them, nor are the paper's numbers put beside them."""
    put(tmp_path, spec("seq"), matrix(0.0, 0.0, 0.9))
    part = Spec.create(method="seq", stream="hwu64", order="Split0,Split1")
    put(tmp_path, part, [[0.9, None], [0.1, 0.9]])
    put(tmp_path, Spec.create(method="la", stream="hwu64", order="Split1,Split0"), [[0.9, None], [0.3, 0.9]])
    sections = write_report(tmp_path).sections
    titles = ["hwu64, preset full", "hwu64, preset full, tasks Split0, Split1"]
    assert sorted(section.title for section, _ in sections) == titles
    for section, tables in sections:
        paper = any(column.startswith("paper") for column in tables[0].columns)
        assert paper == (section.title == titles[0])


def test_the_best_is_the_best_where_all_have_been(tmp_path: Path) -> None:
    """One order with two seeds beside three orders with one: what is common is order 1, seed 0."""
    for seed in (0, 1):
        put(tmp_path, spec("seq", 1, seed), matrix(0.0, 0.0, 0.9))
    for order in (1, 2, 3):
        put(tmp_path, spec("la", order), matrix(0.6, 0.7, 0.8))
        put(tmp_path, spec("mas", order), matrix(0.5, 0.6 + 0.01 * order, 0.8))
    compared = tables_of(tmp_path)["compared"]
    assert [[cell.text for cell in row[:3]] for row in compared.rows] == [["la", "mas", "3"]]
    assert set(compared.rows[0][3].records) == {
        spec(method, order).digest() for method in ("la", "mas") for order in (1, 2, 3)
    }


def test_only_seeds_that_both_have_are_paired(tmp_path: Path) -> None:
    for order in (1, 2, 3):
        for method in ("la", "mas"):
            put(tmp_path, spec(method, order, 0), matrix(0.1 * order, 0.2, 0.9))
        put(tmp_path, spec("la", order, 1), matrix(0.9, 0.9, 0.9))
    [row] = tables_of(tmp_path)["compared"].rows
    assert [cell.text for cell in row[2:4]] == ["3", "+0.00"]


def test_means_over_other_places_are_not_ranked_together() -> None:
    one, two, three = (("1", 0), ("2", 0), ("3", 0))
    found = {
        "la": {one: 0.1, two: 0.5},
        "mas": {one: 0.2, two: 0.5},
        "ewc": {two: 0.5, three: 0.9},
        "mtl": {one: 0.9, two: 0.9, three: 0.9},
        "seq": {},
    }
    assert ranks(found, high=True) == {"la": "second", "mas": "best", "ewc": "", "mtl": "", "seq": ""}
    assert ranks({"mtl": found["mtl"]}, high=True) == {"mtl": ""}


def test_units_by_hand() -> None:
    found = {("1", 0): 0.2, ("1", 1): 0.4, ("2", 0): 0.7}
    assert units(found, by_order=True) == pytest.approx({"order 1": 0.3, "order 2": 0.7})
    assert units({("1", 0): 0.2, ("1", 1): 0.4}, by_order=False) == {"seed 0": 0.2, "seed 1": 0.4}


def test_chances_are_corrected_for_all_pairs() -> None:
    """The best of three is known only after a look: three comparisons, not two."""
    gaps = {"a": (0.5, 0.52, 0.54), "b": (0.4, 0.43, 0.43), "c": (0.1, 0.3, 0.2)}
    found = {label: {(str(i), 0): value for i, value in enumerate(own)} for label, own in gaps.items()}
    best, others = against_best(found, by_order=True)
    assert best == "a"
    alone = {label: test.p for label, (test, _) in others.items()}
    assert others["b"][1] == pytest.approx(3 * alone["b"])
    assert against_best({}, by_order=True) == ("", {})


@pytest.mark.parametrize(
    ("view", "score", "cost"),
    [("thresholds", 3, None), ("tau", 5, None), ("strategies", 4, None), ("cost", None, 5)],
)
def test_seeds_share_a_row_of_every_view(tmp_path: Path, view: str, score: int, cost: int) -> None:
    runs = [spec(method, 2, seed) for method in ("seq", "la") for seed in (0, 1)]
    for one in runs:
        end = (0.4, 0.6)[one.seed]
        put(tmp_path, one, matrix(end, end, end), seconds=10.0 + 2 * one.seed, chosen={"lam": 1.5 + one.seed})
    listed = [{"digest": one.digest(), "spec": one.to_json()} for one in runs]
    manifest = {"suite": "mine", "about": "", "view": view, "runs": listed}
    (tmp_path / "mine.suite.json").write_text(json.dumps(manifest))
    named = tables_of(tmp_path)
    last = [row for row in named[view].rows if "la" in row[0].text + row[1].text or view != "cost"][-1]
    if score:
        assert last[score].text == "50.00 (14.1)"
        assert last[score].records == tuple(spec("la", 2, seed).digest() for seed in (0, 1))
    if cost:
        assert [cell.text for cell in last[cost : cost + 2]] == ["11", "1.0"]
    if view == "thresholds":
        assert last[2].text == "1.5, 1.5; 2.5, 2.5"
    assert {row[2].text for row in named["records"].rows} == {one.digest() for one in runs}

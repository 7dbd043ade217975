"""Means, ranks and comparisons where methods have not all been run at the same places."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.records_by_hand import matrix
from helpers.reports import plot_of, put, spec, tables_of

from holdfast.bench import Spec
from holdfast.report.means import against_best, mean_of, ranks, units
from holdfast.studies.views import write_report


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
        "seq": {one: 0.9, two: 0.9},
        "si": {},
    }
    told = {"la": "second", "mas": "best", "ewc": "", "mtl": "", "seq": "", "si": ""}
    assert ranks(found, high=True) == told, "what others are held against is not ranked, as in the paper"
    assert ranks({"mtl": found["mtl"]}, high=True) == {"mtl": ""}


def test_units_by_hand() -> None:
    found = {("1", 0): 0.2, ("1", 1): 0.4, ("2", 0): 0.7}
    assert units(found) == pytest.approx({"order 1": 0.3, "order 2": 0.7})
    assert mean_of(found) == pytest.approx(0.5), "not 0.43: an order counts once"
    assert units({("1", 0): 0.2, ("1", 1): 0.4}) == {"seed 0": 0.2, "seed 1": 0.4}


def test_a_mean_lies_in_the_middle_of_its_interval(tmp_path: Path) -> None:
    for order, seed, end in ((1, 0, 0.8), (1, 1, 0.8), (1, 2, 0.8), (2, 0, 0.2)):
        put(tmp_path, spec("la", order, seed), matrix(end, end, end))
    named = tables_of(tmp_path)
    low, high = map(float, named["intervals"].rows[0][1].text.split(" to "))
    assert named["main"].rows[0][2].text.split()[0] == "50.00"
    assert (low + high) / 2 == pytest.approx(50.0, abs=0.01)
    curve = plot_of(tmp_path, "Macro-F1 over tasks").series[0]
    assert curve.y[-1] == 50.0, "the figure has the mean of the table"
    assert curve.spans[-1] == (0.0, 100.0), "an interval of two orders is wider than the scale"


def test_one_run_of_another_order_takes_no_test_away(tmp_path: Path) -> None:
    for seed in range(4):
        put(tmp_path, spec("seq", 1, seed), matrix(0.0, 0.01 * seed, 0.9))
        put(tmp_path, spec("la", 1, seed), matrix(0.5, 0.6, 0.8))
    put(tmp_path, spec("seq", 2), matrix(0.0, 0.0, 0.9))
    named = tables_of(tmp_path)
    assert [[cell.text for cell in row[:3]] for row in named["compared"].rows] == [["la", "seq", "4"]]
    assert all(" to " in row[1].text or row[0].text == "seq" for row in named["intervals"].rows)


def test_one_method_is_the_best_in_all_tables(tmp_path: Path) -> None:
    """mas is better on the two orders that ewc has as well, la on the three that most have."""
    for order, la, mas in ((1, 0.5, 0.6), (2, 0.5, 0.6), (3, 0.9, 0.4)):
        put(tmp_path, spec("la", order), matrix(la, la, la))
        put(tmp_path, spec("mas", order), matrix(mas, mas, mas))
        if order < 3:
            put(tmp_path, spec("ewc", order), matrix(0.1, 0.1, 0.1 * order))
    named = tables_of(tmp_path)
    assert {row[0].text for row in named["main"].rows if row[2].rank == "best"} == {"la"}
    assert {row[0].text for row in named["compared"].rows} == {"la"}


def test_a_mean_of_some_runs_says_so(tmp_path: Path) -> None:
    """Forward transfer is known where seq has been."""
    put(tmp_path, spec("seq", 1), matrix(0.0, 0.0, 0.9))
    for order in (1, 2, 3):
        put(tmp_path, spec("la", order), matrix(0.5, 0.6, 0.8))
    rows = {row[0].text: [cell.text for cell in row] for row in tables_of(tmp_path)["main"].rows}
    assert rows["la"][5].endswith(" [1 of 3]")
    assert "[" not in rows["la"][2]


def test_chances_are_corrected_for_all_pairs() -> None:
    """The best of three is known only after a look: three comparisons, not two."""
    gaps = {"a": (0.5, 0.52, 0.54), "b": (0.4, 0.43, 0.43), "c": (0.1, 0.3, 0.2)}
    found = {label: {(str(i), 0): value for i, value in enumerate(own)} for label, own in gaps.items()}
    best, others = against_best(found)
    assert best == "a"
    alone = {label: test.p for label, (test, _) in others.items()}
    assert others["b"][1] == pytest.approx(3 * alone["b"])
    assert against_best({}) == ("", {})
    best, others = against_best(
        found | {"seq": {place: 0.9 + 0.1 * value for place, value in found["a"].items()}}
    )
    assert best == "a", "as in the main table"
    assert others["seq"][0].difference.mean < 0


@pytest.mark.parametrize(
    ("view", "score", "cost"),
    [("thresholds", 3, None), ("tau", 5, None), ("strategies", 4, None), ("cost", None, 6)],
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

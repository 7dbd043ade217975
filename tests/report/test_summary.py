"""The words of a report: who leads, how sure that is, how many sentences say so, which labels are wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.records_by_hand import joint, matrix, record_of
from helpers.reports import figure_of, plot_of, put, spec, tables_of

from holdfast.bench import Spec
from holdfast.report.figures import curves
from holdfast.report.means import chance
from holdfast.report.plots import Plot
from holdfast.report.runs import Run, Section, load_sections
from holdfast.report.summary import sentence_counts, summary
from holdfast.studies.views import write_report


def section_of(folder: Path) -> Section:
    [found] = load_sections(folder)[0]
    return found


def put_with(folder: Path, one: Spec, scores: list[list[float | None]], **more: Any) -> None:
    (folder / f"{one.digest()}.json").write_text(json.dumps(record_of(one, scores) | more))


def ends(end: float) -> list[list[float | None]]:
    return matrix(end, end, end)


def test_a_lead_whose_interval_includes_0(tmp_path: Path) -> None:
    for order, la, mas in ((1, 0.5, 0.6), (2, 0.7, 0.5), (3, 0.9, 0.7)):
        put(tmp_path, spec("la", order), ends(la))
        put(tmp_path, spec("mas", order), ends(mas))
        put(tmp_path, spec("mtl", order), joint(0.95))
    # Differences -10, 20, 20: mean 10, t(0.975, 2) * 17.32 / sqrt(3) = 43.0.
    assert summary(section_of(tmp_path)) == (
        "la is first of 2 ranked methods (mtl is not ranked), 10.0 points ahead of mas (Ov 70.00 and 60.00). "
        "Over 3 orders the 95 % interval of the difference is -33.0 to +53.0: too few orders to tell, run "
        "more. mtl (all tasks at once) has 95.00."
    )
    assert summary(section_of(tmp_path)) in write_report(tmp_path).page.read_text()
    assert summary(section_of(tmp_path)) in (tmp_path / "report.md").read_text()


def test_a_narrow_interval_may_include_0(tmp_path: Path) -> None:
    for order, la in ((1, 0.5), (2, 0.52), (3, 0.51)):
        put(tmp_path, spec("la", order), ends(la))
        put(tmp_path, spec("mas", order), ends(0.5))
    # Differences 0, 2, 1: mean 1, 4.303 * 1 / sqrt(3) = 2.5.
    assert "is -1.5 to +3.5: it includes 0." in summary(section_of(tmp_path))


def test_no_interval_goes_beyond_what_is_possible(tmp_path: Path) -> None:
    for order, la, mas in ((1, 0.9, 0.2), (2, 0.5, 0.4)):
        put(tmp_path, spec("la", order), ends(la))
        put(tmp_path, spec("mas", order), ends(mas))
    # Differences 70 and 10: mean 40, t(0.975, 1) * 42.4 / sqrt(2) = 381.
    assert "is -100.0 to +100.0: too few orders to tell, run more." in summary(section_of(tmp_path))
    assert tables_of(tmp_path)["compared"].rows[0][4].text == "-100.00 to +100.00"


def test_a_lead_that_holds(tmp_path: Path) -> None:
    for order, gap in ((1, 0.10), (2, 0.11), (3, 0.12)):
        put(tmp_path, spec("la", order), ends(0.5 + gap))
        put(tmp_path, spec("mas", order), ends(0.5))
    said = summary(section_of(tmp_path))
    assert "11.0 points ahead of mas" in said
    assert said.endswith(
        "+8.5 to +13.5: it excludes 0, also after correction for picking the best of several."
    )


def test_one_run_each_says_nothing_of_chance(tmp_path: Path) -> None:
    put(tmp_path, spec("la"), ends(0.6))
    put(tmp_path, spec("mas"), ends(0.5))
    put(tmp_path, spec("seq"), ends(0.1))
    assert summary(section_of(tmp_path)) == (
        "la is first of 2 ranked methods (seq is not ranked), 10.0 points ahead of mas (Ov 60.00 and 50.00). "
        "There is one order and seed: these runs cannot say whether that is chance. seq (plain fine-tuning) "
        "has 10.00."
    )


def test_equal_scores_are_level(tmp_path: Path) -> None:
    for name in ("la", "mas"):
        put(tmp_path, spec(name), ends(0.6))
    assert summary(section_of(tmp_path)).startswith(
        "la and mas are level at the top of 2 ranked methods"
    ) or (summary(section_of(tmp_path)).startswith("mas and la are level at the top of 2 ranked methods"))


def test_both_yardsticks_are_named_as_not_ranked(tmp_path: Path) -> None:
    for name, score in (("la", 0.6), ("mas", 0.5), ("seq", 0.1)):
        put(tmp_path, spec(name), ends(score))
    put(tmp_path, spec("mtl"), joint(0.95))
    assert "first of 2 ranked methods (seq and mtl are not ranked), 10.0" in summary(section_of(tmp_path))


def test_yardsticks_alone_have_no_first(tmp_path: Path) -> None:
    put(tmp_path, spec("seq"), ends(0.6))
    assert summary(section_of(tmp_path)) == "seq (plain fine-tuning) has 60.00."


def test_small_test_sets_are_counted_and_warned_of(tmp_path: Path) -> None:
    predictions = [["x"] * n for n in (300, 28, 99)]
    put_with(tmp_path, spec("la"), ends(0.6), predictions=predictions)
    counts, warning = sentence_counts(section_of(tmp_path))
    assert counts == "Test sentences: a 300, b 28, c 99."
    # 1.96 * sqrt(0.5 * 0.5 / 32) = 17.3 points
    assert warning == (
        "Small test sets: 2 of 3 tasks have fewer than 100 sentences. On the 28 of b a score of 50 is "
        "uncertain by ±17 points (95 %)."
    )
    page = write_report(tmp_path).page.read_text()
    assert counts in page
    assert warning in page
    assert warning in (tmp_path / "report.md").read_text()


def test_records_of_different_code_are_cautioned_of(tmp_path: Path) -> None:
    put_with(tmp_path, spec("la"), ends(0.6), code="aa", revision="1234")
    put_with(tmp_path, spec("mas"), ends(0.5), code="aa", revision="5678")
    assert write_report(tmp_path).complaints == [], "the same code in two commits"
    put_with(tmp_path, spec("mas"), ends(0.5), code="aa, bb", revision="5678, 90ab-dirty")
    written = write_report(tmp_path)
    said = (
        "caution: hwu64, preset full: its records come from 2 versions of the code, and 1 of 2 records come "
        "from code with uncommitted changes"
    )
    assert written.complaints == [said]
    assert said in written.page.read_text()
    assert said in (tmp_path / "report.md").read_text()


def test_where_nothing_was_trained_no_rate_is_shown(tmp_path: Path) -> None:
    chosen = [{"task": task, "lr": 0.0, "score": 0.9} for task in "abc"]
    put_with(tmp_path, spec("slda"), ends(0.6), chosen=chosen)
    [row] = tables_of(tmp_path)["chosen"].rows
    assert [cell.text for cell in row[3:]] == ["a: -", "b: -", "c: -"]


def test_records_without_predictions_tell_no_counts(tmp_path: Path) -> None:
    put(tmp_path, spec("la"), ends(0.6))
    assert sentence_counts(section_of(tmp_path)) == ("", "")


def test_the_interval_of_one_run_is_that_of_its_test_sentences(tmp_path: Path) -> None:
    counts = (100, 50, 400)
    record = record_of(spec("la"), matrix(0.5, 0.8, 0.9)) | {"predictions": [["x"] * n for n in counts]}
    put_with(tmp_path, spec("la"), record["scores"]["test"], predictions=record["predictions"])
    # Each score is a share of n sentences, two right and two wrong added: (0.5 * 100 + 2) / 104 and so on.
    shares = [((p * n + 2) / (n + 4), n + 4) for p, n in zip((0.5, 0.8, 0.9), counts, strict=True)]
    half = 1.96 / 3 * math.sqrt(sum(q * (1 - q) / n for q, n in shares))
    assert chance(Run("x", spec("la").to_json(), record)) == pytest.approx(half)
    [line] = plot_of(tmp_path, "Macro-F1 over tasks").series
    assert line.spans[-1] == pytest.approx((100 * (2.2 / 3 - half), 100 * (2.2 / 3 + half)))


def test_the_interval_over_orders_is_students(tmp_path: Path) -> None:
    for order, end in ((1, 0.5), (2, 0.52), (3, 0.54)):
        put(tmp_path, spec("la", order), ends(end))
    [line] = plot_of(tmp_path, "Macro-F1 over tasks").series
    half = 4.30265 * 2 / math.sqrt(3)
    assert line.spans[-1] == pytest.approx((52 - half, 52 + half), abs=1e-3)


def test_the_default_head_and_joint_training_of_another_setting_are_drawn_beside(tmp_path: Path) -> None:
    printed = ["head=preallocated", "logits=all"]
    put(tmp_path, spec("la", 1, 0, *printed), ends(0.6))
    put(tmp_path, spec("mtl"), joint(0.95))
    put(tmp_path, spec("slda"), ends(0.9))
    put(tmp_path, spec("slda", 2), ends(0.1))  # an order that la lacks
    put(tmp_path, spec("auto", 1, 0, "train_per_class=7"), ends(0.2))  # other sentences
    write_report(tmp_path)
    section = next(one for one in load_sections(tmp_path)[0] if one.made[0].method == "la")
    assert {(run.method, run.where) for run in section.references(("auto", "slda", "mtl"))} == {
        ("mtl", ("1", 0)),
        ("slda", ("1", 0)),
    }
    figure = curves(section)
    assert figure is not None
    assert isinstance(figure.content, Plot)
    lines = {line.name: line.y[-1] for line in figure.content.series}
    assert lines == pytest.approx({"la": 60.0, "slda, another setting": 90.0, "mtl, another setting": 95.0})
    assert "another setting" in figure.note


def test_errors_by_label_by_hand(tmp_path: Path) -> None:
    first = [{"on": {"on": 3, "off": 1}}, {"off": {"off": 8}}, {"dim": {"on": 2, "off": 1, "dim": 1}}]
    second = [{"on": {"on": 4}}, {"off": {"off": 8}}, {"dim": {"on": 2, "dim": 2}}]
    put_with(tmp_path, spec("la"), ends(0.6), confusion=first)
    put_with(tmp_path, spec("mas"), ends(0.5), confusion=second)
    put(tmp_path, spec("seq"), ends(0.5))  # an older record does not tell
    table = tables_of(tmp_path)["errors"]
    assert table.columns == ["label", "test sentences", "mas", "la", "most often taken for"]
    assert [[cell.text for cell in row] for row in table.rows] == [
        ["dim", "4", "50.0", "75.0", "on, off"],
        ["on", "4", "0.0", "25.0", "off"],
        ["off", "8", "0.0", "0.0", "-"],
    ]


@pytest.mark.parametrize("odd", [[{"on": {"on": "many"}}], [{"on": 3}], 7, [{"on": {"on": math.inf}}]])
def test_a_confusion_that_is_none_is_left_out_with_a_line(tmp_path: Path, odd: Any) -> None:
    put(tmp_path, spec("mas"), ends(0.5))
    put_with(tmp_path, spec("la"), ends(0.6), confusion=odd)
    assert any("left out" in line for line in write_report(tmp_path).complaints)


def test_a_folder_of_the_study_of_frontiers_has_a_figure(tmp_path: Path) -> None:
    common = {
        "study": "frontier",
        "stream": "hwu64",
        "old": "Split3",
        "new": "Split0",
        "modulate_head": False,
    }
    for number, (method, lam, seed, new, old) in enumerate(
        [
            *[("seq", 0.0, 0, 0.9, 0.1), ("seq", 0.0, 1, 0.8, 0.2), ("mas", 1.0, 0, 0.7, 0.5)],
            *[("mas", 1.0, 1, 0.6, 0.6), ("la", 1.0, 0, 0.75, 0.8)],
        ]
    ):
        one = {"method": method, "lambda": lam, "seed": seed, "new_valid": new, "old_valid": old}
        (tmp_path / f"{number}.json").write_text(json.dumps(common | one))
    (tmp_path / "half.json").write_text(json.dumps(common))
    figure = figure_of(tmp_path, "hwu64: Split3, then Split0")
    assert isinstance(figure.content, Plot)
    drawn = {line.name: line for line in figure.content.series if line.named}
    assert drawn.keys() == {"la", "mas"}
    assert drawn["mas"].x == pytest.approx([85.0, 65.0]), "λ = 0, then 1: means over two seeds"
    assert drawn["mas"].y == pytest.approx([15.0, 55.0])
    assert drawn["la"].y == pytest.approx([10.0, 80.0]), "only the seed that λ = 1 has too"
    # From 0.75 to 0.9: la falls from .8 to .1, mas, at .5 at 0.7, from .4 to .1. The area is a triangle.
    assert "Between 75.0 and 90.0 on the new task la keeps +20.0 points" in figure.note


def test_the_frontier_of_the_trials_by_hand(tmp_path: Path) -> None:
    """Two later tasks; at least 80 % of the best: .8 and more of 1.0, .4 and more of 0.5."""
    one = spec("mas")
    record = record_of(one, matrix(0.5, 0.6, 0.9))
    tried = {
        1: [(1.0, [0.1]), (0.8, [0.5]), (0.3, [0.9])],
        2: [(0.5, [0.2, 0.4]), (0.45, [0.6, 0.6]), (None, [1.0])],
    }
    for number, trials in tried.items():
        record["trials"][number]["trials"] = [
            {"choice": {"lr": 0.003, "lam": 1.0}, "score": score, "old": old} for score, old in trials
        ]
    put_with(tmp_path, one, record["scores"]["test"], trials=record["trials"])
    [line] = plot_of(tmp_path, "What trials keep").series
    kept = dict(zip(line.x, line.y, strict=True))
    assert kept[100.0] == pytest.approx(50 * (0.1 + 0.3))
    assert kept[90.0] == pytest.approx(50 * (0.1 + 0.6))
    assert kept[80.0] == pytest.approx(50 * (0.5 + 0.6))
    assert kept[50.0] == pytest.approx(50 * (0.5 + 0.6)), "0.3 of 1.0 is less than half"

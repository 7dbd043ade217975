"""The paper's metrics on small worked examples, and the cost of a run."""

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import f1_score, precision_recall_fscore_support

from holdfast.learning.passes import added, without
from holdfast.maths import metrics
from holdfast.maths.metrics import forgetting, forward_transfer, macro_f1, overall, positive_backward_transfer

ABOVE = "never read"
THREE = [
    [0.9, ABOVE, math.nan],
    [0.5, 0.8, None],
    [0.6, 0.7, 0.95],
]
FOUR = [
    [0.8, ABOVE, ABOVE, ABOVE],
    [0.9, 0.6, ABOVE, ABOVE],
    [0.4, 0.7, 0.5, ABOVE],
    [0.5, 0.2, 0.8, 0.9],
]


def test_three_tasks_by_hand() -> None:
    assert overall(THREE) == pytest.approx(2.25 / 3)
    assert forgetting(THREE) == pytest.approx((0.3 + 0.1) / 2)  # max(.9, .5) - .6 and .8 - .7
    assert positive_backward_transfer(THREE) == pytest.approx(0.1 / 3)  # -.4, then +.1 and -.1
    seq = [[0.1, ABOVE, ABOVE], [0.0, 0.7, ABOVE], [0.0, 0.0, 0.9]]
    assert forward_transfer(THREE, seq) == pytest.approx((0.1 + 0.05) / 2)  # without the first task
    assert forward_transfer(seq, THREE) == pytest.approx(-0.075)


def test_four_tasks_by_hand() -> None:
    assert overall(FOUR) == pytest.approx(0.6)
    # .9 - .5, .7 - .2, .5 - .8: forgetting is negative for a task that only improved
    assert forgetting(FOUR) == pytest.approx((0.4 + 0.5 - 0.3) / 3)
    # +.1 | -.5 +.1 | +.1 -.5 +.3
    assert positive_backward_transfer(FOUR) == pytest.approx(2 / 12 * 0.6)


def test_losses_alone_are_no_positive_transfer() -> None:
    assert positive_backward_transfer([[0.9, 0], [0.2, 0.9]]) == 0.0


scores = st.floats(0, 1)
squares = st.integers(2, 6).flatmap(
    lambda n: st.lists(st.lists(scores, min_size=n, max_size=n), min_size=n, max_size=n)
)


@given(squares, st.data())
def test_metrics_by_slow_loops(F: list[list[float]], data: st.DataObject) -> None:
    n = len(F)
    seq = data.draw(st.lists(st.lists(scores, min_size=n, max_size=n), min_size=n, max_size=n))
    ov = cf = bwt = fwt = 0.0
    for i in range(1, n + 1):
        ov += F[n - 1][i - 1] / n
    for i in range(1, n):
        best = -1.0
        for k in range(i, n):
            best = max(best, F[k - 1][i - 1])
        cf += (best - F[n - 1][i - 1]) / (n - 1)
    for k in range(2, n + 1):
        for i in range(1, k):
            gain = F[k - 1][i - 1] - F[k - 2][i - 1]
            if gain > 0:
                bwt += 2 / (n * (n - 1)) * gain
    for i in range(2, n + 1):
        fwt += (F[i - 1][i - 1] - seq[i - 1][i - 1]) / (n - 1)
    assert overall(F) == pytest.approx(ov)
    assert forgetting(F) == pytest.approx(cf)
    assert positive_backward_transfer(F) == pytest.approx(bwt)
    assert forward_transfer(F, seq) == pytest.approx(fwt)


def holed(k: int, i: int, value: float | None) -> list[list]:
    F = [list(row) for row in THREE]
    F[k][i] = value
    return F


@pytest.mark.parametrize("hole", [None, math.nan])
def test_overall_reads_the_last_row_only_and_all_of_it(hole: float | None) -> None:
    for i in range(3):
        with pytest.raises(ValueError, match=f"task {i + 1} after task 3"):
            overall(holed(2, i, hole))
    assert overall([[hole] * 3, [hole] * 3, [0.1, 0.2, 0.6]]) == pytest.approx(0.3)


@pytest.mark.parametrize("hole", [None, math.nan])
@pytest.mark.parametrize(("k", "i"), [(k, i) for k in range(3) for i in range(k + 1)])
def test_the_others_refuse_any_hole_on_or_below_the_diagonal(k: int, i: int, hole: float | None) -> None:
    F = holed(k, i, hole)
    for metric in (forgetting, positive_backward_transfer):
        with pytest.raises(ValueError, match="unfinished"):
            metric(F)
    for pair in ((F, THREE), (THREE, F)):
        with pytest.raises(ValueError, match="unfinished"):
            forward_transfer(*pair)


def test_forward_transfer_refuses_another_stream() -> None:
    with pytest.raises(ValueError, match="3 tasks but F_seq has 4"):
        forward_transfer(THREE, FOUR)


def test_one_task() -> None:
    assert overall([[0.7]]) == 0.7
    assert (
        forgetting([[0.7]]) == positive_backward_transfer([[0.7]]) == forward_transfer([[0.7]], [[0.1]]) == 0
    )
    with pytest.raises(ValueError, match="unfinished"):
        forgetting([[None]])


def test_macro_f1_a_prediction_outside_the_gold_labels_costs_recall_only() -> None:
    # a: precision 1, recall 1/2, F1 2/3; b: 1. Over {a, b, c}, as a plain macro average, it would be .556.
    assert macro_f1(list("aabb"), list("acbb")) == pytest.approx((2 / 3 + 1) / 2)
    assert macro_f1(list("aabb"), list("cccc")) == 0.0
    assert macro_f1(list("aab"), list("aaa")) == pytest.approx((0.8 + 0) / 2)  # a: precision 2/3, recall 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcde")), min_size=1, max_size=30))
def test_macro_f1_by_counting(samples: list[tuple[str, str]]) -> None:
    gold, predicted = [g for g, _ in samples], [p for _, p in samples]
    total = 0.0
    for label in set(gold):
        right = sum(g == p == label for g, p in samples)
        missed = sum(g == label != p for g, p in samples)
        wrong = sum(p == label != g for g, p in samples)
        total += 2 * right / (2 * right + missed + wrong)
    assert macro_f1(gold, predicted) == pytest.approx(total / len(set(gold)))
    labels = sorted(set(gold))
    known = f1_score(gold, predicted, labels=labels, average="macro", zero_division=0)
    assert macro_f1(gold, predicted) == known, "to the last bit"


def test_passes_add_up_and_come_apart_again() -> None:
    one = {"train": {"forward": 3, "backward": 3}}
    two = {"train": {"forward": 4, "backward": 4}, "importance": {"forward": 2, "backward": 2}}
    both = added(one, two)
    assert both == {"train": {"forward": 7, "backward": 7}, "importance": {"forward": 2, "backward": 2}}
    assert one == {"train": {"forward": 3, "backward": 3}}  # unchanged
    assert without(both, two) == one  # a phase with no passes left is dropped
    assert without(both, {}) == both
    assert added() == without(one, one) == {}


# ---- paired differences ---------------------------------------------------------------------------------


def test_a_paired_difference_is_that_of_the_scores():
    gold = [["a", "b", "a", "c"] * 10, ["a", "c"] * 9]
    draw = random.Random(0)
    runs = [[[draw.choice([label, "a", "z"]) for label in task] for task in gold] for _ in range(4)]
    found = metrics.paired_difference(gold, runs[:2], runs[2:], draws=400)

    def mean(some):
        return np.mean([metrics.macro_f1(t, p) for run in some for t, p in zip(gold, run, strict=True)])

    assert found.mean == pytest.approx(mean(runs[:2]) - mean(runs[2:]))
    assert found.low < found.mean < found.high
    assert 0.02 < found.error < 0.2
    again = metrics.paired_difference(gold, runs[:2], runs[2:], draws=400)
    assert again == found, "the same seed gives the same numbers"


def test_a_run_against_itself_differs_by_nothing_for_sure():
    gold = [["a", "b"] * 10]
    run = [[["a"] * 20]]
    assert metrics.paired_difference(gold, run, run, draws=50) == metrics.Difference(0.0, 0.0, 0.0, 0.0)


def test_the_standard_error_of_a_share():
    """One run is right on p of n sentences of one label, the other never. Compared with a simulation."""
    gold, right = [["a"] * 200], [[["a"] * 100 + ["b"] * 100]]
    wrong = [[["b"] * 200]]
    found = metrics.paired_difference(gold, right, wrong, draws=2000)
    shares = np.random.default_rng(1).binomial(200, 0.5, 20000) / 200
    assert found.mean == pytest.approx(2 * 0.5 / 1.5)
    assert found.error == pytest.approx((2 * shares / (1 + shares)).std(), rel=0.1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("abcd")), min_size=1, max_size=30))
def test_label_scores_are_those_of_scikit_learn(pairs: list[tuple[str, str]]) -> None:
    gold, predicted = zip(*pairs, strict=True)
    found = metrics.label_scores(gold, predicted)
    table = precision_recall_fscore_support(gold, predicted, labels=sorted(set(gold)), zero_division=0)
    assert list(found) == sorted(set(gold))
    np.testing.assert_allclose(np.array(list(found.values())).T, table, rtol=0, atol=1e-15)

"""The search of plan=stable with a fake trainer: the gentlest rate, the edge of the strengths, λ_up."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.learners import make_learner, scoring
from helpers.plans import Result, at, drive
from helpers.toys import small
from helpers.weights import assert_same_bits, weights_of
from hypothesis import given
from hypothesis import strategies as st

from holdfast.maths.metrics import standard_error
from holdfast.methods import METHODS
from holdfast.methods.search import (
    FINE,
    Hold,
    Target,
    edge,
    foreseen,
    gentlest_rate,
    raised,
    stable,
    target_of,
)

FREE = Result({"lam": 0.0}, 0.9)


# ---- standard errors ----------------------------------------------------------------------------------


def test_the_standard_error_by_hand() -> None:
    # 90 of 96 sentences: (90 + 2)/(96 + 4) = .92, √(.92 · .08/100)
    assert standard_error(90 / 96, 96) == pytest.approx(math.sqrt(0.000736))
    assert standard_error(1.0, 12) == pytest.approx(math.sqrt(14 / 16 * 2 / 16 / 16))
    assert standard_error(0.5, 0) == pytest.approx(0.25), "nothing is known: (2/4)(2/4)/4"


@given(st.floats(0, 1), st.integers(0, 10_000))
def test_the_standard_error_is_symmetric_and_never_zero(score: float, n: int) -> None:
    assert 0 < standard_error(score, n) <= 0.25
    assert standard_error(score, n) == pytest.approx(standard_error(1 - score, n))


def learner_of(sentences: int, **changes: Any) -> Any:
    values = {"plan": "stable", "lam_trials": None} | changes
    return SimpleNamespace(
        settings=small(**values),
        tasks_seen=1,
        scenario="class-incremental",
        valid=range(sentences),
        rates=lambda: (0.1, 0.01),
        aim_at=lambda score: None,
    )


def test_where_validation_is_small_a_standard_error_may_be_lost() -> None:
    assert target_of(learner_of(10_000), None, 0.8).least == pytest.approx(0.72)
    assert target_of(learner_of(11), None, 0.8).least == pytest.approx(0.8 - standard_error(0.8, 11))
    assert target_of(learner_of(11, plan="paper"), None, 0.8).least == pytest.approx(0.72)
    assert target_of(learner_of(10_000), 0.5, 0.8).least == pytest.approx(0.4)


# ---- the learning rate --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "chosen", "best"),
    [
        ((0.905, 0.93, 0.91), 0, 0.93),  # one standard error of .93 on 96 sentences is .028
        ((0.80, 0.90, 0.92), 1, 0.92),
        ((0.50, 0.70, 0.90), 2, 0.90),
        ((0.50, 0.90, 0.40), 1, 0.90),
    ],
)
def test_the_smallest_rate_within_a_standard_error(scores: Any, chosen: int, best: float) -> None:
    rates = (1e-4, 1e-3, 1e-2)
    (trial, top), made = drive(
        gentlest_rate(rates[::-1], {"lam": 0.0}, 96), lambda c: scores[rates.index(c["lr"])]
    )
    assert [one.choice["lr"] for one in made] == list(rates)
    assert (trial.choice, top) == ({"lr": rates[chosen], "lam": 0.0}, best)


def test_larger_rates_are_not_tried_where_none_can_be_better() -> None:
    (trial, best), made = drive(gentlest_rate((1e-3, 1e-4), {}, 96), lambda c: 0.99)
    assert (trial, best, len(made)) == (made[0], 0.99, 1)
    assert trial.choice == {"lr": 1e-4}


# ---- the edge -----------------------------------------------------------------------------------------


def search_edge(score: Any, start: float, *, n: int = 10**8, limited: bool = True, **options: Any) -> Any:
    hold = Hold(at, start, at(math.inf) if limited else None, options.pop("limit_first", False))
    found, made = drive(edge(hold, Target(1.0, 0.9, n), FREE, **options), lambda c: score(c["lam"]))
    return found, [trial.choice["lam"] for trial in made]


@given(st.floats(-14, 8), st.floats(0.2, 3))
def test_the_edge_is_found_to_the_factor_wherever_it_is(place: float, steep: float) -> None:
    """The slow way: no value stronger by the factor meets the target, and this one does."""

    def score(lam: float) -> float:
        return 1 / (1 + (lam / math.exp(place)) ** steep)

    true = math.exp(place) * (1 / 0.9 - 1) ** (1 / steep)
    found, tried = search_edge(score, 1.0)
    if found.value:
        assert score(found.value) >= 0.9
        assert found.value <= true * (1 + 1e-9)
        assert found.value * FINE >= true * (1 - 1e-9)
    else:
        assert (found.flags, found.trial) == (("none",), FREE)
        assert true < FINE**-60
    assert len(tried) == len(set(tried)) <= 14


def test_a_start_near_the_edge_takes_four_trainings() -> None:
    found, tried = search_edge(lambda lam: 1 - 0.05 * lam, 1.5)  # the edge is at 2
    assert found.value == pytest.approx(1.5 * FINE)
    assert tried == pytest.approx([1.5, 1.5 * FINE**4, 1.5 * FINE, 1.5 * FINE**2])


def test_ends_that_score_alike_are_not_told_apart() -> None:
    # on 96 sentences a standard error at .9 is .031; the first jump ends 0.02 lower
    found, tried = search_edge(lambda lam: 0.91 if lam <= 1 else 0.89, 1.0, n=96)
    assert (found.value, len(tried)) == (1.0, 2)


def test_a_hold_that_keeps_enough_at_its_limit_is_saturated() -> None:
    found, tried = search_edge(lambda lam: 0.95, 1.0)
    assert (found.value, found.flags) == (math.inf, ("saturated",))
    assert tried == pytest.approx([1.0, FINE**4, FINE**12, math.inf])
    found, tried = search_edge(lambda lam: 0.95, 1.0, limit_first=True)
    assert (found.value, tried) == (math.inf, [math.inf])
    found, tried = search_edge(lambda lam: 0.95, 1.0, limited=False)
    assert found.flags == ("ceiling",)
    assert found.value == pytest.approx(FINE**12)


def test_the_limit_of_trainings_counts_once_something_holds() -> None:
    found, tried = search_edge(lambda lam: float(lam < FINE**-20), 1.0, limit=2)
    assert found.flags == ("limit",)
    assert tried == pytest.approx([1.0, FINE**-4, FINE**-12, FINE**-28])
    assert found.value == tried[-1]


@given(st.floats(-10, 10))
def test_a_prediction_chooses_the_start_without_training(place: float) -> None:
    true = math.exp(place)
    start, still = foreseen(1.0, lambda lam: 0.9 if lam <= true else 0.1, 0.5)
    assert start <= true < start * FINE * (1 + 1e-9)
    assert not still


def test_what_is_foreseen_at_the_ends() -> None:
    assert foreseen(3.0, lambda lam: None, 0.5) == (3.0, False)
    start, still = foreseen(1.0, lambda lam: 0.9, 0.5)
    assert still
    assert start == pytest.approx(FINE**47)
    start, still = foreseen(1.0, lambda lam: 0.1, 0.5)
    assert start == pytest.approx(FINE**-48)


# ---- the whole search ---------------------------------------------------------------------------------


def test_the_first_task_has_nothing_to_hold() -> None:
    learner = learner_of(96)
    learner.tasks_seen = 0
    (decision, _), made = drive(stable(learner, None, {"lam": 0.0}, lambda *_: 1 / 0), lambda c: 0.8)
    assert [trial.choice["lr"] for trial in made] == [0.01, 0.1]
    assert decision.trial is made[0]
    assert decision.notes["gold"] == 0.8


def test_a_strength_that_is_set_is_trained_once() -> None:
    plan = stable(learner_of(96), None, {"lam": 0.0}, lambda gold, _: gold.choice | {"lam": 7.0})
    (decision, _), made = drive(plan, lambda c: 0.8 if c["lam"] == 0 else 0.1)
    assert len(made) == 3
    assert decision.trial.choice == {"lr": 0.01, "lam": 7.0}


def test_raising_keeps_the_last_that_meets_the_target() -> None:
    base = Result(at(0.0), 0.95)
    for least, best in ((0.5, 2.0), (0.85, 1.0), (0.93, 0.0)):
        plan = raised((1.0, 2.0, 3.0), at, Target(1.0, least, 96), base, lambda factor: 0.0)
        trial, made = drive(plan, lambda c: {1.0: 0.9, 2.0: 0.6, 3.0: 0.2}[c["lam"]])
        assert trial.choice == at(best)
        assert len(made) == min(best + 1, 3)


def test_what_is_predicted_to_cost_more_than_there_is_to_spare_is_not_trained() -> None:
    base = Result(at(0.0), 0.95)  # 0.05 to spare
    for cost, trained in ((0.04, 2), (0.045, 1), (0.06, 0)):
        plan = raised((1.0, 1.2), at, Target(1.0, 0.9, 96), base, lambda factor, cost=cost: cost * factor)
        trial, made = drive(plan, lambda c: 0.92)
        assert len(made) == trained
        assert trial.choice == ([one.choice for one in made] or [base.choice])[-1]


# ---- real learners ------------------------------------------------------------------------------------

STABLE = {"plan": "stable", "lam_trials": 3}


@pytest.mark.parametrize("name", ["mas", "ewc", "la", "ancl-mas", "lwf"])
@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_lambda_zero_is_seq_bit_for_bit_under_the_stable_plan(one_layer, classes, name, optimizer):
    settings = small(optimizer=optimizer, **STABLE)
    fixed = {"lam", "lam_a"} & METHODS[name].hyper_parameters().keys()
    found = []
    for one, own in (("seq", set()), (name, fixed)):
        learner = make_learner(one_layer, METHODS[one](), classes, settings, fixed=own)
        for task in classes.tasks[:2]:
            learner.learn(task)
        found.append(weights_of(learner))
    assert_same_bits(*found)


def test_la_searches_lambda_under_the_modified_importance(one_layer, classes):
    learner = make_learner(one_layer, METHODS["la"](thr=0.3), classes, small(**STABLE))
    learner.learn(classes.tasks[0])
    lesson = learner.learn(classes.tasks[1])
    held = [trial.choice for trial in lesson.trials if trial.choice["lam"] > 0]
    assert held
    assert all(choice["penalty"] == "proximal" for choice in held)
    assert all(choice["down"] == 1.0 for choice in held)
    assert held[0]["up"] == 0.0
    decided, notes = lesson.decision.trial, lesson.decision.notes
    assert decided.score >= notes["target"]


def test_la_falls_back_to_the_plain_lambda(one_layer, classes):
    learner = make_learner(one_layer, METHODS["la"](), classes, small(**STABLE))
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    decision = scoring(hand, modulated=0.2, plain=0.9).search()
    assert decision.trial.choice["lam"] > 0
    assert decision.trial.choice["down"] is None
    assert decision.trial.score == 0.9


def test_the_search_starts_where_the_quadratic_model_predicts_the_edge(one_layer, classes):
    """The slow way: the merged weights of the first λ reach the target, those a step stronger do not."""
    learner = make_learner(one_layer, METHODS["mas"](), classes, small(epochs=6, **STABLE))
    learner.learn(classes.tasks[0])
    task = classes.tasks[1]
    hand = learner.begin(task)
    decision = hand.search()
    trials = list(hand.trials.values())
    gold = next(trial for trial in trials if trial.choice["lam"] == 0)
    first = next(trial.choice["lam"] for trial in trials if 0 < trial.choice["lam"] < math.inf)
    start, there, squares = hand.start, gold.params, gold.read()["squares"]

    def merged(lam):
        weights = {}
        for name, ahead in there.items():
            way = (ahead - start[name]).abs()
            pull = lam * learner.method.alpha[name]
            share = torch.nan_to_num(pull / (squares[name].sqrt() / way + pull))
            weights[name] = ahead + share * (start[name] - ahead)
        return hand.predicted(weights)

    least = decision.notes["target"]
    scores = [merged(first), merged(first * FINE)]
    assert scores[0] >= least or merged(first / FINE**40) < least
    assert scores[1] < least or merged(first * FINE**40) >= least
    assert all("squares" not in trial.read() for trial in trials if trial.choice["lam"] > 0)

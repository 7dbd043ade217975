"""MAS: a naive training, λ = 0 and λ = ∞, the proximal form, and the search for λ."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.by_hand import LR, distance, dry_task, naive_training
from helpers.learners import make_learner
from helpers.toys import small
from helpers.watching import watch_measures
from helpers.weights import assert_same_bits, weights_of
from torch import Tensor, nn

from holdfast.learning.at_hand import AtHand
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.models.network import Output
from holdfast.steps.proximal import pulled


@pytest.mark.parametrize("lam", [0.0, 3.0, 1000.0])
def test_a_training_by_hand(tiny_bert_dry, domains, lam):
    hand = dry_task(tiny_bert_dry, METHODS["mas"](lr=LR), domains)
    alpha = hand.method.state_dict()["alpha"]
    expected = naive_training(hand, alpha, lam)
    trial = hand.trial(domains.tasks[1], {"lr": LR, "lam": lam})
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 1e-3 * LR
    if lam:
        free = naive_training(hand, alpha, 0.0)
        assert distance(free, expected) > 0.05 * LR, "the penalty must have an effect"


class Silent(nn.Module):
    """A model of one weight, with nothing to learn."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(weight)

    def forward(self, batch: Any) -> Output:
        return Output(torch.empty(0), torch.empty(0), torch.zeros(()))


def test_the_penalty_is_half_lambda():
    """specs/importance_estimators.md, section 8: 0.0646875 and its gradient."""
    method = METHODS["mas"](lam=3.0)
    model = Silent(torch.tensor([[0.1, -0.2], [0.05, 0.0]], dtype=torch.float64))
    method.alpha = {"w": torch.tensor([[0.75, 0.75], [2.25, 3.25]], dtype=torch.float64)}
    anchor = {"w": torch.zeros(2, 2, dtype=torch.float64)}
    training = method.prepare(SimpleNamespace(model=model, start=anchor), None)
    terms = training.losses(model, None)
    assert set(terms) == {"task", "penalty"}
    assert float(terms["penalty"].detach()) == pytest.approx(0.0646875, abs=1e-12)
    terms["penalty"].backward()
    expected = torch.tensor([[0.225, -0.45], [0.3375, 0.0]], dtype=torch.float64)
    assert torch.allclose(model.w.grad, expected, atol=1e-12)


@pytest.mark.parametrize("penalty", ["loss", "proximal"])
@pytest.mark.slow
def test_lambda_zero_is_seq_bit_for_bit(one_layer, classes, penalty):
    seq = make_learner(one_layer, METHODS["seq"](), classes)
    mas = make_learner(one_layer, METHODS["mas"](penalty=penalty), classes, fixed={"lam"})
    for task in classes.tasks[:2]:
        seq.learn(task)
        mas.learn(task)
    assert mas.method.alpha
    assert_same_bits(weights_of(seq), weights_of(mas))


@pytest.mark.parametrize("name", ["mas", "la", "frozen"])
@pytest.mark.parametrize("penalty", ["loss", "proximal"])
def test_lambda_infinity_holds_every_entry_the_past_needs(one_layer, classes, name, penalty):
    learner = make_learner(one_layer, METHODS[name](penalty=penalty), classes)
    learner.learn(classes.tasks[0])
    free = "encoder.encoder.layer.0.output.dropout.adapter.up.bias"
    learner.method.alpha[free][::2] = 0.0
    hand = learner.begin(classes.tasks[1])
    start, alpha = P.snapshot(learner.model), learner.method.state_dict()["alpha"]
    trial = hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": math.inf})
    assert trial.fit["best_epoch"] > 0
    moved = 0
    for key, value in trial.params.items():
        held = alpha[key] > 0
        assert torch.equal(value[held], start[key][held]), key
        moved += int((value != start[key]).sum())
    assert moved
    assert (trial.params[free][::2] != start[free][::2]).any(), "unimportant entries train"
    assert (trial.params["head.linear.weight"][2:] != start["head.linear.weight"][2:]).all(), "new rows train"


# ---- the proximal form --------------------------------------------------------------------------------


def naive_proximal(hand: AtHand, alpha: P.Params, lam: float) -> P.Params:
    """Run AdamW on the task loss, each step followed by (u + r λ α θ0)/(1 + r λ α), r = lr/(√v̂ + ε)."""
    free = torch.optim.AdamW
    model = hand.model
    params = P.trainable(model)
    start = P.snapshot(model)
    optimizer = free(params.values(), lr=LR, weight_decay=0.0)
    batches = hand.train.order(hand.settings.batch_size, torch.Generator().manual_seed(hand.task_seed))
    model.eval()
    for t, indices in enumerate(batches, start=1):
        rate = LR * min(1.0, t / len(batches))
        optimizer.param_groups[0]["lr"] = rate
        optimizer.zero_grad()
        model(hand.train.collate(indices)).loss.backward()
        optimizer.step()
        with torch.no_grad():
            for name, weight in params.items():
                v = optimizer.state[weight]["exp_avg_sq"] / (1 - 0.999**t)
                c = rate / (v.sqrt() + 1e-8) * lam * alpha[name]
                weight.copy_((weight + c * start[name]) / (1 + c))
    optimizer.zero_grad(set_to_none=True)
    found = P.snapshot(model)
    P.restore(model, start)
    return found


def test_a_proximal_training_by_hand(tiny_bert_dry, domains):
    hand = dry_task(tiny_bert_dry, METHODS["mas"](lr=LR, penalty="proximal"), domains)
    hand.model.float()
    alpha = hand.method.alpha = {n: a.float() for n, a in hand.method.alpha.items()}
    hand.start_here()
    lam = 0.02
    expected = naive_proximal(hand, alpha, lam)
    trial = hand.trial(domains.tasks[1], {"lr": LR, "lam": lam})
    assert trial.fit["best_epoch"] == 1
    free = naive_proximal(hand, alpha, 0.0)
    assert distance(free, expected) > 0.1 * LR, "the pull must have an effect"
    assert distance(trial.params, expected) < 2e-2 * LR


@pytest.mark.parametrize("lam", [1e-6, 1.0, 1e12, 1e38])
def test_the_proximal_form_is_stable_at_every_strength(tiny_bert, classes, lam):
    learner = make_learner(tiny_bert, METHODS["mas"](penalty="proximal"), classes)
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    start, alpha = P.snapshot(learner.model), learner.method.alpha
    trial = hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": lam})
    assert not trial.fit["diverged"]
    assert all(torch.isfinite(value).all() for value in trial.params.values())
    if lam == 1e12:
        key = "encoder.encoder.layer.1.output.LayerNorm.weight"
        held = alpha[key] > 1e-3
        assert held.any()
        assert torch.allclose(trial.params[key][held], start[key][held], atol=1e-7)


def test_a_proximal_step_keeps_double_precision():
    u = torch.tensor([1.0 + 1e-12], dtype=torch.float64)
    assert torch.equal(pulled(u, torch.zeros_like(u), torch.zeros_like(u)), u)


# ---- importance ---------------------------------------------------------------------------------------


def test_importance_is_the_running_mean(one_layer, domains, monkeypatch):
    learner = make_learner(one_layer, METHODS["mas"](lam=1.0), domains, fixed={"lam"})
    measured = watch_measures(monkeypatch)
    for task in domains:
        learner.learn(task)
    assert len(measured) == 3
    for name, value in learner.method.alpha.items():
        mean = sum(one.found[name] for one in measured) / 3
        assert torch.allclose(value, mean, rtol=1e-5, atol=1e-9), name


def test_importance_by_maximum(one_layer, domains, monkeypatch):
    learner = make_learner(one_layer, METHODS["mas"](pooling="max", lam=1.0), domains, fixed={"lam"})
    measured = watch_measures(monkeypatch)
    for task in domains.tasks[:2]:
        learner.learn(task)
    first, second = measured
    for name, value in learner.method.alpha.items():
        assert torch.equal(value, torch.maximum(first.found[name], second.found[name]))


# ---- the search for λ ---------------------------------------------------------------------------------


@pytest.fixture
def second(one_layer, classes):
    """Learn the second class-incremental task with these settings."""

    def learn(settings: Any, seed: int = 0, **values: Any):
        learner = make_learner(one_layer, METHODS["mas"](**values), classes, settings, seed=seed)
        learner.learn(classes.tasks[0])
        return learner, learner.learn(classes.tasks[1])

    return learn


def lams(lesson: Any) -> dict[float, Any]:
    return {trial.choice["lam"]: trial for trial in lesson.trials}


def test_the_printed_setting_has_a_lambda_without_plasticity(second):
    settings = small(head="preallocated", logits="all", epochs=6)
    _, lesson = second(settings, seed=3)  # with this seed, rows of unseen labels do not win by chance
    notes, trials = lesson.decision.notes, lams(lesson)
    assert trials[0.0].score > 0.5, "the task can be learnt"
    assert "ceiling" not in notes["flags"]
    assert "saturated" not in notes["flags"]
    assert trials[notes["lam_max"]].score <= 0.02
    below = [lam for lam in trials if 0 < lam < notes["lam_max"] * 0.5]
    grid = [lam for lam in below if math.isclose(math.log10(notes["lam_max"] / lam) % 1, 0, abs_tol=1e-6)]
    assert all(
        trials[lam].score > 0.02 for lam in grid if math.isclose(lam * 10, notes["lam_max"], rel_tol=1e-6)
    )


@pytest.mark.slow
def test_the_search_keeps_enough_plasticity(second):
    _, lesson = second(small(epochs=6, lam_steps=7, lam_trials=5), thr=0.9)
    trial, notes = lesson.decision.trial, lesson.decision.notes
    assert trial.score >= 0.9 * notes["gold"] or "saturated" in notes["flags"]
    stronger = [t for lam, t in lams(lesson).items() if trial.choice["lam"] < lam <= notes["lam_max"]]
    if "saturated" not in notes["flags"] and not set(notes["flags"]) & {"limit", "non-monotone"}:
        assert any(t.score < 0.9 * notes["gold"] for t in stronger) or not stronger


@pytest.mark.slow
def test_lam_max_hardly_moves_what_the_past_needs(second):
    _, lesson = second(small(epochs=6))
    notes = lesson.decision.notes
    points = sorted(lam for lam in lams(lesson) if lam >= notes["lam_max"])
    ratio = points[-1] / notes["lam_max"]
    assert math.isclose(math.log10(ratio), round(math.log10(ratio)), abs_tol=1e-6), (
        "on the grid of powers of ten"
    )
    assert round(math.log10(ratio)) <= 8


def test_a_saturated_task_takes_lam_max(second):
    _, lesson = second(small(), thr=1e-3)
    notes = lesson.decision.notes
    assert "saturated" in notes["flags"]
    assert lesson.decision.trial.choice["lam"] == notes["lam_max"] > 0


@pytest.mark.slow
def test_lambda_is_never_raised(one_layer, classes):
    learner = make_learner(one_layer, METHODS["mas"](thr=1.0), classes, small(epochs=6))
    for task in classes.tasks[:2]:
        learner.learn(task)
    previous = 1e-4
    learner.method.lam = previous
    lesson = learner.learn(classes.tasks[2])
    notes, chosen = lesson.decision.notes, lesson.decision.trial.choice["lam"]
    assert "saturated" not in notes["flags"], "this test needs a task that needs a search"
    assert notes["lam_max"] > previous
    assert chosen <= previous
    assert previous in lams(lesson), "the search starts at the previous value"


@pytest.mark.slow
def test_after_lambda_zero_the_search_starts_at_lam_max(one_layer, classes):
    learner = make_learner(one_layer, METHODS["mas"](thr=1.0), classes, small(epochs=6))
    for task in classes.tasks[:2]:
        learner.learn(task)
    learner.method.lam = 0.0
    lesson = learner.learn(classes.tasks[2])
    assert "saturated" not in lesson.decision.notes["flags"]
    assert lesson.decision.notes["lam_max"] in lams(lesson)


def test_a_threshold_of_zero_is_a_threshold(second):
    _, lesson = second(small(), thr=0.0)
    assert "saturated" in lesson.decision.notes["flags"], "every score reaches 0"


def test_a_scale_of_zero_importance_does_not_divide(one_layer, classes):
    learner = make_learner(one_layer, METHODS["mas"](), classes)
    learner.learn(classes.tasks[0])
    for value in learner.method.alpha.values():
        value.zero_()
    learner.learn(classes.tasks[1])
    assert all(torch.isfinite(value).all() for value in weights_of(learner).values())


def finite(values: dict[str, Tensor]) -> bool:
    return all(bool(torch.isfinite(value).all()) for value in values.values())


@pytest.mark.slow
def test_class_imbalance_of_a_hundred_to_one(one_layer, domains):
    from dataclasses import replace

    from holdfast.data.tasks import Split

    learner = make_learner(one_layer, METHODS["mas"](), domains, small(epochs=1, batch_size=32))
    for task in domains.tasks[:2]:
        pairs = list(zip(task.train.texts, task.train.labels, strict=True))
        glad = [pair for pair in pairs if pair[1] == "glad"]
        sad = [pair for pair in pairs if pair[1] == "sad"]
        learner.learn(replace(task, train=Split.of(glad * 9 + sad[:1])))
    assert finite(weights_of(learner))
    assert finite(learner.method.alpha)

"""ANCL with MAS and LwF: worked examples, reductions, naive trainings."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.by_hand import LR, distance, dry_task, naive_importance
from helpers.distilling import (
    STREAMS,
    Table,
    losses_under,
    naive_epoch,
    question,
    row,
    some,
    teaching,
)
from helpers.learners import make_learner
from helpers.toys import small
from helpers.watching import prepared
from helpers.weights import assert_same_bits, weights_of
from torch import Tensor, nn

from holdfast.importance.estimators import Estimator
from holdfast.maths import params as P
from holdfast.maths.equations import quadratic_penalty
from holdfast.maths.losses import distillation
from holdfast.methods import METHODS, quadratic
from holdfast.methods.ancl import ANCLLWF, ANCLMAS
from holdfast.methods.base import Training
from holdfast.methods.lwf import Teacher
from holdfast.models.network import Output
from holdfast.settings import Settings
from holdfast.steps.proximal import Pull, pull_after_step

# Whole searches over two strengths. See steps/test_two_anchors.py for single steps.
pytestmark = pytest.mark.slow
NAMES = {"ancl-mas": "mas", "ancl-lwf": "lwf"}
every_ancl = pytest.mark.parametrize("name", NAMES)


# ---- worked examples: specs/ancl.md, section 9 --------------------------------------------------------


def exact(*values: float) -> P.Params:
    return {"w": torch.tensor(values, dtype=torch.float64)}


THETA, OLD, AUX = exact(1, -1), exact(0.8, -1.2), exact(1.3, -0.5)
IMPORTANCE, IMPORTANCE_AUX = exact(2, 0.5), exact(1, 4)


def example_pulls(scale: float = 1.0) -> dict[str, Pull]:
    return {
        "penalty": Pull(OLD, IMPORTANCE, 3.0 * scale),
        "auxiliary": Pull(AUX, IMPORTANCE_AUX, 0.5 * scale),
    }


def silent(*args: Any) -> Output:
    """A model with nothing to learn."""
    return Output(torch.empty(0), torch.empty(0), torch.zeros(()))


class Listener(Estimator):
    """An estimator that records the gradients added by pulls."""

    def observe(self, optimizer: Any, params: Any, trace: Any, extra: Any) -> None:
        self.added_gradient = extra


def example_training(**options: Any) -> tuple[Training, nn.Parameter, Callable[..., Any]]:
    """Return a training with the example's pulls, its weight, and the reported gradient of the pulls."""
    method, listener, model = ANCLMAS(lam=3.0, lam_a=0.5, **options), Listener(), nn.Module()
    method.estimator = lambda: listener
    model.w = nn.Parameter(THETA["w"].clone())
    training = quadratic.pulling(method, SimpleNamespace(model=model), example_pulls())
    training.make_optimizer({"w": model.w}, Settings())
    return training, model.w, listener.added_gradient


def test_example_a_terms_and_gradient():
    values = {
        name: float(quadratic_penalty(THETA, pull.anchor, pull.weights, pull.lam))
        for name, pull in example_pulls().items()
    }
    assert values == pytest.approx({"penalty": 0.15, "auxiliary": 0.2725}, abs=1e-12)
    gradient = sum(pull.gradient("w", THETA["w"]) for pull in example_pulls().values())
    assert gradient.tolist() == pytest.approx([1.05, -0.70], abs=1e-12)


def test_example_a_in_the_whole_loss():
    training, weight, added_gradient = example_training()
    terms = training.losses(silent, None)
    assert set(terms) == {"task", "penalty", "auxiliary"}
    assert terms["penalty"].item() == pytest.approx(0.15, abs=1e-12)
    assert terms["auxiliary"].item() == pytest.approx(0.2725, abs=1e-12)
    assert sum(terms.values()).item() == pytest.approx(0.4225, abs=1e-12)
    sum(terms.values()).backward()
    assert weight.grad.tolist() == pytest.approx([1.05, -0.70], abs=1e-12)
    assert added_gradient("w", weight).tolist() == pytest.approx([1.05, -0.70], abs=1e-12)


def test_in_the_proximal_form_the_loss_is_the_task_loss_alone():
    training, weight, added_gradient = example_training(penalty="proximal")
    assert set(training.losses(silent, None)) == {"task"}
    assert added_gradient("w", weight) == 0


def test_example_a_the_point_between_old_and_auxiliary():
    weight = nn.Parameter(THETA["w"].clone())
    optimizer = torch.optim.SGD([weight], lr=0.1)
    pull_after_step(optimizer, {"w": weight}, list(example_pulls(1e15).values()))
    weight.grad = torch.zeros_like(weight)
    optimizer.step()
    assert weight.tolist() == pytest.approx([0.83846154, -0.8], abs=1e-8)


FOUR, FOUR_OLD, FOUR_AUX = row(1.0, 0.2, 0.8, -0.4), row(1.4, -0.1, 0.05, 0.02), row(0.3, 0.1, 1.6, -1.1)
ALL = [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("past", "new", "old", "aux", "total"),
    [([0, 1], [2, 3], 0.64134377, 0.56101017, 1.49890919), (ALL, ALL, 1.36024022, 1.33097947, 1.93535434)],
    ids=["masked", "unmasked"],
)
def test_example_c(past, new, old, aux, total):
    assert distillation(FOUR[:, new], FOUR_AUX[:, new], some(1)).item() == pytest.approx(aux, abs=3e-7)
    model = Table(FOUR)
    teachers = {
        "distillation": Teacher({"z": FOUR_OLD}, past, 0.5),
        "auxiliary": Teacher({"z": FOUR_AUX}, new, 0.1),
    }
    terms = losses_under(model, teachers, question(2, 4), ANCLLWF().temperature)
    assert terms["task"].item() == pytest.approx(1.12213629, abs=3e-7)
    assert terms["distillation"].item() == pytest.approx(0.5 * old, abs=3e-7)
    assert terms["auxiliary"].item() == pytest.approx(0.1 * aux, abs=3e-7)
    assert sum(terms.values()).item() == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize(("pooling", "expected"), [("mean", [2, 3, 5]), ("ema", [1, 2.5, 5.75])])
def test_example_d_what_is_pooled(pooling, expected, monkeypatch):
    method = ANCLMAS(pooling=pooling, keep=0.5)
    measured = iter((2.0, 4.0, 9.0))
    monkeypatch.setattr(quadratic, "measured", lambda learner, estimator, trace: exact(next(measured)))
    found = []
    for _ in range(3):
        method.consolidate(SimpleNamespace(start=exact(7.0)), None)
        found.append(method.alpha["w"].item())
    assert found == expected


# ---- reductions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options"), [("ancl-mas", {}), ("ancl-mas", {"penalty": "proximal"}), ("ancl-lwf", {})]
)
def test_without_lambda_a_it_is_the_method_below(tiny_bert, classes, name, options):
    """Example B, first half, including dropout."""
    ends = []
    for one, more in ((NAMES[name], {}), (name, {"lam_a": 0.0}), (name, {"lam_a": 0.5})):
        learner = make_learner(tiny_bert, METHODS[one](**options), classes, small(epochs=2))
        learner.learn(classes.tasks[0])
        hand = learner.begin(classes.tasks[1])
        ends.append(hand.trial(classes.tasks[1], {"lr": 1e-2, "lam": 5.0} | more).params)
    assert_same_bits(ends[0], ends[1])
    assert distance(ends[0], ends[2]) > 1e-4, "λ_a must have an effect"


@every_ancl
def test_both_strengths_at_zero_are_seq(tiny_bert, domains, name):
    seq = make_learner(tiny_bert, METHODS["seq"](), domains, small(epochs=2))
    ancl = make_learner(tiny_bert, METHODS[name](), domains, small(epochs=2), fixed={"lam", "lam_a"})
    for task in domains.tasks[:2]:
        seq.learn(task)
        ancl.learn(task)
    assert_same_bits(weights_of(seq), weights_of(ancl))


@pytest.mark.parametrize(("penalty", "steps"), [("loss", 200), ("proximal", 3)])
def test_without_task_loss_and_without_lambda_the_auxiliary_network_is_the_goal(
    tiny_bert, classes, penalty, steps
):
    """Example B, second half."""
    learner = make_learner(tiny_bert, ANCLMAS(penalty=penalty), classes, small(epochs=2))
    learner.learn(classes.tasks[0])
    hand = learner.begin(classes.tasks[1])
    method = learner.method.choosing({"lr": 1e-2, "lam": 0.0, "lam_a": 1e6})
    training, pulls = prepared(method, hand, classes.tasks[1])
    aux = hand.look_ahead(classes.tasks[1], 1e-2).params
    assert set(pulls) == {"auxiliary"}
    live = P.trainable(learner.model)
    optimizer = training.make_optimizer(live, learner.settings)
    away = distance(hand.start, aux)
    assert away > 5e-3
    for t in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - t / steps)
        optimizer.zero_grad()
        loss = sum(training.losses(silent, None).values())
        (loss + 0.0 * sum(weight.sum() for weight in live.values())).backward()
        optimizer.step()
    alpha = pulls["auxiliary"].weights
    reached = 0
    for name, weight in live.items():
        needed = alpha[name] > 1e-4
        reached += int(needed.sum())
        assert torch.allclose(weight[needed], aux[name][needed], atol=2e-2 * away), name
        assert torch.equal(weight[alpha[name] == 0], hand.start[name][alpha[name] == 0])
    assert reached > 0.9 * P.size(aux)


# ---- whole trainings ----------------------------------------------------------------------------------


def naive_penalty(*pulls: tuple[P.Params, P.Params, float]) -> Callable[..., Tensor]:
    """Return the sum over pulls of (λ/2) Σ α (θ - anchor)²."""

    def term(student: nn.Module, logits: Tensor, batch: Any) -> Tensor:
        live = dict(student.named_parameters())
        return sum(
            lam / 2 * (alpha[name] * (live[name] - value) ** 2).sum()
            for anchor, alpha, lam in pulls
            for name, value in anchor.items()
        )

    return term


def naive_proximal(old: tuple[P.Params, P.Params, float], aux: tuple[P.Params, P.Params, float]) -> Any:
    """Apply (u + r (λ α θ_old + λ_a α_aux θ_aux)) / (1 + r (λ α + λ_a α_aux)), r = lr/(√v̂ + ε)."""

    def after(optimizer: torch.optim.Optimizer, params: dict[str, nn.Parameter], t: int) -> None:
        with torch.no_grad():
            for name, weight in params.items():
                v = optimizer.state[weight]["exp_avg_sq"] / (1 - 0.999**t)
                r = optimizer.param_groups[0]["lr"] / (v.sqrt() + 1e-8)
                one, two = (lam * alpha[name] for _, alpha, lam in (old, aux))
                pulled = weight + r * (one * old[0][name] + two * aux[0][name])
                weight.copy_(pulled / (1 + r * (one + two)))

    return after


@pytest.mark.parametrize("stream", STREAMS)
@pytest.mark.parametrize(("penalty", "lam", "lam_a"), [("loss", 300.0, 2.0), ("proximal", 0.03, 0.3)])
def test_a_training_of_ancl_mas_by_hand(tiny_bert_dry, stream, penalty, lam, lam_a):
    """Naive look-ahead, its importance, then AdamW with two pulls."""
    task, method = STREAMS[stream]().tasks[1], ANCLMAS(lr=LR, penalty=penalty)
    hand = dry_task(tiny_bert_dry, method, STREAMS[stream](), batch_size=4)
    start, alpha = P.snapshot(hand.model), method.state_dict()["alpha"]
    aux = naive_epoch(hand)
    alpha_aux = naive_importance(hand, aux)

    def trained(lam: float, lam_a: float, weights: P.Params = alpha_aux) -> P.Params:
        pulls = (start, alpha, lam), (aux, weights, lam_a)
        if penalty == "loss":
            return naive_epoch(hand, naive_penalty(*pulls))
        return naive_epoch(hand, after=naive_proximal(*pulls))

    expected = trained(lam, lam_a)
    trial = hand.trial(task, {"lr": LR, "lam": lam, "lam_a": lam_a})
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 2e-3 * LR
    others = {"λ": trained(0.0, lam_a), "λ_a": trained(lam, 0.0), "α_aux": trained(lam, lam_a, alpha)}
    for what, other in others.items():
        assert distance(other, expected) > 0.05 * LR, f"{what} must have an effect"


@pytest.mark.parametrize(
    ("stream", "outputs", "past", "new"),
    [
        ("classes", "past", [0, 1], [2, 3]),
        ("classes", "all", ALL, ALL),
        ("domains", "past", [0, 1], [0, 1]),
    ],
)
def test_a_training_of_ancl_lwf_by_hand(tiny_bert_dry, stream, outputs, past, new):
    task, method = STREAMS[stream]().tasks[1], ANCLLWF(lr=LR, outputs=outputs)
    hand = dry_task(tiny_bert_dry, method, STREAMS[stream](), batch_size=4)
    start, aux, lam, lam_a = P.snapshot(hand.model), naive_epoch(hand), 30.0, 20.0

    def trained(past: list[int], new: list[int], lam: float, lam_a: float) -> P.Params:
        return naive_epoch(hand, teaching(hand, start, past, lam), teaching(hand, aux, new, lam_a))

    expected = trained(past, new, lam, lam_a)
    trial = hand.trial(task, {"lr": LR, "lam": lam, "lam_a": lam_a})
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    assert distance(trial.params, expected) < 5e-3 * LR
    others = {"λ": (past, new, 0.0, lam_a), "λ_a": (past, new, lam, 0.0)}
    if stream == "classes":
        others["rows"] = (past, past if past != new else [2, 3], lam, lam_a)
    for what, other in others.items():
        assert distance(trained(*other), expected) > 0.05 * LR, f"{what} must have an effect"

"""Estimators: worked examples of specs/importance_estimators.md, section 8, and naive loops over steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from helpers.importance import Bowl, Features, nothing, row, watched_descent, worked_bowl
from helpers.tensors import F64, vector
from torch import Tensor, nn

from holdfast.data.batches import Examples
from holdfast.importance import estimators
from holdfast.importance.estimators import EndedTraining, Estimator, RWalkEstimator, SIEstimator
from holdfast.maths.equations import normalised
from holdfast.maths.params import Params, snapshot, trainable, zeros
from holdfast.methods import METHODS
from holdfast.methods.base import Training
from holdfast.methods.quadratic import pulling
from holdfast.settings import Settings
from holdfast.steps.proximal import Pull

# ---- Fisher -------------------------------------------------------------------------------------------


@pytest.fixture
def worked() -> EndedTraining:
    model = Features([[1.0, 2.0], [-1.0, 1.0]], [[0.5, -0.25], [-0.5, 0.75]])
    return EndedTraining(model, Examples(tokens=[[0], [1]], labels=[0, 1], pad=0), snapshot(model), {})


FISHERS = {"true": [0.27432799, 1.07599796], "expected": [0.15080276, 0.44572066]}


@pytest.mark.parametrize("labels", FISHERS)
@pytest.mark.parametrize("batch_size", [1, 2])
def test_fisher_worked_numbers(worked, labels, batch_size):
    over = EndedTraining(worked.model, worked.data, worked.start, {}, batch_size=batch_size)
    found = estimators.FisherEstimator(labels).finish(over)["head.linear.weight"]
    assert torch.allclose(found, row(FISHERS[labels]), atol=1e-8)


def test_mas_worked_numbers(worked):
    expected = torch.tensor([[0.75, 0.75], [2.25, 3.25]], dtype=F64)
    assert torch.allclose(estimators.MASEstimator().finish(worked)["head.linear.weight"], expected, atol=1e-8)
    lacl = estimators.MASEstimator("lacl").finish(worked)["head.linear.weight"]
    assert torch.allclose(lacl, torch.tensor([[15.0, 15.0], [5.0, 65.0]], dtype=F64), atol=1e-7)


def test_one_drawn_label_is_the_expectation_on_average(worked):
    many = Examples(tokens=[[0], [1]] * 50, labels=[0, 1] * 50, pad=0)
    draws = torch.stack(
        [
            estimators.FisherEstimator("sample").finish(
                EndedTraining(worked.model, many, worked.start, {}, 100, seed)
            )["head.linear.weight"]
            for seed in range(60)
        ]
    )
    assert len({tuple(draw.flatten().tolist()) for draw in draws}) > 20, "seeds differ"
    error = (draws.mean(0) - row(FISHERS["expected"])).abs()
    # 3000 draws per sample: the standard error of the mean follows from the spread over seeds.
    assert (error < 4 * draws.std(0) / math.sqrt(len(draws))).all()
    assert (error < 0.05 * row(FISHERS["expected"])).all()
    assert ((draws.mean(0) - row(FISHERS["true"])).abs() > 0.3 * row(FISHERS["true"])).all()
    again = estimators.FisherEstimator("sample").finish(
        EndedTraining(worked.model, many, worked.start, {}, 100, 3)
    )
    assert torch.equal(again["head.linear.weight"], draws[3]), "the same seed draws the same labels"


def test_sampled_labels_do_not_touch_the_global_generator(worked):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    estimators.FisherEstimator("sample").finish(worked)
    assert torch.equal(torch.get_rng_state(), before)


def test_passes(worked):
    model = worked.model
    assert estimators.MASEstimator().passes(model) == 1
    assert [
        estimators.FisherEstimator(labels).passes(model) for labels in ("true", "sample", "expected")
    ] == [1, 1, 2]
    assert estimators.SIEstimator().passes(model) == RWalkEstimator().passes(model) == 0
    model.head.add(["2"])
    assert estimators.FisherEstimator("expected").passes(model) == 2, "untaught labels are skipped"
    model.head.teach(["2"])
    assert estimators.FisherEstimator("expected").passes(model) == 3


# ---- SI -----------------------------------------------------------------------------------------------


def test_si_worked_path():
    over = watched_descent(worked_bowl(), estimators.SIEstimator())
    assert torch.allclose(over.model.theta, vector(0.784, -0.271), atol=1e-12)
    assert torch.allclose(over.trace["path/theta"], vector(2.38336, 0.24661), atol=1e-12)
    for damping, expected in ((0.1, (3.33497515, 1.42186680)), (1e-3, (3.87125278, 3.31282492))):
        found = estimators.SIEstimator(damping).finish(over)["theta"]
        assert torch.allclose(found, vector(*expected), atol=1e-8)


def test_a_way_up_the_hill_is_worth_nothing():
    """A negative ω is clamped: the penalty would reward distance."""
    model = worked_bowl()
    start, trace = snapshot(model), {}
    for step in range(3):
        before = vector(step, -step)
        estimators.SIEstimator().step(trace, "theta", vector(1.0, 1.0), before, before + vector(1.0, -1.0))
    assert torch.equal(trace["path/theta"], vector(-3.0, 3.0))
    with torch.no_grad():
        model.theta.copy_(vector(3.0, -3.0))
    found = estimators.SIEstimator(0.1).finish(EndedTraining(model, None, start, trace))["theta"]
    assert torch.allclose(found, vector(0.0, 3.0 / 9.1))


# ---- RWalk --------------------------------------------------------------------------------------------


def test_rwalk_worked_path():
    estimator = RWalkEstimator(damping=1e-3, interval=1)
    over = watched_descent(worked_bowl(), estimator)
    with torch.no_grad():  # leave the untrained weight out of the normalisation
        over.model.idle.requires_grad_(False)
    fisher, score = estimator.parts(over.model, over.trace)
    assert torch.allclose(fisher["theta"], vector(2.54464, 0.67339), atol=1e-8)
    assert torch.allclose(score["theta"], vector(5.40310376, 50.34557469), atol=1e-7)
    assert torch.allclose(normalised(fisher)["theta"], vector(1.0, 0.0))
    assert torch.allclose(normalised(score)["theta"], vector(0.0, 1.0))
    assert torch.allclose(estimator.finish(over)["theta"], vector(1.0, 1.0))


def naive_rwalk(
    steps: list[tuple[float, float, float]], interval: int, damping: float, fisher: float | None = None
) -> tuple[float, float]:
    """Return F and s of one entry from its (gradient, before, after) at every step."""
    score = 0.0
    if fisher is None:
        fisher = steps[0][0] ** 2
    for first in range(0, len(steps), interval):
        part = steps[first : first + interval]
        saved = sum(-g * (after - before) for g, before, after in part)
        moved = part[-1][2] - part[0][1]
        score += max(0.0, saved / (0.5 * fisher * moved**2 + damping))
        fisher = 0.9 * sum(g * g for g, *_ in part) / len(part) + 0.1 * fisher
    return fisher, score


def noisy_walk(steps: int, size: int = 4, seed: int = 0) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Return gradients and steps that only partly follow them."""
    generator = torch.Generator().manual_seed(seed)
    here, found = torch.zeros(size, dtype=F64), []
    for _ in range(steps):
        gradient = torch.randn(size, generator=generator, dtype=F64) + vector(1.0, -0.5, 0.0, 0.2)[:size]
        there = here - 0.05 * gradient + 0.03 * torch.randn(size, generator=generator, dtype=F64)
        found.append((gradient, here, there))
        here = there
    return found


@pytest.mark.parametrize("steps", [3, 10, 20, 23])
@pytest.mark.parametrize("running", [False, True])
def test_rwalk_interval_of_ten(steps, running):
    estimator, walk = RWalkEstimator(damping=1e-3, interval=10), noisy_walk(steps)
    model = nn.ParameterDict({"w": nn.Parameter(walk[-1][2].clone())})
    past = vector(0.3, 2.0, 0.0, 1.0)
    trace = {"fisher/w": past.clone()} if running else {}
    for gradient, before, after in walk:
        estimator.step(trace, "w", gradient, before, after)
    noted = {key: value.clone() for key, value in trace.items()}
    fisher, score = estimator.parts(model, trace)
    for i in range(4):
        entry = [(float(g[i]), float(before[i]), float(after[i])) for g, before, after in walk]
        expected = naive_rwalk(entry, 10, 1e-3, float(past[i]) if running else None)
        assert (float(fisher["w"][i]), float(score["w"][i])) == pytest.approx(expected, rel=1e-10)
    assert any(float(value) > 0 for value in score["w"])
    assert trace.keys() == noted.keys(), "reading the parts closes no interval"
    assert all(torch.equal(trace[key], noted[key]) for key in noted)
    assert ("path/w" in trace) == (steps % 10 != 0)


def test_a_weight_that_joins_later_has_intervals_of_its_own():
    """One of two weights has a gradient only from the fourth step on."""
    estimator, walk, trace = RWalkEstimator(interval=5), noisy_walk(9), {}
    for number, (gradient, before, after) in enumerate(walk):
        estimator.step(trace, "early", gradient, before, after)
        if number >= 3:
            estimator.step(trace, "late", gradient, before, after)
    here = walk[-1][2]
    model = nn.ParameterDict({"early": nn.Parameter(here.clone()), "late": nn.Parameter(here.clone())})
    fisher, score = estimator.parts(model, trace)
    for name, own in (("early", walk), ("late", walk[3:])):
        entry = [(float(g[0]), float(before[0]), float(after[0])) for g, before, after in own]
        expected = naive_rwalk(entry, 5, 1e-3)
        assert (float(fisher[name][0]), float(score[name][0])) == pytest.approx(expected, rel=1e-10)


def test_the_parts_are_normalised_over_all_weights_together():
    model = nn.ParameterDict({"a": nn.Parameter(torch.zeros(2)), "b": nn.Parameter(torch.zeros(1))})
    fisher = {"a": torch.tensor([1.0, 3.0]), "b": torch.tensor([5.0])}
    score = {"a": torch.tensor([8.0, 4.0]), "b": torch.tensor([0.0])}
    found = RWalkEstimator().combined(model, fisher, score)
    assert torch.allclose(found["a"], torch.tensor([0.0 + 1.0, 0.5 + 0.5]))
    assert torch.allclose(found["b"], torch.tensor([1.0 + 0.0]))


# ---- what is observed: the task's gradient and every step ---------------------------------------------


@dataclass
class Held:
    """A quadratic loss, and a method that pulls its weight towards anchors."""

    model: Bowl
    method: Any
    pulls: dict[str, Pull]
    training: Training

    def train(self, steps: int = 5) -> Tensor:
        """Train and return the path recorded for θ."""
        optimizer = self.training.make_optimizer(trainable(self.model), Settings())
        for _ in range(steps):
            optimizer.zero_grad()
            sum(self.training.losses(self.model, None).values()).backward()
            optimizer.step()
        return self.trace["path/theta"]

    @property
    def trace(self) -> Params:
        return self.training.carried["trace"]


def regularised(
    penalty: str, lam: float, pulls: int = 1, name: str = "si", estimator: Estimator | None = None
) -> Held:
    model = Bowl(vector(4.0, 1.0, 0.5), vector(1.0, -1.0, 2.0), vector(0.3, 0.2, -0.1))
    method = METHODS[name](lr=0.05, penalty=penalty, lam=lam)
    if estimator is not None:
        method.estimator = lambda: estimator
    weights = {"theta": vector(0.7, 0.0, 2.0), "idle": vector(1.0, 1.0, 1.0)}
    anchors = [snapshot(model), {name: value + 0.4 for name, value in snapshot(model).items()}]
    anchors[1]["idle"] = model.idle.detach().clone()
    made = {f"pull {i}": Pull(anchors[i], weights, lam) for i in range(pulls)}
    learner: Any = SimpleNamespace(model=model)
    return Held(model, method, made, pulling(method, learner, made))


class Blind(SIEstimator):
    """SI that ignores what regularisers add to a gradient."""

    def observe(self, optimizer: Any, params: Any, trace: Any, extra: Any) -> None:
        super().observe(optimizer, params, trace, nothing)


def naive_path(held: Held, steps: int = 5) -> Tensor:
    """Return -Σ g Δθ with g from the task loss alone and the steps of torch's AdamW."""
    model, method = held.model, held.method
    theta = model.theta.detach().clone().requires_grad_()
    optimizer = torch.optim.AdamW([theta], lr=method.lr, weight_decay=0.0)
    path = torch.zeros(3, dtype=F64)
    for t in range(1, steps + 1):
        task = 0.5 * (model.a * (theta - model.b).square()).sum()
        (gradient,) = torch.autograd.grad(task, theta)
        total = 0.5 * (model.a * (theta - model.b).square()).sum()
        if method.penalty == "loss" and math.isfinite(method.lam):
            for pull in held.pulls.values():
                drift = theta - pull.anchor["theta"]
                total = total + pull.lam / 2 * (pull.weights["theta"] * drift.square()).sum()
        before = theta.detach().clone()
        optimizer.zero_grad()
        total.backward()
        optimizer.step()
        with torch.no_grad():
            for pull in held.pulls.values():
                if math.isinf(method.lam):
                    entries = pull.weights["theta"] > 0
                    theta[entries] = pull.anchor["theta"][entries]
                elif method.penalty == "proximal":
                    v = optimizer.state[theta]["exp_avg_sq"] / (1 - 0.999**t)
                    c = method.lr / (v.sqrt() + 1e-8) * pull.lam * pull.weights["theta"]
                    theta.copy_((theta + c * pull.anchor["theta"]) / (1 + c))
        path -= gradient * (theta.detach() - before)
    return path


@pytest.mark.parametrize("pulls", [1, 2])
def test_a_penalty_in_the_loss_is_taken_out_of_the_gradient(pulls):
    held = regularised("loss", 3.0, pulls)
    expected = naive_path(held)
    assert torch.allclose(held.train(), expected, rtol=1e-10, atol=1e-14)
    unaware = regularised("loss", 3.0, pulls, estimator=Blind())
    found = unaware.train()
    assert torch.equal(unaware.model.theta, held.model.theta), "observing changes no step"
    assert not torch.allclose(found[[0, 2]], expected[[0, 2]], rtol=1e-2)


def test_a_proximal_pull_is_part_of_the_way():
    held = regularised("proximal", 3.0)
    expected = naive_path(held)
    assert torch.allclose(held.train(), expected, rtol=1e-9, atol=1e-14)
    free = regularised("proximal", 0.0).train()
    assert (free[[0, 2]].abs() > 1.05 * expected[[0, 2]].abs()).all(), "the pull must have an effect"


@pytest.mark.parametrize("penalty", ["loss", "proximal"])
def test_a_held_weight_has_no_way(penalty):
    held = regularised(penalty, math.inf)
    expected = naive_path(held)
    found = held.train()
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-14)
    assert torch.equal(found == 0, torch.tensor([True, False, True]))


@pytest.mark.parametrize("name", ["si", "rwalk"])
def test_weights_without_a_gradient_are_skipped(name):
    free = regularised("loss", 0.0, pulls=0, name=name)
    free.train()
    assert "path/theta" in free.trace
    assert not any(key.endswith("/idle") for key in free.trace)
    over = EndedTraining(free.model, None, zeros(snapshot(free.model)), free.trace)
    found = free.method.estimator().finish(over)
    assert torch.equal(found["idle"], torch.zeros(3, dtype=F64))
    assert (found["theta"] > 0).any()


def test_a_gradient_that_comes_and_goes_is_counted_when_it_is_there():
    model, trace = worked_bowl(), {}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    estimators.SIEstimator().observe(optimizer, trainable(model), trace, nothing)
    for used in (True, False, True):
        optimizer.zero_grad()
        (model.loss() if used else model.idle.sum()).backward()
        optimizer.step()
    two = watched_descent(worked_bowl(), estimators.SIEstimator(), steps=2)
    assert torch.allclose(trace["path/theta"], two.trace["path/theta"], atol=1e-15)
    assert torch.allclose(trace["path/idle"], torch.full((3,), 0.1, dtype=F64))

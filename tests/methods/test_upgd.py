"""UPGD: trainings worked out by hand, what its memory does at task boundaries."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from conftest import assert_same_bits, lopsided, make_learner, small, weights_of
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from holdfast.data.batches import Batch
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.losses import Objective
from holdfast.methods import METHODS

LR, SIGMA, DECAY, BETA = 0.05, 0.03, 0.01, 0.9
HEAD = "head.linear.weight"


def upgd(**values: Any) -> Any:
    return METHODS["upgd"](**{"lr": LR, "sigma": SIGMA, "weight_decay": DECAY, "beta": BETA} | values)


def dry_learner(path: str, method: Any, stream: Any, **changes: Any) -> Learner:
    """A learner without any dropout at the start of the second task, with weights and utilities made up."""
    learner = make_learner(path, method, stream, small(**{"epochs": 1} | changes), fixed={"lr"})
    learner.model.dropout.p = 0.0
    learner.begin(stream.tasks[0])
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():  # adapters near the identity would have hardly any curvature
        for weight in P.trainable(learner.model).values():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    for name, value in P.snapshot(learner.model).items():
        method.utility[name] = 1e-3 * torch.randn(value.shape, generator=generator)
        method.steps[name] = torch.tensor(4.0)
    learner.tasks_seen = 1
    learner._begin_anew()
    learner.begin(stream.tasks[1])
    return learner


# ---- by hand ------------------------------------------------------------------------------------------


class Naive:
    """The same training in double precision, without the library's optimiser, loss or double backward."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.model, self.method = learner, learner.model, learner.method
        counts = learner._task.train.counts()
        self.weight_of = torch.tensor(
            [counts.total() / (len(counts) * counts[label]) for label in self.model.head.labels]
        ).double()

    def loss(self, theta: P.Params, batch: Batch) -> Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            logits = P.predict(self.model, theta, batch.without_loss()).logits
        each = -logits.log_softmax(1)[range(len(batch)), batch.labels]
        weights = self.weight_of[batch.labels]
        return (weights * each).sum() / weights.sum()

    def gradient(self, theta: P.Params, batch: Batch) -> P.Params:
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        found = torch.autograd.grad(self.loss(leaves, batch), list(leaves.values()))
        return dict(zip(theta, found, strict=True))

    def estimate(self, theta: P.Params, batch: Batch, signs: torch.Generator) -> P.Params:
        """z ⊙ Hz of everything but the head, Hz by the difference of two gradients."""
        z = {
            name: 2.0 * torch.randint(0, 2, value.shape, generator=signs) - 1
            for name, value in theta.items()
            if not name.startswith("head.")
        }
        eps = 1e-7
        up = self.gradient({n: t + eps * z[n] if n in z else t for n, t in theta.items()}, batch)
        down = self.gradient({n: t - eps * z[n] if n in z else t for n, t in theta.items()}, batch)
        return {name: z[name] * (up[name] - down[name]) / (2 * eps) for name in z}

    def of_head(self, theta: P.Params, batch: Batch) -> P.Params:
        """Σ_n w_n (p - p²) a² / Σ_n w_n, sample by sample."""
        output = P.predict(self.model, theta, batch.without_loss())
        weights = self.weight_of[batch.labels]
        weight, bias = torch.zeros_like(theta[HEAD]), torch.zeros_like(theta["head.linear.bias"])
        for a, logits, w in zip(output.features, output.logits, weights, strict=True):
            p = logits.softmax(0)
            second = (p - p * p) * w / weights.sum()
            weight += torch.outer(second, a * a).detach()
            bias += second.detach()
        return {HEAD: weight, "head.linear.bias": bias}

    def train(self) -> tuple[P.Params, P.Params]:
        """One epoch: the weights and utilities it ends with."""
        method, learner = self.method, self.learner
        self.model.double().eval()
        theta = {name: value.double() for name, value in learner.start.items()}
        utility = {name: value.double() for name, value in method.utility.items()}
        seed = learner.task_seed
        batches = learner.train.order(learner.settings.batch_size, torch.Generator().manual_seed(seed))
        signs, noise = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        h: P.Params = {}
        for number, indices in enumerate(batches):
            batch = learner.train.collate(indices)
            g = self.gradient(theta, batch)
            if method.order == "second" and number % method.every == 0:
                h = self.of_head(theta, batch)
                if method.curvature == "hutchinson":
                    h |= self.estimate(theta, batch, signs)
            t = 4 + number + 1  # made up: four steps came before
            lr = LR * (number + 1) / len(batches)
            for name, w in theta.items():
                instant = -g[name] * w
                if name in h:
                    instant = instant + h[name] * w * w / 2
                utility[name] = BETA * utility[name] + (1 - BETA) * instant
            corrected = {name: u / (1 - BETA**t) for name, u in utility.items()}
            source = utility if method.maximum == "raw" else corrected
            top = max(float(value.max()) for value in source.values())
            for name, w in theta.items():
                ratio = corrected[name] / top
                if method.scaling == "local":
                    ratio = corrected[name] / corrected[name].square().sum(-1, keepdim=True).sqrt()
                s = 1 / (1 + torch.exp(-ratio))
                xi = SIGMA * torch.randn(w.shape, generator=noise).double()
                step = 2 * (g[name] + xi) * (1 - s) if method.protecting else g[name] + xi * (1 - s)
                theta[name] = w - lr * DECAY * w - lr * step
        self.model.float()
        P.restore(self.model, learner.start)
        return theta, utility


def distance(left: P.Params, right: P.Params) -> float:
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in right)


def relative(found: P.Params, expected: P.Params, start: P.Params) -> float:
    """The largest error beside how far its tensor came."""
    return max(
        float((found[n].double() - expected[n]).abs().max() / (expected[n] - start[n].double()).abs().max())
        for n in expected
    )


VARIANTS: dict[str, dict[str, Any]] = {
    "first": {"order": "first"},
    "head": {"order": "second", "curvature": "head"},
    "hutchinson": {"order": "second", "curvature": "hutchinson"},
    "seldom": {"order": "second", "curvature": "hutchinson", "every": 2},
    "raw": {"order": "first", "maximum": "raw"},
    "local": {"order": "first", "scaling": "local"},
    "unprotected": {"order": "first", "protecting": False},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_training_by_hand(tiny_bert_dry, domains, variant):
    stream = lopsided(domains)
    method = upgd(**VARIANTS[variant])
    learner = dry_learner(tiny_bert_dry, method, stream)
    before = method.state_dict()
    expected, utility = Naive(learner).train()
    assert_same_bits(method.utility, before["utility"])
    trial = learner.trial(stream.tasks[1], {"lr": LR})
    assert trial.fit["best_epoch"] == 1, "the training must have been kept"
    found = trial.read()
    assert relative(found["weights"], expected, learner.start) < 1e-4
    assert relative(found["utility"], utility, before["utility"]) < 1e-4
    assert {float(t) for t in found["steps"].values()} == {7.0}, "four steps before, three now"


def test_these_trainings_differ(tiny_bert_dry, domains):
    stream = lopsided(domains)
    found = {}
    for variant, values in VARIANTS.items():
        learner = dry_learner(tiny_bert_dry, upgd(**values), stream)
        assert learner.train.objective.weights.unique().numel() == 2
        found[variant] = Naive(learner).train()[0]
    for one, other in itertools.combinations(found, 2):
        assert relative(found[one], found[other], learner.start) > 3e-3, (one, other)


@pytest.mark.parametrize("curvature", ["hutchinson", "head"])
def test_a_training_in_double_precision(tiny_bert_dry, domains, curvature):
    method = upgd(order="second", curvature=curvature)
    learner = dry_learner(tiny_bert_dry, method, domains)
    expected, _ = Naive(learner).train()
    learner.model.double()
    method.utility = {name: value.double() for name, value in method.utility.items()}
    learner.begin(domains.tasks[1])
    trial = learner.trial(domains.tasks[1], {"lr": LR})
    assert relative(trial.params, expected, learner.start) < 1e-5


def test_worked_curvature_of_the_head():
    """specs/upgd.md, section 9: W2 [[.18395763, .01991612]] twice; two samples of the same are their mean."""
    hidden = torch.tanh(torch.tensor([[0.3, -0.5], [0.8, 0.2]]) @ torch.tensor([1.0, -2.0])
                        + torch.tensor([0.1, -0.1]))  # fmt: skip
    logits = torch.tensor([[0.7, -0.4], [-0.2, 0.6]]) @ hidden
    objective = Objective(torch.zeros(2), torch.tensor([0.3, 1.7]))
    for n in (1, 2):
        labels = torch.ones(n, dtype=torch.long)
        batch = Batch(labels[:, None], labels[:, None], labels, objective)
        found = upgd().head_curvature(batch, hidden.expand(n, 2), logits.expand(n, 2))
        expected = torch.tensor([0.18395763, 0.01991612]).expand(2, 2)
        assert torch.allclose(found[HEAD], expected, rtol=0, atol=1e-6)
        second = 0.62375189 * 0.37624811
        assert torch.allclose(found["head.linear.bias"], torch.full((2,), second), rtol=0, atol=1e-6)


@pytest.mark.parametrize("stream_name", ["classes", "domains"])
def test_curvature_of_the_head_is_autograds(tiny_bert_dry, stream_name, request):
    """As the method measures it in training, of both scenarios' losses."""
    stream = request.getfixturevalue(stream_name)
    method = upgd(curvature="head")
    learner = dry_learner(tiny_bert_dry, method, stream)
    method.before_task(learner, stream.tasks[1])
    batch = learner.train.collate(range(6))
    method.losses(learner.model, batch)
    assert set(method.measured) == {HEAD, "head.linear.bias"}
    features = learner.model.features(batch).detach()

    def loss(weight: Tensor, bias: Tensor) -> Tensor:
        return batch.objective(features @ weight.T + bias, batch.labels)

    head = learner.model.head.linear
    blocks = torch.autograd.functional.hessian(loss, (head.weight.detach(), head.bias.detach()))
    for i, name in enumerate((HEAD, "head.linear.bias")):
        n = method.measured[name].numel()
        diagonal = blocks[i][i].reshape(n, n).diagonal().view_as(method.measured[name])
        assert diagonal.abs().max() > 1e-3
        assert torch.allclose(method.measured[name], diagonal, rtol=1e-3, atol=1e-6)


# ---- memory -------------------------------------------------------------------------------------------


def test_memory_survives_the_task_boundary_and_grows_by_zeros(tiny_bert, classes):
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=2), fixed={"lr"})
    method = learner.method
    assert method.utility == method.steps == {}
    lesson = learner.learn(classes.tasks[0])
    epochs = lesson.decision.trial.fit["best_epoch"]
    assert epochs > 0
    assert {float(t) for t in method.steps.values()} == {3.0 * epochs}
    assert all((u != 0).any() for u in method.utility.values())
    first = method.state_dict()

    learner.begin(classes.tasks[1])
    for name, value in method.utility.items():
        if name.startswith("head."):
            assert torch.equal(value[:2], first["utility"][name])
            assert torch.equal(value[2:], torch.zeros_like(value[2:]))
            assert len(value) == 4
        else:
            assert torch.equal(value, first["utility"][name])
    assert method.steps == first["steps"]

    started: list[dict[str, Any]] = []
    build = method.optimizer

    def optimizer(params: Any) -> Any:
        started.append(method.state_dict())
        return build(params)

    method.optimizer = optimizer
    lesson = learner.learn(classes.tasks[1])
    assert len(started) == 1
    assert_same_bits(started[0]["steps"], first["steps"])
    for name, value in first["utility"].items():
        assert torch.equal(started[0]["utility"][name][: len(value)], value), name
    more = lesson.decision.trial.fit["best_epoch"]
    assert {float(t) for t in method.steps.values()} == {3.0 * (epochs + more)}


def test_trials_do_not_leak_into_the_memory(tiny_bert, classes):
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    learner.learn(classes.tasks[0])
    learner.begin(classes.tasks[1])
    before, weights = learner.method.state_dict(), weights_of(learner)
    learner.trial(classes.tasks[1], {"lr": 0.3})
    one = learner.trial(classes.tasks[1], {"lr": LR}).read()
    assert_same_bits(learner.method.utility, before["utility"])
    assert_same_bits(learner.method.steps, before["steps"])
    assert_same_bits(weights_of(learner), weights)

    alone = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    alone.learn(classes.tasks[0])
    alone.begin(classes.tasks[1])
    other = alone.trial(classes.tasks[1], {"lr": LR}).read()
    for group in ("weights", "utility", "steps"):
        assert_same_bits(one[group], other[group])


def test_the_best_epoch_brings_its_utility_back(tiny_bert, classes, monkeypatch):
    losses = iter([1.0, 0.5, 0.9, 0.8])
    monkeypatch.setattr("holdfast.learning.fit._valid_loss", lambda *_: next(losses))
    learner = make_learner(tiny_bert, upgd(), classes, small(epochs=3), fixed={"lr"})
    method = learner.method
    seen: list[tuple[dict[str, Any], P.Params]] = []
    deployed = method.deployed

    def spy(own: Learner, task: Any) -> P.Params:
        seen.append((method.state_dict(), P.snapshot(own.model)))
        return deployed(own, task)

    method.deployed = spy
    lesson = learner.learn(classes.tasks[0])
    assert lesson.decision.trial.fit["epochs"] == 3
    assert lesson.decision.trial.fit["best_epoch"] == 1
    assert [float(state["steps"][HEAD]) for state, _ in seen] == [0, 3, 6, 9]
    state, weights = seen[1]
    assert_same_bits(method.utility, state["utility"])
    assert_same_bits(method.steps, state["steps"])
    assert_same_bits(P.snapshot(learner.model), weights)
    assert distance(method.utility, seen[3][0]["utility"]) > 0


def test_a_learner_goes_on_from_its_stored_state(tiny_bert, classes):
    first = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    first.learn(classes.tasks[0])
    second = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    second.load_state(*first.state())
    for learner in (first, second):
        learner.learn(classes.tasks[1])
    assert_same_bits(weights_of(first), weights_of(second))
    assert_same_bits(first.method.utility, second.method.utility)
    forgetful = make_learner(tiny_bert, upgd(), classes, small(epochs=1), fixed={"lr"})
    forgetful.learn(classes.tasks[0])
    forgetful.method.utility, forgetful.method.steps = {}, {}
    forgetful.learn(classes.tasks[1])
    assert distance(weights_of(forgetful), weights_of(first)) > 1e-5, "the memory must show"

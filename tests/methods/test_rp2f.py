"""RP2F: the worked numbers of specs/rp2f.md, section 11, fusion as an equation, and trainings by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import assert_same_bits, lopsided, make_learner, small, weights_of
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast import importance
from holdfast import params as P
from holdfast.data.batches import Batch, Examples
from holdfast.data.tasks import Stream
from holdfast.equations import fuse
from holdfast.heads import LinearHead
from holdfast.learner import Learner
from holdfast.losses import decorrelation
from holdfast.methods import METHODS
from holdfast.models.classifier import Classifier, Output

F64 = torch.float64
HEAD = "head.linear.weight"
quick = settings(max_examples=60, deadline=None)


def vector(*values: float, dtype: torch.dtype = F64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def fused(old: Tensor, learnt: Tensor, past: Tensor, new: Tensor) -> Tensor:
    return fuse({"w": old}, {"w": learnt}, {"w": past}, {"w": new})["w"]


# ---- worked numbers -----------------------------------------------------------------------------------


def test_example_a_fusion():
    old, learnt = vector(1, 2, 3, 4), vector(3, 2, -1, 0)
    past, new = vector(3, 1, 0, 1e-11), vector(1, 1, 2, 1e-11)
    assert torch.allclose(fused(old, learnt, past, new), vector(1.5, 2, -1, 2), rtol=0, atol=1e-12)
    # The released code adds 1e-10 to both denominators: shares of tiny precisions no longer add up to 1.
    lacl = past * old / (past + new + 1e-10) + new * learnt / (past + new + 1e-10)
    assert torch.allclose(lacl, vector(1.5, 2, -1, 1 / 3), rtol=0, atol=1e-8)


def test_example_b_running_mean():
    value, precision = vector(6.0), vector(1.0)
    for learnt, expected in ((3.0, 4.5), (0.0, 3.0)):
        value = fused(value, vector(learnt), precision, vector(1.0))
        precision = precision + 1
        assert float(value) == pytest.approx(expected, abs=1e-12)


def test_example_c_decorrelation():
    features = torch.tensor([[1.0, 2, 3, 4], [2, 1, 0, 1], [-1, 0, 1, 4]])
    assert float(decorrelation(features)) == pytest.approx(4.37142852, abs=1e-5)
    pairs = [(0, 1, -1.89736658), (0, 2, 2.86854865), (1, 2, -1.13389341)]
    for i, j, expected in pairs:
        assert float(decorrelation(features[[i, j]])) == pytest.approx(expected**2, abs=1e-5)
        correlation = torch.corrcoef(features[[i, j]])[0, 1]
        assert 3 * float(correlation) == pytest.approx(expected, abs=1e-5)


class Worked(Classifier):
    """x → tanh(W1 x + b1) → W2 → cross-entropy, in double precision; token 0 says which x."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.register_buffer("table", torch.tensor([[1.0, -2.0], [0.5, 1.5]], dtype=F64))
        self.hidden = nn.Linear(2, 2).double()
        self.head = LinearHead(2).double()
        self.head.add(["0", "1"])
        self.head.teach(["0", "1"])
        with torch.no_grad():
            self.hidden.weight.copy_(torch.tensor([[0.3, -0.5], [0.8, 0.2]], dtype=F64))
            self.hidden.bias.copy_(torch.tensor([0.1, -0.1], dtype=F64))
            self.head.linear.weight.copy_(torch.tensor([[0.7, -0.4], [-0.2, 0.6]], dtype=F64))
            self.head.linear.bias.zero_()

    def forward(self, batch: Batch) -> Output:
        features = torch.tanh(self.hidden(self.table[batch.input_ids[:, 0]]))
        logits = self.head(features)
        return Output(features, logits, nn.functional.cross_entropy(logits, batch.labels))


def worked(copies: int = 1) -> tuple[Worked, Examples]:
    return Worked(), Examples(tokens=[[0], [1]] * copies, labels=[1, 0] * copies, pad=0)


PERTURBED = {
    0.0: [[0.03351774, 0.25223191], [0.07851059, 0.47799125]],
    1e-3: [[0.03357376, 0.25270997], [0.07877019, 0.47782120]],
    0.1: [[0.03663805, 0.29545356], [0.10386552, 0.45801564]],
}


@pytest.mark.parametrize("shift", PERTURBED)
@pytest.mark.parametrize("floor", [0.0, 1e-6, 0.25])
def test_example_d_perturbation(shift, floor):
    model, data = worked()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = importance.perturbation(model, data, shift=shift, floor=floor)
    expected = torch.tensor(PERTURBED[shift], dtype=F64) + floor
    assert torch.allclose(found["hidden.weight"], expected, rtol=0, atol=1e-8)
    assert torch.equal(found["hidden.bias"], vector(1.0, 1.0))
    assert torch.equal(found["head.linear.bias"], vector(1.0, 1.0))
    assert_same_bits(dict(model.state_dict()), before)
    assert all(weight.grad is None for weight in model.parameters())
    assert model.training


def test_a_shift_of_the_head_is_invisible():
    """All logits move together: its importance is that of the weights as they are."""
    model, data = worked()
    still, shifted = (importance.perturbation(model, data, shift=s, floor=0.0)[HEAD] for s in (0.0, 0.5))
    assert torch.allclose(still, shifted, rtol=0, atol=1e-12)
    assert (still > 1e-2).all()


def test_perturbation_is_a_sum_of_batch_means_over_samples():
    """As in its authors' code: the scale depends on the batch size, the absolute value is of each batch."""
    model, data = worked(copies=3)
    expected = torch.tensor(PERTURBED[0.1], dtype=F64)  # one batch of the two samples, divided by two
    pairs = importance.perturbation(model, data, shift=0.1, floor=0.0, batch_size=2)["hidden.weight"]
    whole = importance.perturbation(model, data, shift=0.1, floor=0.0, batch_size=6)["hidden.weight"]
    assert torch.allclose(pairs, expected, rtol=0, atol=1e-8)
    assert torch.allclose(whole, expected / 3, rtol=0, atol=1e-8)
    with torch.no_grad():
        model.hidden.weight.add_(0.1)
    single = torch.zeros(2, 2, dtype=F64)
    for i in range(2):
        model.zero_grad()
        model(data.collate([i])).loss.backward()
        single += model.hidden.weight.grad.abs() / 2
    with torch.no_grad():
        model.hidden.weight.sub_(0.1)
    ones = importance.perturbation(model, data, shift=0.1, floor=0.0, batch_size=1)["hidden.weight"]
    assert torch.allclose(ones, single, rtol=0, atol=1e-12)


def test_perturbation_has_seen_enough_after_the_limit(monkeypatch):
    model, data = worked(copies=5)
    seen: list[int] = []
    forward = Worked.forward

    def spy(own: Worked, batch: Batch) -> Output:
        seen.append(len(batch))
        return forward(own, batch)

    monkeypatch.setattr(Worked, "forward", spy)
    for limit, batches in ((0, 1), (3, 1), (4, 2), (5, 2), (7, 2), (8, 3), (2000, 3)):
        seen.clear()
        found = importance.perturbation(model, data, shift=0.1, floor=0.0, limit=limit, batch_size=4)
        assert seen == [4, 4, 2][:batches] * 2, "two matrices"
        part = data.drawn((limit // 4 + 1) * 4, seed=0)
        assert len(part) == sum(seen) // 2
        whole = importance.perturbation(model, part, shift=0.1, floor=0.0, batch_size=4)
        assert torch.equal(found["hidden.weight"], whole["hidden.weight"])


def test_example_d_fisher():
    model, data = worked()
    expected = torch.tensor([[0.03998019, 0.32301141], [0.19588380, 0.94837006]], dtype=F64)
    for batch_size in (1, 2):
        found = importance.fisher(model, data, batch_size=batch_size)["hidden.weight"]
        assert torch.allclose(found, expected, rtol=0, atol=1e-8)


def test_example_e_one_side_alone():
    old, learnt = vector(0.1, 0.2), vector(-7.3, 1e-9)
    some, none = vector(3e-7, 5.0), vector(0.0, 0.0)
    assert torch.equal(fused(old, learnt, some, none), old)
    assert torch.equal(fused(old, learnt, none, some), learnt)
    assert torch.equal(fused(old, learnt, none, none), learnt), "nothing of the past is at stake"


# ---- fusion as an equation ----------------------------------------------------------------------------

weights = st.floats(-1e4, 1e4, width=32, allow_subnormal=False)
precisions = st.floats(-30, 30).map(lambda exponent: 10.0**exponent)
dtypes = st.sampled_from([torch.float32, F64])


@quick
@given(st.lists(st.tuples(weights, weights, precisions, precisions), min_size=1, max_size=6), dtypes)
def test_the_mean_lies_between(rows, dtype):
    old, learnt, past, new = (vector(*column, dtype=dtype) for column in zip(*rows, strict=True))
    found = fused(old, learnt, past, new)
    assert found.dtype == dtype
    assert (found >= torch.minimum(old, learnt)).all()
    assert (found <= torch.maximum(old, learnt)).all()
    p, q = past.double(), new.double()
    exact = p / (p + q) * old.double() + q / (p + q) * learnt.double()
    size = torch.maximum(old.abs(), learnt.abs()).double()
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    assert ((found.double() - exact).abs() <= tolerance * size).all()


@quick
@given(precisions, precisions, dtypes)
def test_shares_add_up_to_one(past, new, dtype):
    p, q = vector(past, dtype=dtype), vector(new, dtype=dtype)
    zero, one = vector(0.0, dtype=dtype), vector(1.0, dtype=dtype)
    of_new, of_past = fused(zero, one, p, q), fused(one, zero, p, q)
    assert float(of_new) + float(of_past) == pytest.approx(1.0, abs=1e-7 if dtype == torch.float32 else 1e-15)
    assert float(of_new) == pytest.approx(new / (past + new), rel=1e-5)


@quick
@given(st.lists(st.tuples(weights, weights, precisions, precisions), min_size=1, max_size=6))
def test_the_two_sides_are_alike(rows):
    old, learnt, past, new = (vector(*column) for column in zip(*rows, strict=True))
    there, back = fused(old, learnt, past, new), fused(learnt, old, new, past)
    size = torch.maximum(old.abs(), learnt.abs())
    assert ((there - back).abs() <= 1e-14 * size).all()


@quick
@given(weights, weights, precisions, dtypes)
def test_no_precision_no_say(old, learnt, some, dtype):
    a, b, p = (vector(value, dtype=dtype) for value in (old, learnt, some))
    zero = torch.zeros_like(p)
    assert torch.equal(fused(a, b, zero, p), b)
    assert torch.equal(fused(a, b, p, zero), a)
    assert torch.equal(fused(a, b, zero, zero), b)


def test_fuse_changes_no_argument():
    sides = [
        {"w": vector(1.0, 2.0)},
        {"w": vector(3.0, 4.0)},
        {"w": vector(0.0, 1.0)},
        {"w": vector(0.0, 1.0)},
    ]
    before = [{"w": side["w"].clone()} for side in sides]
    found = fuse(*sides)
    found["w"].fill_(9.0)
    for side, own in zip(sides, before, strict=True):
        assert torch.equal(side["w"], own["w"])


def test_single_precision_sums_of_tiny_precisions_do_not_vanish():
    """In single precision 1e-30 + 1e-40 is 1e-30; subnormal squares still have a ratio."""
    tiny = vector(3e-45, 1e-40, dtype=torch.float32)
    found = fused(vector(0, 0, dtype=torch.float32), vector(1, 1, dtype=torch.float32), tiny, tiny)
    assert torch.allclose(found, vector(0.5, 0.5, dtype=torch.float32))


# ---- the robustness term ------------------------------------------------------------------------------


def naive_decorrelation(features: Tensor) -> Tensor:
    """The mean over ordered pairs of samples of (Σ_d f̃_n f̃_m)²."""
    n, d = features.shape
    if n == 1:
        return features.new_zeros(())
    standard = []
    for row in features:
        mean = row.sum() / d
        variance = ((row - mean) ** 2).sum() / (d - 1)
        standard.append((row - mean) / (1e-8 + variance).sqrt())
    total = features.new_zeros(())
    for i in range(n):
        for j in range(n):
            if i != j:
                total = total + (standard[i] * standard[j]).sum() ** 2
    return total / (n * (n - 1))


@quick
@given(st.integers(1, 6), st.integers(2, 9), st.integers(0, 10**6), st.floats(-2, 2))
def test_decorrelation_against_a_double_loop(n, d, seed, exponent):
    generator = torch.Generator().manual_seed(seed)
    features = 10.0**exponent * torch.randn(n, d, generator=generator, dtype=F64) + 0.3
    found, expected = features.clone().requires_grad_(), features.clone().requires_grad_()
    value, by_hand = decorrelation(found), naive_decorrelation(expected)
    bound = (d - 1) ** 2
    assert float(value.detach()) == pytest.approx(float(by_hand.detach()), rel=1e-3, abs=1e-4 * bound)
    assert -1e-5 * bound <= float(value.detach()) <= 1.0001 * bound
    value.backward()
    if n > 1:
        by_hand.backward()
        scale = float(expected.grad.abs().max())
        assert torch.allclose(found.grad, expected.grad, rtol=1e-2, atol=1e-2 * scale + 1e-3 * bound)


def test_one_sample_has_no_pair():
    features = torch.randn(1, 8, requires_grad=True)
    value = decorrelation(features)
    assert float(value.detach()) == 0.0
    value.backward()
    assert torch.equal(features.grad, torch.zeros(1, 8))


def test_identical_rows_and_constant_rows_have_finite_gradients():
    row = torch.randn(8)
    same = row.expand(4, 8).clone().requires_grad_()
    value = decorrelation(same)
    assert float(value.detach()) == pytest.approx(49.0, rel=1e-5), "(d - 1)² at full correlation"
    value.backward()
    assert torch.isfinite(same.grad).all()

    flat = torch.stack([row, torch.full((8,), 0.7), torch.zeros(8)]).requires_grad_()
    value = decorrelation(flat)
    assert float(value.detach()) == pytest.approx(0.0, abs=1e-4)
    value.backward()
    assert torch.isfinite(flat.grad).all()


def test_decorrelation_is_over_pairs_of_samples_not_of_features():
    orthogonal = torch.tensor([[1.0, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
    assert float(decorrelation(orthogonal)) == pytest.approx(0.0, abs=1e-6)
    assert float(decorrelation(orthogonal.T)) > 0.1


# ---- a training by hand -------------------------------------------------------------------------------

LR, LAM = 1e-3, 1e-3


def dry_learner(path: str, method: Any, stream: Stream, **changes: Any) -> Learner:
    """A float64 learner without dropout at the start of the second task, with a past made up."""
    own = small(**{"epochs": 2} | changes)
    learner = make_learner(path, method, stream, own, fixed={"lr", "lam"})
    learner.model.double()
    learner.model.dropout.p = 0.0
    learner.begin(stream.tasks[0])
    generator = torch.Generator().manual_seed(0)
    for name, value in P.snapshot(learner.model).items():
        draw = torch.rand(value.shape, generator=generator, dtype=F64)
        method.precision[name] = torch.where(draw < 0.1, 0.0, 10 ** (8 * draw - 8))
        noise = torch.randn(value.shape, generator=generator, dtype=F64)
        method.free[name] = value + 0.02 * noise
    learner.tasks_seen = 1
    learner._begin_anew()
    learner.begin(stream.tasks[1])
    return learner


class Naive:
    """The second task by hand: a free AdamW, a Fisher sample by sample, fusion, the best of the epochs."""

    def __init__(self, learner: Learner) -> None:
        self.learner, self.model = learner, learner.model
        counts = learner._task.train.counts()
        self.weight_of = torch.tensor(
            [counts.total() / (len(counts) * counts[label]) for label in self.model.head.labels]
        ).double()

    def output(self, theta: P.Params, batch: Batch) -> Output:
        self.model.eval()
        found: Output = P.predict(self.model, theta, batch.without_loss())
        return found

    def terms(self, theta: P.Params, batch: Batch, weight_of: Tensor) -> tuple[Tensor, Tensor]:
        each = -self.output(theta, batch).logits.log_softmax(1)[range(len(batch)), batch.labels]
        weights = weight_of[batch.labels]
        return (weights * each).sum(), weights.sum()

    def loss(self, theta: P.Params, batch: Batch, lam: float) -> Tensor:
        losses, weights = self.terms(theta, batch, self.weight_of)
        total = losses / weights
        if lam:
            total = total + lam * naive_decorrelation(self.output(theta, batch).features)
        return total

    def gradient(self, theta: P.Params, loss: Any) -> P.Params:
        leaves = {name: value.clone().requires_grad_() for name, value in theta.items()}
        return dict(zip(theta, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))

    def fisher(self, theta: P.Params) -> P.Params:
        data = self.learner.train
        found = {name: torch.zeros_like(value) for name, value in theta.items()}
        for i in range(len(data)):
            batch = data.collate([i])
            g = self.gradient(
                theta,
                lambda leaves, batch=batch: self.output(leaves, batch).logits.log_softmax(1)[
                    0, batch.labels[0]
                ],
            )
            for name in found:
                found[name] += g[name] ** 2 / len(data)
        return found

    def valid_loss(self, theta: P.Params) -> float:
        data = self.learner.valid
        with torch.no_grad():
            losses, weights = self.terms(theta, data.collate(range(len(data))), self.weight_of)
        return float(losses / weights)

    def train(self, free: P.Params, *, lr: float, lam: float, epochs: int = 2, past: P.Params | None = None):
        """For epochs 0, 1, ...: deployed weights, the learner's, its precision and the validation loss."""
        learner = self.learner
        start = {name: value.double() for name, value in learner.start.items()}
        theta = dict(free)
        m, v = P.zeros(theta), P.zeros(theta)
        shuffle = torch.Generator().manual_seed(learner.task_seed)
        t = 0
        history = [(start, free, {}, self.valid_loss(start))]
        for _ in range(epochs):
            batches = learner.train.order(learner.settings.batch_size, shuffle)
            for indices in batches:
                batch = learner.train.collate(indices)
                g = self.gradient(theta, lambda leaves, batch=batch: self.loss(leaves, batch, lam))
                t += 1
                rate = lr * min(1.0, t / len(batches))
                for name, gradient in g.items():
                    m[name] = 0.9 * m[name] + 0.1 * gradient
                    v[name] = 0.999 * v[name] + 0.001 * gradient**2
                    step = (m[name] / (1 - 0.9**t)) / ((v[name] / (1 - 0.999**t)).sqrt() + 1e-8)
                    theta[name] = theta[name] - rate * step
            precision = self.fisher(theta) if past else {}
            mean = dict(theta)
            for name, new in precision.items():
                total = past[name] + new
                weighted = (past[name] * start[name] + new * theta[name]) / total
                mean[name] = torch.where(total > 0, weighted, theta[name])
            history.append((mean, dict(theta), precision, self.valid_loss(mean)))
        return history


def distance(left: P.Params, right: P.Params) -> float:
    return max(float((left[name].double() - right[name].double()).abs().max()) for name in right)


@pytest.mark.parametrize(("lr", "best"), [(LR, 2), (0.1, 1), (0.3, 0)])
def test_a_training_by_hand(tiny_bert_dry, domains, lr, best):
    stream = lopsided(domains)
    method = METHODS["rp2f"](lr=lr, lam=LAM)
    learner = dry_learner(tiny_bert_dry, method, stream)
    assert learner.train.objective.weights.unique().numel() == 2
    start = {name: value.clone() for name, value in learner.start.items()}
    free, past = method.state_dict()["free"], method.state_dict()["precision"]
    history = Naive(learner).train(free, lr=lr, lam=LAM, past=past)
    losses = [loss for *_, loss in history]
    assert losses.index(min(losses)) == best, "the three cases must differ in their best epoch"
    lesson = learner.learn(stream.tasks[1])
    [trial] = lesson.trials
    assert (trial.fit["epochs"], trial.fit["best_epoch"]) == (2, best)
    assert trial.fit["valid_loss"] == pytest.approx(losses[best], rel=1e-5), "of the fused weights"
    deployed, own, precision, _ = history[best]
    assert distance(P.snapshot(learner.model), deployed) < 1e-3 * lr
    assert distance(method.free, own) < 1e-3 * lr
    assert method.current == {}
    for name, value in method.precision.items():
        new = precision.get(name, torch.zeros_like(value))
        assert torch.allclose(value - past[name], new, rtol=1e-3, atol=1e-9), name
    if best:
        assert distance(deployed, own) > 0.5 * lr, "fusion must show"
        assert distance(deployed, start) > 0.5 * lr
        assert max(float(value.max()) for value in precision.values()) > 1e-4
    else:
        assert_same_bits(P.snapshot(learner.model), start)
        assert_same_bits(method.free, free)
        assert_same_bits(method.precision, past)


@pytest.mark.parametrize("lam", [0.0, LAM])
def test_the_first_task_by_hand(tiny_bert_dry, domains, lam):
    """Plain training with the robustness term: no fusion, the precision is measured at the end."""
    method = METHODS["rp2f"](lr=LR, lam=lam)
    learner = make_learner(tiny_bert_dry, method, domains, small(epochs=2), fixed={"lr", "lam"})
    learner.model.double()
    learner.model.dropout.p = 0.0
    learner.begin(domains.tasks[0])
    naive = Naive(learner)
    *_, (expected, *_) = naive.train(P.snapshot(learner.model), lr=LR, lam=lam)
    fisher = naive.fisher(expected)
    if lam:
        *_, (plain, *_) = naive.train(P.snapshot(learner.model), lr=LR, lam=0.0)
        assert distance(plain, expected) > 0.1 * LR, "the robustness term must show"
    lesson = learner.learn(domains.tasks[0])
    assert lesson.decision.trial.fit["best_epoch"] == 2
    assert distance(P.snapshot(learner.model), expected) < 1e-3 * LR
    assert_same_bits(method.free, P.snapshot(learner.model))
    for name, value in method.precision.items():
        assert torch.allclose(value, fisher[name], rtol=1e-3, atol=1e-9), name


# ---- the learner runs free ----------------------------------------------------------------------------


def second_task(path: str, stream: Stream, own: Any = None, **values: Any) -> Learner:
    """A learner at the start of its second task; what was fused and what ran free are far apart."""
    method = METHODS["rp2f"](**{"lr": 1e-2, "lam": 0.0} | values)
    learner = make_learner(path, method, stream, own or small(epochs=2, patience=3), fixed={"lr", "lam"})
    learner.learn(stream.tasks[0])
    generator = torch.Generator().manual_seed(0)
    for name, value in method.free.items():
        method.free[name] = value + 0.01 * torch.randn(value.shape, generator=generator)
    learner.begin(stream.tasks[1])
    return learner


def spied(learner: Learner) -> list[tuple[P.Params, P.Params]]:
    """At every look at the deployed weights: those, and the model's own."""
    method, seen = learner.method, []
    deployed = method.deployed

    def spy(own: Learner, task: Any) -> P.Params:
        found = deployed(own, task)
        seen.append((found, P.snapshot(own.model)))
        return found

    method.deployed = spy
    return seen


@pytest.mark.parametrize("continues", [True, False])
@pytest.mark.parametrize("stream_name", ["classes", "domains"])
def test_where_the_learner_starts(tiny_bert, stream_name, continues, request):
    stream = request.getfixturevalue(stream_name)
    learner = second_task(tiny_bert, stream, small(epochs=1), continues=continues)
    start, free = P.snapshot(learner.model), learner.method.state_dict()["free"]
    assert distance(start, free) > 1e-2
    seen = spied(learner)
    learner.trial(stream.tasks[1], {"lr": 1e-2})
    deployed, live = seen[0]
    assert_same_bits(deployed, start)
    assert_same_bits(live, free if continues else start)
    assert distance(seen[1][1], live) > 1e-3, "it trains"


@pytest.mark.parametrize("kind", ["fisher", "perturbation"])
def test_a_look_at_the_deployed_weights_changes_nothing(tiny_bert, classes, kind):
    learner = second_task(tiny_bert, classes, importance=kind)
    method, task = learner.method, classes.tasks[1]
    method.before_task(learner, task)
    learner.model.train()
    method.losses(learner.model, learner.train.collate(range(4)))["task"].backward()
    gradients = {name: weight.grad.clone() for name, weight in P.trainable(learner.model).items()}
    before, past = weights_of(learner), method.state_dict()["precision"]
    random = torch.get_rng_state()
    first = method.deployed(learner, task)
    assert_same_bits(weights_of(learner), before)
    assert_same_bits({n: w.grad for n, w in P.trainable(learner.model).items()}, gradients)
    assert_same_bits(method.precision, past)
    assert learner.model.training
    assert torch.equal(torch.get_rng_state(), random)
    assert_same_bits(method.deployed(learner, task), first)
    assert distance(first, method.free) > 0


@pytest.mark.parametrize("kind", ["fisher", "perturbation"])
@pytest.mark.parametrize("continues", [True, False])
def test_training_does_not_depend_on_fusion(tiny_bert, classes, kind, continues):
    """Without the robustness term it is SEQ from the learner's weights, epoch by epoch, dropout included."""
    learner = second_task(tiny_bert, classes, importance=kind, continues=continues)
    origin = learner.method.free if continues else learner.start
    seq = make_learner(tiny_bert, METHODS["seq"](), classes, learner.settings)
    seq.begin(classes.tasks[0])
    seq._begin_anew()
    P.restore(seq.model, {name: value[:2] if "head." in name else value for name, value in origin.items()})
    seq.begin(classes.tasks[1])
    assert_same_bits(P.snapshot(seq.model), origin)
    ours, theirs = spied(learner), spied(seq)
    learner.trial(classes.tasks[1], {"lr": 1e-2})
    seq.trial(classes.tasks[1], {"lr": 1e-2})
    assert len(ours) == len(theirs) == 3
    for epoch, ((deployed, mine), (_, other)) in enumerate(zip(ours, theirs, strict=True)):
        assert_same_bits(mine, other)
        assert epoch == 0 or distance(deployed, mine) > 1e-3, "fusion must show"


def test_the_first_task_without_robustness_is_seq(tiny_bert, classes):
    seq = make_learner(tiny_bert, METHODS["seq"](), classes)
    own = make_learner(tiny_bert, METHODS["rp2f"](lam=0.0), classes, fixed={"lam"})
    for learner in (seq, own):
        learner.learn(classes.tasks[0])
    assert_same_bits(weights_of(seq), weights_of(own))
    assert_same_bits(own.method.free, P.snapshot(own.model))
    robust = make_learner(tiny_bert, METHODS["rp2f"](lam=1e-3), classes, fixed={"lam"})
    robust.learn(classes.tasks[0])
    assert distance(weights_of(robust), weights_of(own)) > 1e-3


def test_the_robustness_term_is_of_the_sentence_vectors(tiny_bert_dry, classes):
    method = METHODS["rp2f"](lam=0.5)
    learner = make_learner(tiny_bert_dry, method, classes)
    learner.begin(classes.tasks[0])
    batch = learner.train.collate(range(5))
    learner.model.eval()
    terms = method.losses(learner.model, batch)
    features = learner.model.features(batch).detach().double()
    assert set(terms) == {"task", "robustness"}
    expected = 0.5 * float(naive_decorrelation(features))
    assert float(terms["robustness"].detach()) == pytest.approx(expected, rel=1e-4)
    method.lam = 0.0
    assert set(method.losses(learner.model, batch)) == {"task"}


def test_new_head_rows_are_the_learners(tiny_bert, classes):
    learner = second_task(tiny_bert, classes)
    method = learner.method
    assert torch.equal(method.precision[HEAD][2:], torch.zeros(2, 32))
    assert torch.equal(method.free[HEAD][2:], learner.start[HEAD][2:]), "they begin as the head's own"
    assert method.free[HEAD].shape == (4, 32)
    lesson = learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] > 0
    deployed = P.snapshot(learner.model)
    for name in (HEAD, "head.linear.bias"):
        assert torch.equal(deployed[name][2:], method.free[name][2:])
        assert (deployed[name][:2] != method.free[name][:2]).all()
        assert (method.precision[name][2:] > 0).all(), "the next task finds them taken"


def test_rows_nobody_has_taught_follow_the_learner(tiny_bert, classes):
    """A preallocated head whose unseen rows are not looked at: 0 beside 0."""
    learner = second_task(tiny_bert, classes, small(head="preallocated", epochs=2))
    lesson = learner.learn(classes.tasks[1])
    assert lesson.decision.trial.fit["best_epoch"] > 0
    assert torch.equal(learner.method.precision[HEAD][4:], torch.zeros(2, 32))
    assert torch.equal(P.snapshot(learner.model)[HEAD][4:], learner.method.free[HEAD][4:])


def test_precision_adds_up_over_tasks(tiny_bert, domains):
    """Π_k = Σ π of the chosen epochs, measured at the learner's weights and not at the deployed ones."""
    method = METHODS["rp2f"](lr=3e-3, lam=1e-6)
    learner = make_learner(tiny_bert, method, domains, small(epochs=2), fixed={"lr", "lam"})
    total: P.Params = {}
    for k, task in enumerate(domains):
        lesson = learner.learn(task)
        assert lesson.decision.trial.fit["best_epoch"] > 0, k
        learner.begin(task)  # its sentences once more
        with P.using(learner.model, method.free):
            own = importance.fisher(learner.model, learner.train)
        learner._begin_anew()
        total = {name: total.get(name, 0) + value for name, value in own.items()}
        for name, value in method.precision.items():
            assert torch.allclose(value, total[name], rtol=1e-3, atol=1e-9), (k, name)
        assert k == 0 or distance(method.free, P.snapshot(learner.model)) > 1e-4


# ---- importance=perturbation --------------------------------------------------------------------------


def test_biases_and_norms_are_running_means_over_tasks(tiny_bert, domains):
    """Example B at full size; the passes are one per matrix and epoch."""
    method = METHODS["rp2f"](lr=3e-3, lam=1e-6, importance="perturbation")
    learner = make_learner(tiny_bert, method, domains, small(epochs=2), fixed={"lr", "lam"})
    frees = []
    for k, task in enumerate(domains):
        lesson = learner.learn(task)
        fit = lesson.decision.trial.fit
        assert fit["best_epoch"] > 0, k
        frees.append(method.free)
        deployed = P.snapshot(learner.model)
        flat = [name for name, value in deployed.items() if value.dim() < 2]
        matrices = [name for name in deployed if name not in flat]
        assert len(flat) == 17
        assert len(matrices) == 9
        for name in flat:
            mean = sum(free[name].double() for free in frees) / (k + 1)
            assert torch.allclose(deployed[name].double(), mean, rtol=0, atol=1e-6), name
            assert torch.equal(method.precision[name], torch.full_like(deployed[name], k + 1.0))
        for name in matrices:
            assert (method.precision[name] >= (k + 1) * 0.99e-6).all()
        passes = 9 * 3 * (fit["epochs"] if k else 1)  # on the first task once, when it is over
        assert lesson.chosen_passes["importance"] == {"forward": passes, "backward": passes}
    assert distance(frees[2], deployed) > 1e-3
    assert distance(frees[1], frees[0]) > 1e-3


def test_passes_of_the_fisher(tiny_bert, classes):
    method = METHODS["rp2f"](lr=1e-2)
    learner = make_learner(tiny_bert, method, classes, small(epochs=2, batch_size=7), fixed={"lr", "lam"})
    first = learner.learn(classes.tasks[0])
    assert first.decision.trial.passes == {"train": {"forward": 8, "backward": 8}}
    assert first.chosen_passes["importance"] == {"forward": 4, "backward": 4}
    second = learner.learn(classes.tasks[1])
    epochs = second.decision.trial.fit["epochs"]
    assert second.chosen_passes["importance"] == {"forward": 4 * epochs, "backward": 4 * epochs}
    assert second.decision.trial.passes["importance"] == second.chosen_passes["importance"]


def test_passes_end_at_the_limit(tiny_bert, classes, monkeypatch):
    """What is counted is what is run."""
    monkeypatch.setattr("holdfast.methods.rp2f.LIMIT", 9)
    learner = second_task(tiny_bert, classes, small(epochs=1, batch_size=5), importance="perturbation")
    calls: list[int] = []
    learner.model.register_forward_hook(lambda *_: calls.append(1))
    with learner._ledger.counting() as passes:
        learner.method.measure(learner)
    assert len(calls) == 9 * 2, "ten samples are more than nine"
    assert passes == {"importance": {"forward": 18, "backward": 18}}


# ---- search -------------------------------------------------------------------------------------------

LAMS = (1e-5, 1e-6, 1e-7)


def tried(learner: Learner, task: Any) -> list[dict[str, float]]:
    return [trial.choice for trial in learner.learn(task).trials]


def grid_learner(
    path: str, stream: Stream, grids: str, fixed: set[str] = frozenset(), **values: Any
) -> Learner:
    own = small(epochs=1, batch_size=24, rates=(1e-2, 1e-3), grids=grids)
    return make_learner(path, METHODS["rp2f"](**values), stream, own, fixed=fixed)


def test_the_grid_of_all_pairs(tiny_bert, classes):
    learner = grid_learner(tiny_bert, classes, "product")
    pairs = {(lr, lam) for lr in (1e-2, 1e-3) for lam in LAMS}
    for task in classes.tasks[:2]:
        choices = tried(learner, task)
        assert len(choices) == 6
        assert {(choice["lr"], choice["lam"]) for choice in choices} == pairs
        assert all(set(choice) == {"lr", "lam"} for choice in choices)


def test_the_grid_after_the_rate(tiny_bert, classes):
    learner = grid_learner(tiny_bert, classes, "after")
    lesson = learner.learn(classes.tasks[0])
    choices = [trial.choice for trial in lesson.trials]
    assert [choice["lam"] for choice in choices] == [1e-5, 1e-5, 1e-6, 1e-7]
    assert [choice["lr"] for choice in choices[:2]] == [1e-2, 1e-3]
    better = max(lesson.trials[:2], key=lambda trial: trial.score).choice["lr"]
    assert {choice["lr"] for choice in choices[2:]} == {better}
    best = max(trial.score for trial in lesson.trials)
    assert lesson.decision.trial.score == best
    assert learner.method.lam == lesson.decision.trial.choice["lam"]


@pytest.mark.parametrize("grids", ["product", "after"])
def test_a_fixed_lambda_is_honoured(tiny_bert, classes, grids):
    learner = grid_learner(tiny_bert, classes, grids, {"lam"}, lam=0.25)
    seen: set[float] = set()
    original = learner.method.losses

    def losses(model: Any, batch: Batch) -> Any:
        seen.add(learner.method.lam)
        return original(model, batch)

    learner.method.losses = losses
    assert tried(learner, classes.tasks[0]) == [{"lr": 1e-2}, {"lr": 1e-3}]
    assert seen == {0.25}
    assert learner.method.lam == 0.25


def test_a_fixed_rate_leaves_three_trials(tiny_bert, classes):
    learner = grid_learner(tiny_bert, classes, "product", {"lr"}, lr=5e-3)
    assert tried(learner, classes.tasks[0]) == [{"lr": 5e-3, "lam": lam} for lam in LAMS]


# ---- a killed run resumes -----------------------------------------------------------------------------


def test_a_rerun_from_trial_files_has_the_same_bits(tiny_bert, classes, tmp_path, monkeypatch):
    def run(workspace: Path | None) -> Learner:
        own = small(epochs=2, batch_size=12, rates=(1e-2,))
        learner = make_learner(tiny_bert, METHODS["rp2f"](), classes, own, workspace=workspace)
        for task in classes:
            learner.learn(task)
        return learner

    first = run(tmp_path)
    assert len(list(tmp_path.glob("*.trial"))) == 9

    def refuse(*_: Any) -> None:
        raise AssertionError("trained although its trial was on disk")

    monkeypatch.setattr(Learner, "_train", refuse)
    again = run(tmp_path)
    assert_same_bits(weights_of(first), weights_of(again))
    for group in ("free", "precision", "current"):
        assert_same_bits(getattr(first.method, group), getattr(again.method, group))
    assert first.method.hparams() == again.method.hparams()
    assert first.method.precision
    assert distance(first.method.free, P.snapshot(first.model)) > 0


def test_a_learner_goes_on_from_its_stored_state(tiny_bert, classes):
    def begin() -> Learner:
        own = small(epochs=1, batch_size=12)
        return make_learner(tiny_bert, METHODS["rp2f"](lr=1e-2), classes, own, fixed={"lr", "lam"})

    first, second = begin(), begin()
    for task in classes.tasks[:2]:
        first.learn(task)
    second.load_state(*first.state())
    for learner in (first, second):
        learner.learn(classes.tasks[2])
    assert_same_bits(weights_of(first), weights_of(second))
    assert_same_bits(first.method.free, second.method.free)
    assert_same_bits(first.method.precision, second.method.precision)

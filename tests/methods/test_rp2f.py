"""RP2F: the worked examples of specs/rp2f.md, section 11, fusion as an equation, the robustness term."""

from __future__ import annotations

import pytest
import torch
from helpers.rp2f import F64, HEAD, naive_decorrelation
from helpers.weights import assert_same_bits
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from holdfast import importance
from holdfast.data.batches import Batch, Examples
from holdfast.heads import LinearHead
from holdfast.maths.equations import fuse
from holdfast.maths.losses import decorrelation
from holdfast.models.network import Network, Output

quick = settings(max_examples=60, deadline=None)


def vector(*values: float, dtype: torch.dtype = F64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def fused(old: Tensor, learnt: Tensor, past: Tensor, new: Tensor) -> Tensor:
    return fuse({"w": old}, {"w": learnt}, {"w": past}, {"w": new})["w"]


# ---- worked examples ----------------------------------------------------------------------------------


def test_example_a_fusion():
    old, learnt = vector(1, 2, 3, 4), vector(3, 2, -1, 0)
    past, new = vector(3, 1, 0, 1e-11), vector(1, 1, 2, 1e-11)
    assert torch.allclose(fused(old, learnt, past, new), vector(1.5, 2, -1, 2), rtol=0, atol=1e-12)
    # The released code adds 1e-10 to both denominators, so shares of tiny precisions do not add up to 1.
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


class Worked(Network):
    """x → tanh(W1 x + b1) → W2 → cross-entropy, in float64; the first token selects x."""

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
    """All logits move together, so the importance is that of the unchanged weights."""
    model, data = worked()
    still, shifted = (importance.perturbation(model, data, shift=s, floor=0.0)[HEAD] for s in (0.0, 0.5))
    assert torch.allclose(still, shifted, rtol=0, atol=1e-12)
    assert (still > 1e-2).all()


def test_perturbation_is_a_sum_of_batch_means_over_samples():
    """As in the authors' code: absolute values are per batch, so the scale depends on the batch size."""
    model, data = worked(copies=3)
    expected = torch.tensor(PERTURBED[0.1], dtype=F64)  # one batch of both samples, divided by two
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
    assert torch.equal(fused(old, learnt, none, none), learnt), "the past has no precision"


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
    """In single precision 1e-30 + 1e-40 is 1e-30, but subnormal squares still have a ratio."""
    tiny = vector(3e-45, 1e-40, dtype=torch.float32)
    found = fused(vector(0, 0, dtype=torch.float32), vector(1, 1, dtype=torch.float32), tiny, tiny)
    assert torch.allclose(found, vector(0.5, 0.5, dtype=torch.float32))


# ---- the robustness term ------------------------------------------------------------------------------


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

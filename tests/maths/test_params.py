"""Params: copies, and models restored to their state."""

import pytest
import torch
from torch import nn

from holdfast.maths import params as P


def model() -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    net[0].bias.requires_grad_(False)
    return net


def others(net: nn.Module) -> P.Params:
    return {name: torch.full_like(value, 0.5) for name, value in P.snapshot(net).items()}


def equal(a: P.Params, b: P.Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_only_trainable_weights_live_and_in_a_snapshot() -> None:
    net = model()
    assert list(P.trainable(net)) == list(P.snapshot(net)) == ["0.weight", "2.weight", "2.bias"]
    assert P.trainable(net)["2.bias"] is net[2].bias


def test_a_snapshot_is_a_copy_and_restore_brings_it_back() -> None:
    net = model()
    before = P.snapshot(net)
    kept = {name: value.clone() for name, value in before.items()}
    assert not any(value.requires_grad for value in before.values())
    with torch.no_grad():
        net[2].weight.add_(1)
    assert equal(before, kept)
    identity = net[2].weight
    P.restore(net, before)
    assert net[2].weight is identity  # in place: an optimiser's reference stays valid
    assert equal(P.snapshot(net), kept)
    before["2.weight"].zero_()
    assert equal(P.snapshot(net), kept)


def test_using_puts_back_even_after_an_error() -> None:
    net = model()
    own = P.snapshot(net)
    with P.using(net, others(net)):
        assert equal(P.snapshot(net), others(net))
    assert equal(P.snapshot(net), own)
    with pytest.raises(ZeroDivisionError), P.using(net, others(net)):
        raise ZeroDivisionError
    assert equal(P.snapshot(net), own)


def test_predict_answers_for_other_weights_without_touching_its_own() -> None:
    net, x = model(), torch.ones(1, 3)
    own, theirs = P.snapshot(net), others(net)
    answer = P.predict(net, theirs, x)
    # by hand: h_i = relu(.5·3 + b_i), z = .5·Σ h + .5
    expected = 0.5 * torch.relu(1.5 + net[0].bias).sum().item() + 0.5
    assert answer[0].tolist() == pytest.approx([expected, expected])
    assert equal(P.snapshot(net), own)
    with P.using(net, theirs):
        assert torch.equal(net(x), answer)


def test_grow_appends_initial_values_or_zeros() -> None:
    own = {"head.weight": torch.ones(2, 3), "head.bias": torch.ones(2), "body": torch.ones(3)}
    rows = {"head.weight": torch.full((1, 3), 5.0), "head.bias": torch.full((1,), 6.0)}
    weights, alphas = P.grow(own, rows, zero=False), P.grow(own, rows, zero=True)
    assert weights["head.weight"].tolist() == [[1] * 3, [1] * 3, [5] * 3]
    assert weights["head.bias"].tolist() == [1, 1, 6]
    assert alphas["head.weight"].tolist() == [[1] * 3, [1] * 3, [0] * 3]
    assert alphas["head.bias"].tolist() == [1, 1, 0]
    for grown in (weights, alphas):
        assert grown["body"].tolist() == [1, 1, 1]
        grown["head.weight"].zero_()
    assert own["head.weight"].tolist() == [[1] * 3] * 2
    assert rows["head.weight"].tolist() == [[5] * 3]


def test_zeros_and_size() -> None:
    own = {"a": torch.ones(2, 3, dtype=torch.float64), "b": torch.ones(4), "c": torch.ones(0, 7)}
    zeros = P.zeros(own)
    assert {n: (v.shape, v.dtype) for n, v in zeros.items()} == {
        n: (v.shape, v.dtype) for n, v in own.items()
    }
    assert not any(v.any() for v in zeros.values())
    assert P.size(own) == 10

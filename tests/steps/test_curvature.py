"""Curvature: Hutchinson's estimate of a Hessian's diagonal, and that of the task loss in the logits."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from helpers.tensors import F64, vector
from helpers.upgd_optimizer import Run
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from holdfast.maths.losses import IGNORED, Objective
from holdfast.steps.upgd import hutchinson

# ---- Hutchinson's estimate ----------------------------------------------------------------------------

X, Y = (1.0, -2.0), 1
NETWORK = {
    "W1": torch.tensor([[0.3, -0.5], [0.8, 0.2]], dtype=F64),
    "b1": vector(0.1, -0.1),
    "W2": torch.tensor([[0.7, -0.4], [-0.2, 0.6]], dtype=F64),
}
HIDDEN = torch.tanh(NETWORK["W1"] @ vector(*X) + NETWORK["b1"])
EXACT_W1 = torch.tensor([[-0.20598076, -0.82392304], [0.52911657, 2.11646629]], dtype=F64)
HESSCALE_W1 = torch.tensor([[-0.20905095, -0.83620378], [0.43477575, 1.73910302]], dtype=F64)
EXACT_W2 = vector(0.18395763, 0.01991612).expand(2, 2)


def worked_loss(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
    logits = w2 @ torch.tanh(w1 @ vector(*X) + b1)
    return -logits.log_softmax(0)[Y]


def worked_network() -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(value.clone()) for name, value in NETWORK.items()}


def flat_hessian() -> Tensor:
    """Return the Hessian of the example network as one matrix over W1, b1, W2."""
    blocks = torch.autograd.functional.hessian(worked_loss, tuple(NETWORK.values()))
    sizes = [value.numel() for value in NETWORK.values()]
    return torch.cat(
        [
            torch.cat([block.reshape(sizes[i], sizes[j]) for j, block in enumerate(row)], 1)
            for i, row in enumerate(blocks)
        ]
    )


def test_the_worked_network():
    params = worked_network()
    assert float(worked_loss(*params.values()).detach()) == pytest.approx(0.97750648, abs=1e-8)
    p = (NETWORK["W2"] @ HIDDEN).softmax(0)
    assert torch.allclose(p, vector(0.62375189, 0.37624811), rtol=0, atol=1e-8)
    diagonal = flat_hessian().diagonal()
    assert torch.allclose(diagonal[:4].view(2, 2), EXACT_W1, rtol=0, atol=1e-8)
    assert torch.allclose(diagonal[-4:].view(2, 2), EXACT_W2, rtol=0, atol=1e-8)


class Signs:
    """Replaces torch.randint by given signs, tensor by tensor."""

    def __init__(self, signs: tuple[int, ...]) -> None:
        self.bits = [(sign + 1) // 2 for sign in signs]

    def __call__(self, low: int, high: int, shape: torch.Size, **_: Any) -> Tensor:
        assert (low, high) == (0, 2)
        n = math.prod(shape)
        mine, self.bits = self.bits[:n], self.bits[n:]
        return torch.tensor(mine).view(shape)


def test_hutchinson_over_all_signs_is_the_diagonal(monkeypatch):
    """For W1 and W2 together. z and -z give the same product, so the first sign is fixed."""
    chosen = [*range(4), *range(6, 10)]
    hessian = flat_hessian()[chosen][:, chosen]
    total = torch.zeros(8, dtype=F64)
    every = [(1, *rest) for rest in itertools.product((-1, 1), repeat=7)]
    for signs in every:
        params = worked_network()
        monkeypatch.setattr(torch, "randint", Signs(signs))
        asked = {name: params[name] for name in ("W1", "W2")}
        found = hutchinson(worked_loss(*params.values()), asked, torch.Generator())
        assert list(found) == ["W1", "W2"]
        flat = torch.cat([value.flatten() for value in found.values()])
        z = vector(*map(float, signs))
        assert torch.allclose(flat, z * (hessian @ z), rtol=0, atol=1e-12)
        total += flat
    mean = (total / len(every)).view(2, 2, 2)
    assert torch.allclose(mean.flatten(), hessian.diagonal(), rtol=0, atol=1e-12)
    assert torch.allclose(mean[0], EXACT_W1, rtol=0, atol=1e-8)
    assert torch.allclose(mean[1], EXACT_W2, rtol=0, atol=1e-8)


def test_hutchinson_over_the_signs_of_one_matrix_is_its_diagonal():
    """Try seeds until all sixteen sign patterns of W1 have occurred; count each once."""
    hessian = flat_hessian()[:4, :4]
    found: dict[tuple[float, ...], Tensor] = {}
    for seed in range(120):
        params = worked_network()
        z = 2 * torch.randint(0, 2, (2, 2), generator=torch.Generator().manual_seed(seed)) - 1
        one = hutchinson(
            worked_loss(*params.values()), {"W1": params["W1"]}, torch.Generator().manual_seed(seed)
        )
        found[tuple(z.flatten().tolist())] = one["W1"]
        flat = z.flatten().double()
        assert torch.allclose(one["W1"].flatten(), flat * (hessian @ flat), rtol=0, atol=1e-12)
    assert len(found) == 16
    mean = torch.stack(list(found.values())).mean(0)
    assert torch.allclose(mean, EXACT_W1, rtol=0, atol=1e-8)


def test_training_goes_on_after_hutchinson():
    plain = worked_network()
    worked_loss(*plain.values()).backward()
    params = worked_network()
    loss = worked_loss(*params.values())
    found = hutchinson(loss, params, torch.Generator().manual_seed(0))
    assert all(weight.grad is None for weight in params.values()), "it leaves no gradient behind"
    assert not any(value.requires_grad for value in found.values()), "nor a graph"
    loss.backward()
    for name, weight in params.items():
        assert torch.equal(weight.grad, plain[name].grad), name


def test_hutchinson_draws_from_its_own_generator():
    def draw(generator: torch.Generator) -> Tensor:
        params = worked_network()
        return hutchinson(worked_loss(*params.values()), params, generator)["W1"]

    torch.manual_seed(1)
    before = torch.get_rng_state()
    generator = torch.Generator().manual_seed(7)
    many = [draw(generator) for _ in range(8)]
    assert torch.equal(torch.get_rng_state(), before)
    assert len({tuple(one.flatten().tolist()) for one in many}) > 1, "the signs differ each time"
    assert torch.equal(draw(torch.Generator().manual_seed(7)), many[0])


def test_hutchinson_of_linear_and_unused_weights():
    curved, linear, unused = (nn.Parameter(vector(0.3, -0.7)) for _ in range(3))
    params = {"linear": linear, "curved": curved, "unused": unused}
    loss = (vector(2.0, 5.0) * linear).sum() + curved.pow(3).sum()
    found = hutchinson(loss, params, torch.Generator().manual_seed(0))
    assert torch.equal(found["linear"], vector(0.0, 0.0))
    assert torch.equal(found["unused"], vector(0.0, 0.0))
    assert torch.allclose(found["curved"], 6 * curved.detach()), (
        "exact for any signs, since the Hessian is diagonal"
    )
    loss.backward()
    assert torch.equal(linear.grad, vector(2.0, 5.0))


def test_hutchinson_of_a_loss_that_is_linear_in_everything():
    weight = nn.Parameter(vector(1.0, 2.0))
    found = hutchinson((vector(2.0, 5.0) * weight).sum(), {"w": weight}, torch.Generator())
    assert torch.equal(found["w"], vector(0.0, 0.0))


def test_hutchinson_of_a_bilinear_loss():
    """The loss is linear in each weight but not in both: the diagonal is zero."""
    a, b = nn.Parameter(vector(2.0)), nn.Parameter(vector(3.0))
    many = []
    for seed in range(40):
        found = hutchinson((a * b).sum(), {"a": a, "b": b}, torch.Generator().manual_seed(seed))
        assert torch.equal(found["a"], found["b"])
        many.append(float(found["a"]))
    assert set(many) == {-1.0, 1.0}


def test_worked_utilities():
    """First- and second-order utility of W1, and the actual cost of zeroing each weight."""
    params = worked_network()
    loss = worked_loss(*params.values())
    loss.backward()
    assert torch.allclose(
        -params["W1"].grad * NETWORK["W1"],
        torch.tensor([[-0.03640289, -0.12134295], [0.45665473, -0.22832736]], dtype=F64),
        rtol=0,
        atol=1e-8,
    )
    exact = flat_hessian().diagonal()[:4].view(2, 2)
    for curvature, expected in (
        ({}, [[-0.03640289, -0.12134295], [0.45665473, -0.22832736]]),
        # The spec's second order uses HesScale's approximation, which drops terms between layers; ...
        ({"w": HESSCALE_W1}, [[-0.04581018, -0.22586843], [0.59578297, -0.19354530]]),
        # ... with the exact diagonal, it is -g w + ½ h w² of the spec's first order and h:
        (
            {"w": exact},
            [
                [-0.03640289 - 0.20598076 / 2 * 0.09, -0.12134295 - 0.82392304 / 2 * 0.25],
                [0.45665473 + 0.52911657 / 2 * 0.64, -0.22832736 + 2.11646629 / 2 * 0.04],
            ],
        ),
    ):
        run = Run(curvature, w=NETWORK["W1"])
        run.step(w=params["W1"].grad)
        assert torch.allclose(run.corrected("w"), torch.tensor(expected, dtype=F64), rtol=0, atol=2e-8)
    true = torch.empty(2, 2, dtype=F64)
    for i, j in itertools.product(range(2), repeat=2):
        without = NETWORK["W1"].clone()
        without[i, j] = 0.0
        true[i, j] = worked_loss(without, NETWORK["b1"], NETWORK["W2"]) - loss.detach()
    expected = torch.tensor([[-0.04694577, -0.25871804], [0.53137362, -0.18351251]], dtype=F64)
    assert torch.allclose(true, expected, rtol=0, atol=1e-8)


# ---- the curvature of the task loss in the logits -----------------------------------------------------


def test_worked_curvature_of_the_head():
    objective = Objective(torch.zeros(2), torch.ones(2))
    second = objective.curvature((NETWORK["W2"] @ HIDDEN)[None], torch.tensor([Y]))
    diagonal = second[0, :, None] * HIDDEN.square()
    assert torch.allclose(diagonal.double(), EXACT_W2, rtol=0, atol=1e-7)


def naive_mean_loss(logits: Tensor, labels: list[int], prior: list[float], weights: list[float]) -> Tensor:
    """Return Σ w_y (-log softmax(z + log π)_y) / Σ w_y over real samples, without classes of prior 0."""
    alive = [c for c, p in enumerate(prior) if p > 0]
    total, normaliser = logits.new_zeros(()), 0.0
    for row, label in zip(logits, labels, strict=True):
        if label == IGNORED:
            continue
        exponentials = torch.stack([prior[c] * row[c].exp() for c in alive])
        own = exponentials[alive.index(label)] / exponentials.sum()
        total, normaliser = total - weights[label] * own.log(), normaliser + weights[label]
    return total / normaliser


OBJECTIVES: dict[str, tuple[list[float], list[float], list[int]]] = {
    "plain": ([1, 1, 1], [1.0, 1.0, 1.0], [0, 2, 1, 1]),
    "class weights": ([1, 1, 1], [0.41, 0.89, 0.16], [0, 2, 1, 1]),
    "balanced softmax": ([7, 1, 20], [1.0, 1.0, 1.0], [0, 2, 2, 0]),
    "unseen class": ([7, 1, 0, 3], [1.0, 1.0, 1.0, 1.0], [0, 3, 3, 0]),
    "fillers": ([1, 1, 1], [2.0, 0.5, 1.0], [IGNORED, 2, IGNORED, 1]),
    "all at once": ([0, 9, 2], [5.0, 0.5, 3.0], [1, IGNORED, 2, 2]),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_curvature_is_autograds_second_derivative(name):
    prior, weights, labels = OBJECTIVES[name]
    objective = Objective(torch.tensor(prior, dtype=torch.float32).log(), torch.tensor(weights))
    logits = 2 * torch.randn(4, len(prior), generator=torch.Generator().manual_seed(0))
    found = objective.curvature(logits, torch.tensor(labels))

    def naive(flat: Tensor) -> Tensor:
        return naive_mean_loss(flat.view(4, -1), labels, prior, weights)

    second = torch.autograd.functional.hessian(naive, logits.double().flatten()).diagonal().view(4, -1)
    assert torch.allclose(found.double(), second, rtol=1e-5, atol=1e-7)
    own = torch.autograd.functional.hessian(
        lambda flat: objective(flat.view(4, -1), torch.tensor(labels)), logits.flatten()
    )
    assert torch.isfinite(own).all()
    assert torch.allclose(own.diagonal().view(4, -1), found, rtol=1e-4, atol=1e-6)
    assert second.abs().max() > 1e-2
    for c, p in enumerate(prior):
        assert p > 0 or torch.equal(found[:, c], torch.zeros(4))
    for n, label in enumerate(labels):
        assert label != IGNORED or torch.equal(found[n], torch.zeros(len(prior)))


def test_hutchinson_through_an_unseen_class_is_finite():
    """A preallocated head has rows with prior 0: log 0 must not reach the second derivative."""
    objective = Objective(torch.tensor([7.0, 1.0, 0.0]).log(), torch.ones(3))
    weight = nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    given_ = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    loss = objective(given_ @ weight.T, torch.tensor([0, 1, 0, IGNORED, 0]))
    found = hutchinson(loss, {"w": weight}, torch.Generator().manual_seed(2))["w"]
    assert torch.isfinite(found).all()
    assert torch.equal(found[2], torch.zeros(4))
    assert (found[:2] != 0).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-30, 30, width=32), min_size=2, max_size=6), st.integers(0, 5))
def test_curvature_is_never_negative_and_does_not_ask_for_the_label(values, label):
    objective = Objective(torch.zeros(len(values)), torch.ones(len(values)))
    logits = torch.tensor([values])
    found = objective.curvature(logits, torch.tensor([label % len(values)]))
    assert (found >= 0).all()
    assert (found <= 0.25 + 1e-6).all()
    assert torch.equal(found, objective.curvature(logits, torch.tensor([(label + 1) % len(values)])))


def test_the_cross_entropy_of_the_page_is_the_tasks():
    objective = Objective(torch.zeros(2), torch.ones(2))
    logits = (NETWORK["W2"] @ HIDDEN)[None]
    assert float(objective(logits, torch.tensor([Y]))) == pytest.approx(0.97750648, abs=1e-6)
    assert float(functional.cross_entropy(logits, torch.tensor([Y]))) == pytest.approx(0.97750648, abs=1e-8)

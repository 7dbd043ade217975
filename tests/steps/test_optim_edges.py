"""Edge cases of UPGD's optimiser: noise, half precision, and general properties."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from helpers.tensors import F64, vector
from helpers.upgd_optimizer import BETA, DECAY, LR, Run, logistic
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.steps.upgd import UPGDOptimizer, gate

# ---- noise --------------------------------------------------------------------------------------------


def noisy(seed: int, *, sigma: float = 0.3, steps: int = 3, **rest: Any) -> Tensor:
    run = Run(w=torch.ones(4, 5, dtype=F64), sigma=sigma, seed=seed, **rest)
    for _ in range(steps):
        run.step(w=-torch.ones(4, 5, dtype=F64))
    return run["w"]


def test_noise_has_a_seed():
    assert torch.equal(noisy(1), noisy(1))
    assert not torch.equal(noisy(1), noisy(2))


def test_no_noise_without_sigma():
    assert torch.equal(noisy(1, sigma=0.0), noisy(2, sigma=0.0))
    assert len(set(noisy(1, sigma=0.0).flatten().tolist())) == 1
    assert len(set(noisy(1).flatten().tolist())) == 20, "every entry has its own noise"


def test_noise_leaves_the_global_generator_alone():
    run = Run(w=torch.ones(4, 5), sigma=0.3, seed=3)
    torch.manual_seed(11)
    torch.rand(3)
    before = torch.get_rng_state()
    run.step(w=torch.ones(4, 5))
    Run.step(run, w=torch.ones(4, 5))
    UPGDOptimizer(run.params, 0.1, utility=run.utility, steps=run.steps)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("factor", "protecting", "scale"), [(2.0, True, 2.0), (1.0, True, 1.0), (2.0, False, 1.0)]
)
def test_size_of_the_noise(factor, protecting, scale):
    """The standard deviation is c lr σ (1 - s): largest for useless weights, never zero."""
    n, sigma = 100_000, 0.7
    for share, gradient in ((logistic(1.0), -2.0), (0.5, 0.0), (logistic(-1.0), 2.0)):
        run = Run(
            w=torch.ones(n, dtype=F64),
            top=vector(1.0),
            sigma=sigma,
            factor=factor,
            protecting=protecting,
            seed=8,
        )
        moves = []
        for _ in range(2):
            with torch.no_grad():
                run.params["w"].fill_(1.0)
                run.params["top"].fill_(1.0)
            run.step(w=torch.full((n,), gradient, dtype=F64), top=vector(-2.0))
            moves.append(run["w"] - 1)
        expected = scale * LR * sigma * (1 - share)
        drift = -LR * gradient * (factor * (1 - share) if protecting else 1.0)
        for move in moves:
            assert float(move.std()) == pytest.approx(expected, rel=0.01)
            assert float(move.mean()) == pytest.approx(drift, abs=5 * expected / math.sqrt(n))
        correlation = torch.corrcoef(torch.stack(moves))[0, 1]
        assert abs(float(correlation)) < 0.02, "new noise at each step"


# ---- half precision -----------------------------------------------------------------------------------


def test_bfloat16_weights_step_in_single_precision():
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(50, generator=generator).bfloat16()
    run = Run(w=weight, weight_decay=DECAY, sigma=0.1, seed=2)
    w, u = weight.float(), torch.zeros(50)
    noise = torch.Generator().manual_seed(2)
    for t in (1, 2, 3):
        gradient = torch.randn(50, generator=generator).bfloat16()
        run.step(w=gradient)
        g = gradient.float()
        u = BETA * u + (1 - BETA) * -g * w
        corrected = u / (1 - BETA**t)
        s = torch.sigmoid(corrected / corrected.max())
        w = (1 - LR * DECAY) * w - 2 * LR * (g + 0.1 * torch.randn(50, generator=noise)) * (1 - s)
        w = w.bfloat16().float()  # rounded once, when stored
        assert run["w"].dtype == torch.bfloat16
        assert torch.equal(run["w"].float(), w)
        assert run.utility["w"].dtype == torch.float32
        assert torch.allclose(run.utility["w"], u, rtol=1e-5, atol=1e-7)


# ---- properties ---------------------------------------------------------------------------------------

quick = settings(max_examples=60, deadline=None)
moderate = st.floats(-20, 20, allow_subnormal=False)
anything = st.floats(-1e3, 1e3, width=32, allow_subnormal=False)


@quick
@given(st.lists(moderate, min_size=1, max_size=20), st.floats(1.0, 20.0), st.floats(-20, 10))
def test_gates_are_open_intervals_and_monotone(values, top, exponent):
    """For any common scale, as long as the ratio does not saturate the logistic function."""
    utility = vector(*values, top) * 10.0**exponent
    for found in (gate(utility, float(utility.max())), gate(utility, None)):
        assert ((found > 0) & (found < 1)).all()
        order = utility.argsort()
        assert (found[order].diff() >= -1e-15).all()  # equal utilities may differ in the last bit
        assert (found[utility >= 0] >= 0.5).all()
        assert (found[utility <= 0] <= 0.5).all()
    assert float(gate(utility, float(utility.max())).max()) == pytest.approx(logistic(1.0), abs=1e-12)


@quick
@given(
    st.lists(st.tuples(anything, anything, anything), min_size=1, max_size=8),
    st.sampled_from(["raw", "corrected"]),
    st.sampled_from(["global", "local"]),
    st.booleans(),
)
def test_weights_stay_finite(rows, maximum, scaling, protecting):
    """Nothing overflows in single precision, with values of thousands and the ratios of the raw maximum."""
    w, g, h = (torch.tensor(column) for column in zip(*rows, strict=True))
    run = Run({"w": h}, w=w, beta=0.999, sigma=1.0, maximum=maximum, scaling=scaling, protecting=protecting)
    for _ in range(2):
        before = run["w"].clone()
        run.step(w=g)
        assert torch.isfinite(run["w"]).all()
        assert torch.isfinite(run.utility["w"]).all()
        bound = 2 * LR * (g.abs() + 6.0) * 1.001 + 1e-3
        assert ((run["w"] - before).abs() <= bound).all(), "never further than c lr (|g| + |ξ|)"


@quick
@given(st.lists(anything, min_size=2, max_size=8))
def test_more_useful_is_slower(values):
    """Of two weights with the same gradient, the one with the larger utility moves no further."""
    past = vector(*values)
    run = Run(w=torch.zeros(len(past), dtype=F64))
    run.utility["w"].copy_(past)
    run.step(w=torch.ones(len(past), dtype=F64))
    moved = run["w"].abs()[past.argsort()]
    assert (moved.diff() <= 1e-12).all()

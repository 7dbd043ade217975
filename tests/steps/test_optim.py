"""UPGD's optimiser: the worked examples of specs/upgd.md, section 9, and naive loops."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from helpers.tensors import F64, vector
from helpers.upgd_optimizer import BETA, DECAY, LR, Run, logistic
from torch import Tensor

from holdfast.steps.upgd import gate

# ---- the worked table ---------------------------------------------------------------------------------

W0 = (1.0, -2.0, 0.5)
G = ((-0.3, 0.1, 0.4), (-0.2, -0.05, 0.1))
H = ((0.2, 0.1, 0.6), (0.1, 0.1, 0.4))

# (second order, options), the weights after step 1 and after step 2
TABLE: dict[str, tuple[bool, dict[str, Any], tuple[float, ...], tuple[float, ...]]] = {
    "first order, raw, c=2": (
        False,
        {"maximum": "raw", "factor": 2.0},
        (0.99900272, -1.99802542, 0.41960168),
        (0.99820981, -1.99313143, 0.40071812),
    ),
    "first order, corrected, c=2": (
        False,
        {"maximum": "corrected", "factor": 2.0},
        (1.01513649, -2.00478487, 0.44663949),
        (1.02487901, -1.99820064, 0.43386176),
    ),
    "first order, raw, c=1": (
        False,
        {"maximum": "raw", "factor": 1.0},
        (0.99900136, -1.99801271, 0.45955084),
        (0.99810541, -1.99456672, 0.44982817),
    ),
    "second order, corrected, c=2": (
        True,
        {"maximum": "corrected", "factor": 2.0},
        (1.01513649, -2.00337883, 0.45330037),
        (1.02487901, -1.99816579, 0.44190017),
    ),
    "second order, raw, c=1": (
        True,
        {"maximum": "raw", "factor": 1.0},
        (0.99900136, -1.99800045, 0.46118351),
        (0.99810541, -1.99590968, 0.45340772),
    ),
    "first order, local, c=1": (
        False,
        {"scaling": "local", "factor": 1.0},
        (1.0087716, -2.00181055, 0.47474221),
        (1.01358318, -1.99749693, 0.46821026),
    ),
}


def gates(run: Run, name: str = "w") -> Tensor:
    """Return the gates s of the last step, from the optimiser's state."""
    corrected = run.corrected(name)
    if run.optimizer.scaling == "local":
        return torch.sigmoid(corrected / corrected.norm(dim=-1, keepdim=True))
    source = run.utility[name] if run.optimizer.maximum == "raw" else corrected
    return torch.sigmoid(corrected / source.max())


@pytest.mark.parametrize("name", TABLE)
def test_the_worked_table(name):
    second, options, *expected = TABLE[name]
    run = Run(w=vector(*W0), weight_decay=DECAY, **options)
    utility, before = [0.0] * 3, list(W0)
    for t in range(2):
        if second:
            run.curvature["w"] = vector(*H[t])
        run.step(w=vector(*G[t]))
        for i in range(3):
            instant = -G[t][i] * before[i] + (0.5 * H[t][i] * before[i] ** 2 if second else 0.0)
            utility[i] = BETA * utility[i] + (1 - BETA) * instant
        assert torch.allclose(run.utility["w"], vector(*utility), rtol=0, atol=1e-7)
        assert torch.allclose(run["w"], vector(*expected[t]), rtol=0, atol=1e-7)
        assert float(run.steps["w"]) == t + 1
        before = list(expected[t])


def test_the_worked_gates():
    raw = Run(w=vector(*W0), weight_decay=DECAY, maximum="raw")
    raw.step(w=vector(*G[0]))
    assert torch.allclose(gates(raw), vector(0.99995460, 0.99872898, 0.00127102), rtol=0, atol=1e-8)
    raw.step(w=vector(*G[1]))
    assert torch.allclose(gates(raw), vector(0.99484776, 0.71040319, 0.07680211), rtol=0, atol=1e-8)

    corrected = Run(w=vector(*W0), weight_decay=DECAY)
    corrected.step(w=vector(*G[0]))
    expected = vector(0.73105858, 0.66075637, 0.33924363)
    assert torch.allclose(gate(corrected.corrected("w"), 0.3), expected, rtol=0, atol=1e-8)

    second = Run({"w": vector(*H[0])}, w=vector(*W0), weight_decay=DECAY)
    second.step(w=vector(*G[0]))
    assert torch.allclose(second.corrected("w"), vector(0.4, 0.4, -0.125), rtol=0, atol=1e-12)
    expected = vector(0.73105858, 0.73105858, 0.42250463)
    assert torch.allclose(gate(second.corrected("w"), 0.4), expected, rtol=0, atol=1e-8)

    local = vector(0.72760688, 0.48507125, -0.48507125).sigmoid()
    assert torch.allclose(gate(vector(0.3, 0.2, -0.2), None), local, rtol=0, atol=1e-8)


def test_the_raw_maximum_is_a_hard_switch_at_the_start():
    """specs/upgd.md, section 4: the top ratio is 1/(1 - β^t), so 1000 at the first step with β = 0.999."""
    for maximum, ratio in (("raw", 1000.0), ("corrected", 1.0)):
        run = Run(w=vector(1.0, -1.0), beta=0.999, maximum=maximum)
        run.step(w=vector(-0.1, -0.1))  # one useful, one harmful
        expected = [1 + 2 * LR * 0.1 * logistic(-ratio), -1 + 2 * LR * 0.1 * (1 - logistic(-ratio))]
        assert torch.allclose(run["w"], vector(*expected), rtol=0, atol=1e-12)


def test_without_protection_only_the_noise_is_gated():
    run = Run(w=vector(*W0), weight_decay=DECAY, protecting=False, factor=7.0)
    run.step(w=vector(*G[0]))
    by_hand = [(1 - LR * DECAY) * w - LR * g for w, g in zip(W0, G[0], strict=True)]
    assert torch.allclose(run["w"], vector(*by_hand), rtol=0, atol=1e-12)

    sigma = 0.5
    noisy = Run(w=vector(*W0), weight_decay=DECAY, protecting=False, sigma=sigma, seed=4)
    noisy.step(w=vector(*G[0]))
    noise = sigma * torch.randn(3, generator=torch.Generator().manual_seed(4)).double()
    s = vector(0.73105858, 0.66075637, 0.33924363)  # the worked gates of the corrected maximum
    expected = (1 - LR * DECAY) * vector(*W0) - LR * (vector(*G[0]) + noise * (1 - s))
    assert torch.allclose(noisy["w"], expected, rtol=0, atol=1e-8)


def test_a_weight_of_utility_zero_moves_as_in_sgd():
    """c = 2 cancels the neutral gate of one half."""
    run = Run(w=vector(0.0, 1.0))
    run.step(w=vector(0.25, -1.0))
    assert float(run["w"][0]) == pytest.approx(-LR * 0.25, abs=1e-15)
    assert 1 < float(run["w"][1]) < 1 + LR, "the useful weight moves less"


# ---- no useful weight ---------------------------------------------------------------------------------


def test_all_utilities_negative():
    """specs/upgd.md, section 4: the plain quotient would protect the most harmful weight most."""
    utility = vector(-0.3, -0.1, -0.2)
    bare = torch.sigmoid(utility / utility.max())
    assert torch.allclose(bare, vector(0.95257413, 0.73105858, 0.88079708), rtol=0, atol=1e-8)
    assert torch.equal(gate(utility, float(utility.max())), vector(0.5, 0.5, 0.5))

    run = Run(w=vector(1.0, 1.0, 1.0))
    run.step(w=vector(0.3, 0.1, 0.2))
    assert torch.allclose(run.corrected("w"), utility, rtol=0, atol=1e-12)
    assert torch.allclose(run["w"], 1 - LR * vector(0.3, 0.1, 0.2), rtol=0, atol=1e-12)


@pytest.mark.parametrize("maximum", ["raw", "corrected"])
@pytest.mark.parametrize("scaling", ["global", "local"])
def test_all_utilities_zero(maximum, scaling):
    run = Run(w=torch.zeros(2, 3, dtype=F64), maximum=maximum, scaling=scaling)
    gradient = torch.arange(6, dtype=F64).view(2, 3)
    run.step(w=gradient)
    assert torch.equal(run.utility["w"], torch.zeros(2, 3, dtype=F64))
    assert torch.allclose(run["w"], -LR * gradient, rtol=0, atol=1e-15)


def test_a_largest_utility_of_rounding_size_says_nothing():
    utility = vector(1e-31, -1e-31)
    assert torch.equal(gate(utility, 1e-31), vector(0.5, 0.5))
    assert torch.allclose(gate(1e10 * utility, 1e-21), vector(logistic(1), logistic(-1)), rtol=0, atol=1e-12)


# ---- several tensors ----------------------------------------------------------------------------------


def test_one_maximum_for_the_whole_network():
    a, b = vector(1.0, 2.0), torch.tensor([[3.0, -1.0], [0.5, 4.0]], dtype=F64)
    ga, gb = vector(-0.1, 0.2), torch.tensor([[-0.2, 0.1], [0.3, -0.05]], dtype=F64)
    run = Run(a=a, b=b)
    run.step(a=ga, b=gb)
    top = 0.6  # of b: 3 * 0.2; a's own largest is 0.1
    for start, gradient, name in ((a, ga, "a"), (b, gb, "b")):
        for index in itertools.product(*map(range, start.shape)):
            w, g = float(start[index]), float(gradient[index])
            expected = w - 2 * LR * g * (1 - logistic(-g * w / top))
            assert float(run[name][index]) == pytest.approx(expected, abs=1e-12), (name, index)


def test_the_maximum_is_over_all_groups_of_the_optimiser():
    run = Run(a=vector(1.0), b=vector(3.0))
    run.optimizer.param_groups[0]["params"] = [run.params["a"]]
    run.optimizer.add_param_group({"params": [run.params["b"]], "lr": 0.5})
    run.step(a=vector(-0.1), b=vector(-0.2))
    assert float(run["a"]) == pytest.approx(1 + 2 * LR * 0.1 * (1 - logistic(0.1 / 0.6)), abs=1e-12)
    assert float(run["b"]) == pytest.approx(3 + 2 * 0.5 * 0.2 * (1 - logistic(1.0)), abs=1e-12)


def test_local_scaling_is_by_row():
    weight = torch.tensor([[1.0, 1.0], [1.0, 1.0]], dtype=F64)
    gradient = torch.tensor([[-3.0, -4.0], [-0.03, 0.04]], dtype=F64)
    run = Run(w=weight, b=vector(1.0, 1.0), scaling="local", factor=1.0)
    run.step(w=gradient, b=vector(-0.6, 0.8))
    for i, ratios in enumerate([(0.6, 0.8), (0.6, -0.8)]):  # rows of very different size have the same gates
        for j, ratio in enumerate(ratios):
            expected = 1 - LR * float(gradient[i, j]) * (1 - logistic(ratio))
            assert float(run["w"][i, j]) == pytest.approx(expected, abs=1e-12)
    assert torch.allclose(
        run["b"], vector(1 + LR * 0.6 * (1 - logistic(0.6)), 1 - LR * 0.8 * (1 - logistic(-0.8))), atol=1e-12
    )


def test_a_weight_without_gradient_waits():
    run = Run(used=vector(1.0, 2.0), idle=vector(3.0), sigma=0.1)
    run.step(used=vector(-0.1, 0.2), idle=None)
    assert torch.equal(run["idle"], vector(3.0))
    assert torch.equal(run.utility["idle"], vector(0.0))
    assert (float(run.steps["used"]), float(run.steps["idle"])) == (1.0, 0.0)
    run.step(used=vector(-0.1, 0.2), idle=vector(-0.5))
    assert (float(run.steps["used"]), float(run.steps["idle"])) == (2.0, 1.0)
    assert torch.allclose(run.corrected("idle"), vector(1.5)), "bias correction counts the weight's own steps"
    assert not torch.equal(run["idle"], vector(3.0))


def test_no_gradient_at_all_changes_nothing():
    run = Run(w=vector(1.0), sigma=1.0)
    run.step(w=None)
    assert torch.equal(run["w"], vector(1.0))


def test_a_weight_without_entries():
    """A growing head has no rows before the first task."""
    run = Run(w=vector(1.0), empty=torch.empty(0, 3, dtype=F64))
    run.step(w=vector(-0.5), empty=torch.empty(0, 3, dtype=F64))
    assert float(run["w"]) == pytest.approx(1 + 2 * LR * 0.5 * (1 - logistic(1.0)), abs=1e-12)


def test_utility_is_of_second_order_only_where_curvature_is_known():
    run = Run({"b": vector(2.0)}, a=vector(1.0), b=vector(1.0))
    run.step(a=vector(-0.3), b=vector(-0.3))
    assert torch.allclose(run.corrected("a"), vector(0.3))
    assert torch.allclose(run.corrected("b"), vector(1.3))
    run.curvature["b"] = vector(-2.0)  # read from the caller's dictionary at each step
    before = float(run["b"])
    run.step(a=vector(0.0), b=vector(0.0))
    expected = (0.9 * 0.13 + 0.1 * -(before**2)) / (1 - 0.81)
    assert float(run.corrected("b")) == pytest.approx(expected, abs=1e-12)


def test_utility_is_the_callers_and_goes_on():
    run = Run(w=vector(1.0, 1.0))
    run.utility["w"].copy_(vector(0.02, -0.01))
    run.steps["w"].fill_(7)
    given = run.utility["w"]
    run.step(w=vector(-0.1, 0.3))
    u = vector(0.9 * 0.02 + 0.1 * 0.1, 0.9 * -0.01 + 0.1 * -0.3)
    assert torch.allclose(given, u, rtol=0, atol=1e-12), "in place"
    s = torch.sigmoid(u / u.max())  # one step count: the correction cancels
    expected = 1 - 2 * LR * vector(-0.1, 0.3) * (1 - s)
    assert torch.allclose(run["w"], expected, rtol=0, atol=1e-12)
    assert float(run.steps["w"]) == 8
    assert torch.allclose(run.corrected("w"), u / (1 - 0.9**8))


def test_a_closure_is_run_with_gradients_and_answered():
    run = Run(w=vector(1.0))

    def closure() -> Tensor:
        run.optimizer.zero_grad()
        loss = run.params["w"].square().sum()
        loss.backward()
        return loss

    assert float(run.optimizer.step(closure).detach()) == 1.0
    assert float(run["w"]) == pytest.approx(1 - LR * 2, abs=1e-12), "without a useful weight it is SGD"

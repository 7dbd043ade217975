"""UPGD's optimiser and its curvature: the worked numbers of specs/upgd.md, section 9, and naive loops."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from holdfast.losses import IGNORED, Objective
from holdfast.optim import UPGD, gate, hutchinson

F64 = torch.float64
BETA, LR, DECAY = 0.9, 0.1, 0.01


def vector(*values: float, dtype: torch.dtype = F64) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


class Run:
    """An optimiser over tensors of its own, stepped with made-up gradients."""

    def __init__(self, curvature: dict[str, Tensor] | None = None, *, seed: int = 0, **rest: Any) -> None:
        starts = {name: rest.pop(name) for name in list(rest) if isinstance(rest[name], Tensor)}
        self.params = {name: nn.Parameter(value.clone()) for name, value in starts.items()}
        exact = {n: torch.promote_types(p.dtype, torch.float32) for n, p in self.params.items()}
        self.utility = {n: torch.zeros(p.shape, dtype=exact[n]) for n, p in self.params.items()}
        self.steps = {name: torch.zeros(()) for name in self.params}
        self.curvature = {} if curvature is None else curvature
        torch.manual_seed(seed)
        values: dict[str, Any] = {"lr": LR, "beta": BETA, "sigma": 0.0} | rest
        self.optimizer = UPGD(
            self.params, utility=self.utility, steps=self.steps, curvature=self.curvature, **values
        )

    def step(self, **gradients: Tensor | None) -> None:
        for name, gradient in gradients.items():
            self.params[name].grad = None if gradient is None else gradient.clone()
        self.optimizer.step()

    def __getitem__(self, name: str) -> Tensor:
        return self.params[name].detach()

    def corrected(self, name: str, beta: float = BETA) -> Tensor:
        return self.utility[name] / (1 - beta ** float(self.steps[name]))


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
    """s as it was in the last step, from what the optimiser left behind."""
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
    """specs/upgd.md, section 4: the top ratio is 1/(1 - β^t), 1000 at the first step of β = 0.999."""
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
    assert 1 < float(run["w"][1]) < 1 + LR, "the useful one moves less"


# ---- where no weight is useful ------------------------------------------------------------------------


def test_all_utilities_negative():
    """specs/upgd.md, section 4: the bare quotient would protect the most harmful weight most."""
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
    for i, ratios in enumerate([(0.6, 0.8), (0.6, -0.8)]):  # rows of very different size gate alike
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
    assert torch.allclose(run.corrected("idle"), vector(1.5)), "its own first step corrects its own start"
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
    run.curvature["b"] = vector(-2.0)  # read at each step, from the caller's own dictionary
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
    assert float(run["w"]) == pytest.approx(1 - LR * 2, abs=1e-12), "no useful weight: as SGD"


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
    assert len(set(noisy(1).flatten().tolist())) == 20, "every entry has noise of its own"


def test_noise_leaves_the_global_generator_alone():
    run = Run(w=torch.ones(4, 5), sigma=0.3, seed=3)
    torch.manual_seed(11)
    torch.rand(3)
    before = torch.get_rng_state()
    run.step(w=torch.ones(4, 5))
    Run.step(run, w=torch.ones(4, 5))
    UPGD(run.params, 0.1, utility=run.utility, steps=run.steps)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(
    ("factor", "protecting", "scale"), [(2.0, True, 2.0), (1.0, True, 1.0), (2.0, False, 1.0)]
)
def test_size_of_the_noise(factor, protecting, scale):
    """Standard deviation c lr σ (1 - s): most for useless weights, never nothing."""
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
        assert abs(float(correlation)) < 0.02, "fresh at each step"


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
        w = w.bfloat16().float()  # rounded once, when it is stored
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
    """Whatever the common scale, as long as the ratio does not saturate the logistic function."""
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
    """Single precision, thousands, the raw maximum's ratios: nothing overflows."""
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
    """Of two weights with the same gradient, the one of larger utility moves no further."""
    past = vector(*values)
    run = Run(w=torch.zeros(len(past), dtype=F64))
    run.utility["w"].copy_(past)
    run.step(w=torch.ones(len(past), dtype=F64))
    moved = run["w"].abs()[past.argsort()]
    assert (moved.diff() <= 1e-12).all()


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
    """All second derivatives of the worked network, as one matrix over W1, b1, W2."""
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
    """Stands in for torch.randint: deals out given signs, tensor by tensor."""

    def __init__(self, signs: tuple[int, ...]) -> None:
        self.bits = [(sign + 1) // 2 for sign in signs]

    def __call__(self, low: int, high: int, shape: torch.Size, **_: Any) -> Tensor:
        assert (low, high) == (0, 2)
        n = math.prod(shape)
        mine, self.bits = self.bits[:n], self.bits[n:]
        return torch.tensor(mine).view(shape)


def test_hutchinson_over_all_signs_is_the_diagonal(monkeypatch):
    """Of W1 and W2 together; z and -z give the same product, so the first sign may stay."""
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
    """Seeds until all sixteen sign patterns of W1 have come up; each counted once."""
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
    assert len({tuple(one.flatten().tolist()) for one in many}) > 1, "other signs each time"
    assert torch.equal(draw(torch.Generator().manual_seed(7)), many[0])


def test_hutchinson_of_linear_and_unused_weights():
    curved, linear, unused = (nn.Parameter(vector(0.3, -0.7)) for _ in range(3))
    params = {"linear": linear, "curved": curved, "unused": unused}
    loss = (vector(2.0, 5.0) * linear).sum() + curved.pow(3).sum()
    found = hutchinson(loss, params, torch.Generator().manual_seed(0))
    assert torch.equal(found["linear"], vector(0.0, 0.0))
    assert torch.equal(found["unused"], vector(0.0, 0.0))
    assert torch.allclose(found["curved"], 6 * curved.detach()), "diagonal: any signs give it exactly"
    loss.backward()
    assert torch.equal(linear.grad, vector(2.0, 5.0))


def test_hutchinson_of_a_loss_that_is_linear_in_everything():
    weight = nn.Parameter(vector(1.0, 2.0))
    found = hutchinson((vector(2.0, 5.0) * weight).sum(), {"w": weight}, torch.Generator())
    assert torch.equal(found["w"], vector(0.0, 0.0))


def test_hutchinson_of_a_bilinear_loss():
    """Linear in each weight but not in both: z_a z_b off the diagonal, nothing on it."""
    a, b = nn.Parameter(vector(2.0)), nn.Parameter(vector(3.0))
    many = []
    for seed in range(40):
        found = hutchinson((a * b).sum(), {"a": a, "b": b}, torch.Generator().manual_seed(seed))
        assert torch.equal(found["a"], found["b"])
        many.append(float(found["a"]))
    assert set(many) == {-1.0, 1.0}


def test_worked_utilities():
    """First and second order of W1, and what zeroing each weight really costs."""
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
        # The page's second order takes HesScale's approximation, which drops terms between layers; ...
        ({"w": HESSCALE_W1}, [[-0.04581018, -0.22586843], [0.59578297, -0.19354530]]),
        # ... with the exact diagonal, -g w + ½ h w² of the page's own first order and h:
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
    """Σ w_y (-log softmax(z + log π)_y) / Σ w_y over real samples; classes of prior 0 do not exist."""
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
    """A preallocated head has rows whose prior is 0: log 0 must not reach the second derivative."""
    objective = Objective(torch.tensor([7.0, 1.0, 0.0]).log(), torch.ones(3))
    weight = nn.Parameter(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)))
    given_ = torch.randn(5, 4, generator=torch.Generator().manual_seed(1))
    loss = objective(given_ @ weight.T, torch.tensor([0, 1, 0, IGNORED, 0]))
    found = hutchinson(loss, {"w": weight}, torch.Generator().manual_seed(2))["w"]
    assert torch.isfinite(found).all()
    assert torch.equal(found[2], torch.zeros(4))
    assert (found[:2] != 0).all()


@quick
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

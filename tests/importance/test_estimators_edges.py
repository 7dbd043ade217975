"""Edge cases of estimators: precision, zero importance, and properties of any path."""

from __future__ import annotations

import pytest
import torch
from helpers.importance import Bowl, Features, nothing, watched_descent, worked_bowl
from helpers.tensors import F64, vector
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from holdfast.data.batches import Examples
from holdfast.errors import HoldfastError
from holdfast.fields import parse
from holdfast.importance import estimators
from holdfast.importance.estimators import EndedTraining, RWalkEstimator
from holdfast.maths.equations import normalised
from holdfast.maths.params import Params, snapshot, trainable
from holdfast.methods import METHODS

# ---- precision ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", [estimators.SIEstimator(), RWalkEstimator(interval=2)], ids=["si", "rwalk"]
)
def test_half_precision_weights_have_a_single_precision_trace(estimator):
    over = watched_descent(worked_bowl(torch.bfloat16), estimator, steps=5)
    assert over.trace
    assert {value.dtype for value in over.trace.values()} == {torch.float32}
    found = estimator.finish(over)
    assert {value.dtype for value in found.values()} == {torch.bfloat16}
    assert all(torch.isfinite(value).all() for value in (*found.values(), *over.trace.values()))
    exact = estimator.finish(watched_descent(worked_bowl(), estimator, steps=5))
    assert torch.allclose(found["theta"].double(), exact["theta"], rtol=0.05, atol=0.05)


def test_small_steps_of_a_half_precision_weight_add_up():
    """1 + 2⁻⁸ is not a bfloat16: a sum in that precision would not change."""
    trace: Params = {}
    for _ in range(1000):
        estimators.SIEstimator().step(
            trace, "w", torch.tensor([-1.0]), torch.tensor([0.0]), torch.tensor([2**-8])
        )
    assert float(trace["path/w"]) == pytest.approx(1000 / 256)
    model = nn.ParameterDict({"w": nn.Parameter(torch.ones(1, dtype=torch.bfloat16))})
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-7)
    seen: Params = {}
    estimators.SIEstimator().observe(optimizer, trainable(model), seen, nothing)
    for _ in range(300):
        optimizer.zero_grad()
        model["w"].sum().backward()
        optimizer.step()
        with torch.no_grad():
            model["w"].fill_(1.0)
    assert float(seen["path/w"]) == pytest.approx(300 * 2**-7, rel=1e-4)


def test_double_precision_weights_have_a_double_precision_trace():
    assert watched_descent(worked_bowl(), estimators.SIEstimator()).trace["path/theta"].dtype == F64


# ---- zero importance ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator", [estimators.SIEstimator(), RWalkEstimator(interval=2)], ids=["si", "rwalk"]
)
def test_importance_is_exactly_zero_where_nothing_happened(estimator):
    flat = Bowl(vector(0, 0), vector(1, -1), vector(0.5, 0.5))
    over = watched_descent(flat, estimator, steps=5)
    assert "path/theta" in over.trace
    for value in estimator.finish(over).values():
        assert torch.equal(value, torch.zeros_like(value))
    untrained = estimator.finish(EndedTraining(flat, None, snapshot(flat), {}))
    assert all(torch.equal(value, torch.zeros_like(value)) for value in untrained.values())


def test_fisher_is_exactly_zero_where_the_features_are():
    model = Features([[0.0, 0.0]], [[0.5, -0.25], [-0.5, 0.75]])
    over = EndedTraining(model, Examples(tokens=[[0], [0]], labels=[0, 1], pad=0), snapshot(model), {})
    for labels in ("true", "sample", "expected"):
        found = estimators.FisherEstimator(labels).finish(over)
        assert torch.equal(found["head.linear.weight"], torch.zeros(2, 2, dtype=F64))
        assert (found["head.linear.bias"] > 0).all()


@pytest.mark.parametrize("name", ["si", "rwalk"])
@pytest.mark.parametrize("text", ["0", "-0.1"])
def test_damping_is_above_zero(name, text):
    """Other values give 0/0 or a negative importance. The error comes before any training."""
    assert parse(METHODS[name], "damping", "1e-3") == 1e-3
    with pytest.raises(HoldfastError, match="damping"):
        parse(METHODS[name], "damping", text)


# ---- properties ---------------------------------------------------------------------------------------

quick = settings(max_examples=100, deadline=None)
numbers = st.floats(-1e6, 1e6, width=32)
walks = st.integers(1, 4).flatmap(
    lambda size: st.lists(
        st.lists(st.tuples(numbers, numbers), min_size=size, max_size=size), min_size=1, max_size=6
    )
)


def walked(estimator: estimators.Observer, steps: list[list[tuple[float, float]]]) -> EndedTraining:
    """Return a training along a path from 0 with these gradients; one weight has none."""
    here, trace = torch.zeros(len(steps[0])), {}
    for step in steps:
        gradient, there = torch.tensor(step).T.clone()
        estimator.step(trace, "w", gradient, here, there)
        here = there
    model = nn.ParameterDict({"w": nn.Parameter(here.clone()), "idle": nn.Parameter(torch.ones(2))})
    return EndedTraining(model, None, {"w": torch.zeros_like(here), "idle": torch.ones(2)}, trace)


@quick
@given(walks, st.sampled_from([0.1, 1e-3]))
def test_si_is_finite_and_never_negative(steps, damping):
    estimator = estimators.SIEstimator(damping)
    for value in estimator.finish(walked(estimator, steps)).values():
        assert torch.isfinite(value).all()
        assert (value >= 0).all()


@quick
@given(walks, st.integers(1, 4))
def test_rwalk_lies_between_0_and_2(steps, interval):
    estimator = RWalkEstimator(interval=interval)
    over = walked(estimator, steps)
    fisher, score = estimator.parts(over.model, over.trace)
    assert all((value >= 0).all() for part in (fisher, score) for value in part.values())
    for value in estimator.finish(over).values():
        assert torch.isfinite(value).all()
        assert (value >= 0).all()
        assert (value <= 2 + 1e-6).all()


def between_0_and_1(values: list[list[float]], dtype: torch.dtype) -> None:
    params = {str(i): torch.tensor(one, dtype=dtype) for i, one in enumerate(values)}
    found = torch.cat(list(normalised(params).values()))
    assert torch.isfinite(found).all()
    assert (found >= 0).all()
    assert (found <= 1 + 1e-6).all()
    flat = torch.cat(list(params.values()))
    if len(flat) and flat.min() < flat.max():
        assert float(found[flat.argmin()]) == 0
        assert float(found[flat.argmax()]) == pytest.approx(1, abs=1e-6)
    else:
        assert (found == 0).all()


ordinary = st.floats(0, 1e6, width=32).filter(lambda value: value == 0 or value > 1e-30)


@quick
@given(st.lists(st.lists(ordinary, max_size=4), min_size=1, max_size=4))
def test_normalised_lies_between_0_and_1(values):
    between_0_and_1(values, torch.float32)
    between_0_and_1(values, F64)


@pytest.mark.parametrize("largest", [1e-20, 1e-30, 1e-38, 1e-40, 1e-44])
def test_normalised_of_tiny_numbers(largest):
    """Gradients of 1e-20, as in a task that is already learnt, give a Fisher of 1e-40."""
    between_0_and_1([[0.0, largest / 2], [largest]], torch.float32)


def test_rwalk_of_a_task_that_is_learnt_already():
    """The squares of gradients of 1e-20 are subnormal in single precision."""
    model = Bowl(*(vector(*values, dtype=torch.float32) for values in ((1e-20, 2e-20), (1, -1), (0, 0))))
    estimator = RWalkEstimator(interval=2)
    for value in estimator.finish(watched_descent(model, estimator, steps=5)).values():
        assert torch.isfinite(value).all()


@pytest.mark.parametrize("largest", [1e30, 3e38])
def test_normalised_of_huge_numbers(largest):
    between_0_and_1([[0.0, largest / 2], [largest]], torch.float32)


def test_normalised_leaves_its_argument_alone():
    values = {"a": torch.tensor([1.0, 3.0]), "none": torch.empty(0)}
    found = normalised(values)
    assert values["a"].tolist() == [1.0, 3.0]
    assert found["a"].tolist() == [0.0, 1.0]
    assert found["none"].shape == (0,)
    assert normalised({}) == {}

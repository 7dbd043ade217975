"""Copies of weights, and how far two sets of weights are apart."""

from __future__ import annotations

import torch

from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.maths import params as P


def weights_of(learner: Learner | AtHand) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.model.state_dict().items()}


def assert_same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, f"{len(different)} of {len(left)} tensors differ, first {different[0]}"


def distance(found: P.Params, expected: P.Params) -> float:
    """Return the largest absolute difference over all expected entries."""
    return max(float((found[name].double() - expected[name].double()).abs().max()) for name in expected)


def relative(found: P.Params, expected: P.Params, start: P.Params) -> float:
    """Return the largest error, relative to the distance its tensor moved."""
    return max(
        float((found[n].double() - expected[n]).abs().max() / (expected[n] - start[n].double()).abs().max())
        for n in expected
    )

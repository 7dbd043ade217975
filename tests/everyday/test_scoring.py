"""The scoring of a head as plain tensors, against the head itself."""

from __future__ import annotations

import math

import pytest
import torch
from helpers.vectors import absorb
from torch.nn import functional

from holdfast.errors import HoldfastError
from holdfast.everyday.scoring import fixed
from holdfast.heads import Head, KLDAHead, LiftedHead, LinearHead, RanPACHead, RDAHead, SLDAHead, Taught

WIDTH = 12


def blobs(seed: int, labels: str, each: int = 14) -> Taught:
    """Return unit vectors of two layers around a centre for each label."""
    noise = torch.randn(len(labels) * each, WIDTH, generator=torch.Generator().manual_seed(seed))
    centres = torch.randn(26, WIDTH, generator=torch.Generator().manual_seed(77))
    rows = [label for label in labels for _ in range(each)]
    raw = 1.5 * centres[[ord(label) - 97 for label in rows]] + noise
    return Taught(torch.cat([functional.normalize(z, dim=1) for z in raw.chunk(2, 1)], 1), rows)


def lifted(columns: int, **options: object) -> LiftedHead:
    head = LiftedHead(WIDTH, normalised=True, columns=columns, **options)  # type: ignore[arg-type]
    head.blocks = 2
    return head


HEADS = {
    "slda": lambda: SLDAHead(WIDTH),
    "slda by counts": lambda: SLDAHead(WIDTH, weighting="counts", scatter="pooled"),
    "rda": lambda: RDAHead(WIDTH, shrinkage=0.1, blend=0.6),
    "rda without a blend": lambda: RDAHead(WIDTH, shrinkage=0.1, blend=0.0),
    "klda": lambda: KLDAHead(WIDTH, features=40, combine="average"),
    "klda of one width": lambda: KLDAHead(WIDTH, features=40),
    "ranpac": lambda: RanPACHead(WIDTH, features=40),
    "lifted": lambda: lifted(WIDTH + 10),
    "lifted, plain": lambda: lifted(0),
    "lifted, per class": lambda: lifted(WIDTH + 10, scatter="per-class"),
}


def learnt(name: str) -> Head:
    head = HEADS[name]()
    for number, labels in enumerate(("abc", "de")):
        train, valid = blobs(number, labels), blobs(10 + number, labels, each=12)
        head.add(train.labels)
        head.teach(train.labels)
        absorb(head, train, valid)
        head.take_in(valid)
    head.add(["never taught"])
    return head


@pytest.mark.parametrize("name", HEADS)
def test_probabilities_and_distances_are_those_of_the_head(name: str) -> None:
    head = learnt(name)
    if isinstance(head, LiftedHead) and head.rich:
        head.chosen = next(option for option in reversed(head.options) if option[2] > WIDTH)
    test = blobs(5, "abcdez").features
    far = not isinstance(head, RanPACHead)
    lift, scoring = fixed(head, far=far)
    found = scoring(test, lift(test) if lift else None)
    expected = (head(test)[:, head.visible_rows()].double() / head.temperature).softmax(1)
    assert expected.shape == (len(test), 5), "without the label that was never taught"
    assert torch.allclose(found[0].double(), expected, atol=1e-5)
    assert len(found) == 1 + far
    if far:
        assert torch.allclose(found[1].double(), head.distances(test).double(), rtol=1e-4, atol=1e-3)


def test_a_lift_is_used_only_by_an_option_that_uses_it() -> None:
    head = learnt("lifted")
    assert isinstance(head, LiftedHead)
    head.chosen = next(option for option in head.options if option[2] == WIDTH)
    lift, scoring = fixed(head, far=False)
    assert lift is None
    assert not scoring.far
    test = blobs(5, "abcde").features
    expected = (head(test)[:, head.visible_rows()] / head.temperature).softmax(1)
    assert torch.allclose(scoring(test)[0], expected, atol=1e-5)


def test_a_trained_head_by_hand() -> None:
    head = LinearHead(2)
    head.add(["a", "b", "later"])
    head.teach(["a", "b"])
    with torch.no_grad():
        head.linear.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0], [9.0, 9.0]]))
        head.linear.bias.copy_(torch.tensor([0.5, 0.0, 9.0]))
    lift, scoring = fixed(head, far=False)
    assert lift is None
    (found,) = scoring(torch.tensor([[1.0, 1.0]]))
    assert found.tolist()[0] == pytest.approx([1 / (1 + math.exp(0.5)), 1 / (1 + math.exp(-0.5))])


def test_a_head_without_labels_is_refused() -> None:
    with pytest.raises(HoldfastError, match="no labels yet"):
        fixed(SLDAHead(4), far=False)


def test_nothing_that_only_learning_needs_is_among_the_tensors() -> None:
    head = learnt("slda")
    assert isinstance(head, SLDAHead)
    sums = {tuple(value.flatten().tolist()) for value in head.statistics().values()}
    _, scoring = fixed(head, far=True)
    assert scoring.names == {"weight", "bias", "temperature", "middle", "white", "centres"}
    for name in scoring.names:
        assert tuple(scoring.at(name).double().flatten().tolist()) not in sums
        assert scoring.at(name).dtype == torch.float32

"""Kernel discriminant analysis and RanPAC's ridge, compared with explicit kernels and regressions."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.vectors import absorb

from holdfast.errors import HoldfastError
from holdfast.heads import KLDAHead, RanPACHead, SLDAHead, Taught
from holdfast.heads.random_features import WIDTHS, FourierLDA

EMPTY = Taught(torch.zeros(0, 2), [])


def rings(n: int = 60, seed: int = 0) -> Taught:
    """Return two concentric classes, which are not linearly separable."""
    draw = np.random.default_rng(seed)
    labels = ["in", "out"] * n
    angle = draw.uniform(0, 2 * np.pi, 2 * n)
    radius = np.where(np.array(labels) == "in", 1.0, 3.0) + 0.2 * draw.normal(size=2 * n)
    z = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return Taught(torch.tensor(z, dtype=torch.float32), labels)


def learnt(head, data: Taught, valid: Taught = EMPTY):
    head.add(sorted(set(data.labels)))
    absorb(head, data, valid)
    return head


def test_fourier_features_are_those_of_the_kernel():
    torch.manual_seed(0)
    head = FourierLDA(3, 4000, number=0, seed=0)
    head.gamma = 0.7
    x, y = torch.randn(4, 3), torch.randn(5, 3)
    kernel = torch.exp(-0.7 * torch.cdist(x, y).square())
    assert torch.allclose(head.lift(x) @ head.lift(y).T, kernel, atol=0.06)


def test_a_kernel_parts_what_no_line_parts():
    data, test = rings(), rings(seed=1)
    assert learnt(SLDAHead(2), data, rings(seed=2)).score(test) < 0.8
    assert learnt(KLDAHead(2, features=200), data, rings(seed=2)).score(test) > 0.95


def test_rectified_projections_part_opposite_corners():
    def corners(seed: int) -> Taught:
        z = torch.randn(200, 2, generator=torch.Generator().manual_seed(seed))
        return Taught(z, ["same" if x * y > 0 else "other" for x, y in z.tolist()])

    assert learnt(SLDAHead(2), corners(0), corners(2)).score(corners(1)) < 0.7
    assert learnt(RanPACHead(2, features=200), corners(0), corners(2)).score(corners(1)) > 0.9


def test_the_first_task_fixes_the_constants():
    head = learnt(KLDAHead(2, features=30), rings(), rings(seed=2))
    gamma, centre = head.members[0].gamma, head.centre.clone()
    more = Taught(rings(seed=5).features + 9, ["else"] * 120)
    learnt(head, more, more)
    assert head.members[0].gamma == gamma
    assert torch.equal(head.centre, centre)


def test_gamma_is_c_over_the_median_squared_distance():
    data = rings()
    head = KLDAHead(2, features=20, widths=(0.5,))
    learnt(head, data)
    z = data.features
    z = (z - z.mean(0)) / z.std(0, correction=0)
    median = np.median(torch.pdist(z).square().numpy())
    assert head.members[0].gamma == pytest.approx(0.5 / median, rel=0.01)


def test_the_best_width_of_the_first_task_stays_and_average_keeps_all():
    data, valid = rings(), rings(seed=2)
    best = learnt(KLDAHead(2, features=30, draws=2), data, valid)
    assert len(best.members) == 2, "both draws have the same width"
    every = learnt(KLDAHead(2, features=30, draws=2, combine="average"), data, valid)
    assert len(every.members) == 2 * len(WIDTHS)
    mean = torch.stack([m(every._standard(valid.features)).softmax(1) for m in every.members]).mean(0)
    assert torch.allclose(every(valid.features).exp(), mean, atol=1e-5)


def test_widths_that_were_dropped_come_back_with_the_statistics():
    """Restoring a trial's state undoes the choice of a width."""
    head = KLDAHead(2, features=30)
    head.add(["in", "out"])
    start = {name: value.clone() for name, value in head.statistics().items()}
    data = rings()
    absorb(head, data, rings(seed=2))
    first = head(rings(seed=3).features)
    assert len(head.members) == 1
    head.load_statistics(start)
    assert len(head.members) == len(WIDTHS)
    absorb(head, data, rings(seed=2))
    assert torch.equal(head(rings(seed=3).features), first)


@pytest.mark.parametrize("make", [lambda: KLDAHead(2, features=30), lambda: RanPACHead(2, features=30)])
def test_statistics_bring_the_head_back(make):
    head = learnt(make(), rings(), rings(seed=2))
    other = make()
    other.become(head.labels, head.seen)
    other.load_statistics({name: value.clone() for name, value in head.statistics().items()})
    z = rings(seed=3).features
    assert torch.equal(head(z), other(z))


def test_ranpac_is_ridge_regression_on_all_that_was_seen():
    head = RanPACHead(2, features=30, ridge=3.0)
    first, second = rings(), Taught(rings(seed=5).features + 4, ["else"] * 120)
    learnt(learnt(head, first), second)
    z = torch.cat([first.features, second.features])
    h = (z @ head.projection).relu().double().numpy()
    y = np.array([*first.labels, *second.labels])
    targets = np.stack([(y == label).astype(float) for label in head.labels], axis=1)
    solution = np.linalg.solve(h.T @ h + 3.0 * np.eye(30), h.T @ targets)
    x = rings(seed=3).features
    expected = (x @ head.projection).relu().double().numpy() @ solution
    assert np.allclose(head(x).numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("make", [lambda: KLDAHead(2, features=30), lambda: RanPACHead(2, features=30)])
def test_a_dropped_label_is_never_predicted_and_its_traces_are_named(make):
    head = learnt(make(), rings(), rings(seed=2))
    learnt(head, Taught(rings(seed=5).features + 4, ["else"] * 120))
    assert "pooled" in head.forget("in")
    assert set(head.predict(rings().features)) <= {"out", "else"}
    assert head.labels == ["out", "else"]


def test_one_sentence_is_enough_to_begin():
    one = Taught(torch.tensor([[1.0, 2.0]]), ["only"])
    for head in (KLDAHead(2, features=10), RanPACHead(2, features=10), SLDAHead(2)):
        assert learnt(head, one).predict(torch.zeros(1, 2)) == ["only"]
        assert torch.isfinite(head(torch.ones(3, 2))).all()


def test_ranpac_has_no_distance():
    head = learnt(RanPACHead(2, features=10), rings())
    with pytest.raises(HoldfastError, match="cannot detect"):
        head.threshold(0.95)
    assert learnt(KLDAHead(2, features=30), rings(), rings(seed=2)).threshold(0.95) > 0

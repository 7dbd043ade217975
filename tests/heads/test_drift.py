"""Feature drift when the encoder changes: the ridge map, and sums transformed by it."""

import pytest
import torch
from helpers.vectors import absorb

from holdfast.heads import SLDAHead, Taught
from holdfast.heads.drift import relative_drift, ridge_map
from holdfast.heads.sums import ClassSums


def test_the_map_by_hand():
    """One feature that doubles: ZᵀZ = 5, r = 0.5, T = 5 / 5.5."""
    old, new = torch.tensor([[1.0], [2.0]]), torch.tensor([[2.0], [4.0]])
    assert ridge_map(old, new).item() == pytest.approx(5 / 5.5)
    assert relative_drift(old, new) == pytest.approx(1.0)


def test_the_map_against_the_normal_equations():
    torch.manual_seed(0)
    old, new = torch.randn(40, 6).double(), torch.randn(40, 6).double()
    r = 0.1 * (old.T @ old).trace() / 6
    expected = torch.linalg.inv(old.T @ old + r * torch.eye(6)) @ old.T @ (new - old)
    assert torch.allclose(ridge_map(old, new), expected)


def test_nothing_moved_is_no_map():
    old = torch.randn(10, 4)
    assert torch.equal(ridge_map(old, old), torch.zeros(4, 4).double())
    assert relative_drift(old, old) == 0.0
    assert torch.equal(ridge_map(torch.zeros(3, 4), torch.ones(3, 4)), torch.zeros(4, 4).double())
    assert relative_drift(torch.zeros(3, 4), torch.ones(3, 4)) == 0.0


@pytest.mark.parametrize("n", [12, 30])
@pytest.mark.parametrize("scatter", ["per-class", "pooled"])
def test_sums_carried_along_are_the_sums_of_moved_features(scatter, n):
    """With 4 sentences each, classes keep factors, with 10 in 5 dimensions triangles."""
    torch.manual_seed(0)
    z, move = torch.randn(n, 5).double(), 0.3 * torch.randn(5, 5).double()
    rows = torch.arange(n) % 3
    carried, moved = ClassSums(5, scatter), ClassSums(5, scatter)
    for sums, features in ((carried, z), (moved, z + z @ move)):
        sums.grow(3)
        sums.add(features, rows)
    carried.carry(move)
    assert torch.allclose(carried.sums, moved.sums)
    assert torch.allclose(carried.moments(), moved.moments())
    assert torch.allclose(carried.covariance(balanced=True), moved.covariance(balanced=True))
    assert torch.equal(carried.counts, moved.counts)


def test_the_past_follows_the_trunk():
    """If all features are rotated, the new task alone shows where the old classes are."""
    torch.manual_seed(0)
    centres = {"a": [5.0, 0, 0], "b": [0, 5.0, 0], "c": [0, 0, 5.0], "d": [-5.0, 1, 0], "e": [0, -5.0, 2]}
    data = {
        name: Taught(torch.tensor(centre) + torch.randn(60, 3), [name] * 60)
        for name, centre in centres.items()
    }

    def joined(names: str) -> Taught:
        return Taught(
            torch.cat([data[name].features for name in names]), [name for name in names for _ in range(60)]
        )

    turn = torch.linalg.qr(torch.randn(3, 3))[0]
    past, current = joined("ab"), joined("cde")
    moved = Taught(current.features @ turn, current.labels)
    turned_past = Taught(past.features @ turn, past.labels)
    scores = {}
    for carried in (True, False):
        head = SLDAHead(3, shrinkage=0.01, weighting="equal")
        head.add(["a", "b"])
        absorb(head, past, Taught(torch.zeros(0, 3), []))
        head.add(["c", "d", "e"])
        notes = absorb(head, moved, Taught(torch.zeros(0, 3), []), old=current if carried else None)
        scores[carried] = head.score(turned_past)
        assert (notes["drift"] > 0.3) == carried
    assert scores[True] > 0.95
    assert scores[False] < 0.8

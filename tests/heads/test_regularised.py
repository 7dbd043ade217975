"""Regularised discriminant analysis: the worked example, scipy as a witness, exactness, and the choices."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.vectors import absorb
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from holdfast.errors import HoldfastError
from holdfast.heads import RDAHead, SLDAHead, Taught
from holdfast.heads.regularised import BLENDS, STRENGTHS

D = 5
NONE = Taught(torch.zeros(0, D), [])


def blobs(seed: int = 0, classes: int = 4, n: int = 9, d: int = D, apart: float = 1.0) -> Taught:
    """Classes of different shapes and sizes: the first has twice the sentences, the last two."""
    draw = np.random.default_rng(seed)
    sizes = [2 * n, *[n] * (classes - 2), 2]
    places = np.random.default_rng(100)
    centres, shapes = places.normal(size=(classes, d)) * apart, places.normal(size=(classes, d, d))
    z = [centres[k] + draw.normal(size=(size, d)) @ shapes[k] for k, size in enumerate(sizes)]
    labels = [f"c{k}" for k, size in enumerate(sizes) for _ in range(size)]
    return Taught(torch.tensor(np.concatenate(z)), labels)


def part(data: Taught, places: list[int]) -> Taught:
    return Taught(data.features[places], [data.labels[i] for i in places])


def taught(head: RDAHead, *parts: Taught) -> RDAHead:
    for one in parts:
        head.add(sorted(set(one.labels)))
        head.take_in(one)
    return head


def slow(data: Taught, z: torch.Tensor, e: float, o: float) -> np.ndarray:
    """Return the scores by the formula, with scipy's density of every class."""
    x, y = data.features.numpy(), np.array(data.labels)
    own = {c: x[y == c] for c in sorted(set(y))}
    covariances = {c: np.cov(v.T, bias=True) for c, v in own.items()}
    pooled = sum(len(v) / len(x) * covariances[c] for c, v in own.items())
    d = x.shape[1]
    found = []
    for c, v in own.items():
        a = (1 - e) * (o * covariances[c] + (1 - o) * pooled) + e * np.trace(pooled) / d * np.eye(d)
        found.append(multivariate_normal(v.mean(0), a).logpdf(z.numpy()) + d / 2 * math.log(2 * math.pi))
    return np.stack(found, 1)


# ---- worked example, witness --------------------------------------------------------------------------


def test_scores_by_hand():
    """{0, 2} and {10, 14}: μ = 1, 12; Σ_k = 1, 4; Σ = 2.5; o = 0.5, e = 0: A = 1.75, 3.25; at z = 6."""
    data = Taught(torch.tensor([[0.0], [2], [10], [14]]).double(), ["a", "a", "b", "b"])
    head = taught(RDAHead(1), data)
    head.chosen = (0.0, 0.0, 0.5)
    scores = head(torch.tensor([[6.0]]).double())[0].tolist()
    assert scores == pytest.approx([-7.4227, -6.1278], abs=5e-5)
    assert scores[0] == pytest.approx(-0.5 * 25 / 1.75 - 0.5 * math.log(1.75))
    assert scores[1] == pytest.approx(-0.5 * 36 / 3.25 - 0.5 * math.log(3.25))
    assert head.predict(torch.tensor([[6.0]])) == ["b"]
    head.chosen = (0.0, 0.0, 0.0)
    expected = [-0.5 * 25 / 2.5 - 0.5 * math.log(2.5), -0.5 * 36 / 2.5 - 0.5 * math.log(2.5)]
    assert head(torch.tensor([[6.0]]).double())[0].tolist() == pytest.approx(expected)
    assert head.predict(torch.tensor([[6.0]])) == ["a"], "the shared covariance alone"


@pytest.mark.parametrize(("e", "o"), [(1e-3, 0.0), (0.03, 0.3), (0.3, 0.6), (0.1, 1.0), (1.0, 0.5)])
@pytest.mark.parametrize("d", [D, 30])
def test_against_the_density_of_scipy(d, e, o):
    """In 30 dimensions all classes keep factors; in 5 the larger ones keep triangles."""
    data = blobs(d=d)
    head = taught(RDAHead(d, shrinkage=e, blend=o), data)
    z = blobs(seed=1, d=d).features
    expected = slow(data, z, e, o)
    assert np.allclose(head(z).numpy(), expected, rtol=1e-7, atol=1e-7)
    single = head(z.float()).double().numpy()
    assert np.allclose(single, expected, rtol=1e-3, atol=1e-3), "float32, as vectors come from an encoder"


def test_a_blend_of_0_answers_as_slda():
    data, z = blobs(), blobs(seed=1, n=40).features
    for e in (1e-3, 0.1, 0.9):
        linear = taught(SLDAHead(D, shrinkage=e), data)
        head = taught(RDAHead(D, shrinkage=e, blend=0.0), data)
        assert head.predict(z) == linear.predict(z)
        assert torch.equal(head.distances(z), linear.distances(z))


def test_labels_of_different_shapes_need_a_blend():
    """Two labels around the same place, one narrow and one wide: means alone cannot tell them apart."""
    draw = torch.Generator().manual_seed(0)
    wide, narrow = (size * torch.randn(200, 3, generator=draw) for size in (4.0, 1.0))
    data = Taught(torch.cat([wide, narrow]), ["wide"] * 200 + ["narrow"] * 200)
    found = {o: taught(RDAHead(3, shrinkage=0.01, blend=o), data).score(data) for o in (0.0, 0.8)}
    assert found[0.0] < 0.7 < 0.85 < found[0.8]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_one_sentence_a_label_is_the_nearest_mean(n):
    places = torch.tensor([[1.0, 0], [0.0, 7.0], [3.0, 3.0]])[:n]
    head = RDAHead(2)
    head.add([f"c{k}" for k in range(n)])
    absorb(head, Taught(places, head.labels), Taught(torch.zeros(0, 2), []))
    assert head.predict(places + 0.3) == head.labels
    assert torch.isfinite(head(places)).all()


# ---- exactness ----------------------------------------------------------------------------------------


def fixed() -> RDAHead:
    return RDAHead(D, shrinkage=0.03, blend=0.3)


def same(left: RDAHead, right: RDAHead) -> None:
    assert sorted(left.labels) == sorted(right.labels)
    order = [right.labels.index(label) for label in left.labels]
    z = blobs(seed=3).features
    assert torch.allclose(left(z), right(z)[:, order], rtol=1e-6, atol=1e-6)


TOTAL = len(blobs().labels)
orders = st.permutations(range(TOTAL))


@given(order=orders, cuts=st.lists(st.integers(1, TOTAL - 1), max_size=5))
@settings(max_examples=30, deadline=None)
def test_any_order_and_batching_with_a_state_in_between(order, cuts):
    data, head = blobs(), fixed()
    for a, b in itertools.pairwise(sorted({0, *cuts, TOTAL})):
        head = taught(head, part(data, order[a:b]))
        other = fixed()
        other.become(head.labels, head.seen)
        state = {name: tensor.clone() for name, tensor in head.statistics().items()}
        assert other.misfit(state) == ""
        other.load_statistics(state)
        head = other
    same(head, taught(fixed(), data))


@given(order=orders, cut=st.integers(1, TOTAL - 1), gone=st.sampled_from(["c0", "c1", "c2", "c3"]))
@settings(max_examples=30, deadline=None)
def test_merged_and_forgotten_labels(order, cut, gone):
    data = blobs()
    left, right = (taught(fixed(), part(data, half)) for half in (order[:cut], order[cut:]))
    left.merge(right)
    same(left, taught(fixed(), data))
    assert left.forget(gone) == "", "no trace of it is left"
    kept = [i for i, label in enumerate(data.labels) if label != gone]
    same(left, taught(fixed(), part(data, kept)))


def test_the_head_follows_features_that_move():
    data = blobs()
    move = 0.2 * blobs(seed=7).features[:D]
    head = taught(fixed(), data)
    head(data.features)  # a solution that must not be used again
    head.carry(move)
    moved = Taught(data.features + data.features @ move, data.labels)
    assert torch.allclose(head(moved.features), taught(fixed(), moved)(moved.features), rtol=1e-6, atol=1e-6)


# ---- what is chosen -----------------------------------------------------------------------------------


def test_the_evidence_is_that_of_sentences_left_out():
    data, valid = blobs(n=5, apart=0.3), blobs(seed=2, n=4, apart=0.3)
    head = RDAHead(D)
    head.add(sorted(set(data.labels)))
    notes = absorb(head, data, valid)
    order = sorted(range(len(data.labels)), key=lambda i: data.labels[i])
    expected = []
    for e, _, o in head.options:

        def one(e: float = e, o: float = o) -> RDAHead:
            return RDAHead(D, shrinkage=e, blend=o)

        found = len(valid.labels) * taught(one(), data).score(valid)
        for fold in range(5):
            out = order[fold::5]
            rest = part(data, [i for i in range(len(order)) if i not in out])
            found += len(out) * taught(one(), rest).score(part(data, out))
        expected.append(found)
    assert head.evidence.tolist() == pytest.approx(expected)
    assert len(set(expected)) > 3, "the choice must have an effect"
    best = max(expected)
    assert expected[head.options.index(head.chosen)] == pytest.approx(best)
    assert notes == {"drift": 0.0, "shrinkage": head.chosen[0], "blend": head.chosen[2]}
    before = head.evidence.clone()
    head.settle(valid)
    assert (head.evidence - before).sum() > 0, "summed over tasks"


def test_the_shared_covariance_wins_a_tie():
    data = blobs(n=12, apart=100.0)
    head = RDAHead(D)
    head.add(sorted(set(data.labels)))
    assert absorb(head, data, NONE)["blend"] == 0.0
    assert head.evidence.unique().numel() < len(head.options), "there must be ties"


def test_what_the_user_fixed_is_not_chosen():
    assert len(RDAHead(D).options) == len(STRENGTHS) * len(BLENDS)
    assert {o for _, _, o in RDAHead(D, shrinkage=0.2).options} == set(BLENDS)
    assert BLENDS[0] == 0.0, "slda is among the choices"
    data = blobs()
    head = RDAHead(D, shrinkage=0.123, blend=0.7)
    head.add(sorted(set(data.labels)))
    notes = absorb(head, data, blobs(seed=2))
    assert (notes["shrinkage"], notes["blend"]) == (0.123, 0.7)
    with pytest.raises(HoldfastError, match=r"blend 1.5 is not in \[0, 1\]"):
        RDAHead(D, blend=1.5)


def test_forgetting_names_what_was_chosen():
    data = blobs()
    head = RDAHead(D)
    head.add(sorted(set(data.labels)))
    absorb(head, data, blobs(seed=2))
    assert "(shrinkage, blend, temperature, distances of --reject)" in head.forget("c1")


def test_unknown_inputs_are_far_from_the_shared_covariance():
    data, valid = blobs(n=40), blobs(seed=2, n=50)
    head = RDAHead(D)
    head.add(sorted(set(data.labels)))
    absorb(head, data, valid)
    assert (head.distances(valid.features + 200) > head.threshold(0.99)).all()
    inside = (head.distances(valid.features) <= head.threshold(0.9)).double().mean()
    assert float(inside) == pytest.approx(0.9, abs=0.02)

"""Streaming discriminant analysis: worked examples, a naive reference, and exactness."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from helpers.vectors import absorb
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import HoldfastError
from holdfast.heads import SLDAHead, Taught
from holdfast.heads.closed import TEMPERATURES
from holdfast.heads.discriminant import LEVELS, SHRINKAGES, oracle_shrinkage, shrunk
from holdfast.heads.sums import ClassSums

NONE = Taught(torch.zeros(0, 2), [])


def taught(head: SLDAHead, *parts: Taught) -> SLDAHead:
    for part in parts:
        head.add(sorted(set(part.labels)))
        head.take_in(part)
    return head


def solved(head: SLDAHead) -> tuple[torch.Tensor, torch.Tensor]:
    return head.solve(head.chosen)


def hand() -> Taught:
    """Class a varies along x, class b along y: Σ = diag(8, 2) / (4 - 2) = diag(4, 1)."""
    return Taught(torch.tensor([[2.0, 0], [-2, 0], [0, 3], [0, 1]]), ["a", "a", "b", "b"])


# ---- worked examples ----------------------------------------------------------------------------------


def test_the_covariance_is_the_spread_around_the_class_means():
    head = taught(SLDAHead(2, shrinkage=0.2, weighting="equal"), hand())
    assert torch.allclose(head.past.covariance(), torch.tensor([[4.0, 0], [0, 1]]).double())
    assert torch.allclose(head.past.means(), torch.tensor([[0.0, 0], [0, 2]]).double())


def test_shrinkage_by_hand():
    found = shrunk(torch.tensor([[4.0, 1], [1, 1]]).double(), 0.2)
    assert torch.allclose(found, torch.tensor([[3.7, 0.8], [0.8, 1.3]]).double())


def test_scores_and_probabilities_by_hand():
    """Σ_e = diag(3.7, 1.3): score_a = 0, score_b = (2 y - 2) / 1.3."""
    head = taught(SLDAHead(2, shrinkage=0.2, weighting="equal"), hand())
    scores = head(torch.tensor([[5.0, 2.0], [-3.0, 1.0]]))
    assert torch.allclose(scores, torch.tensor([[0, 2 / 1.3], [0, 0]]), atol=1e-6)
    assert scores.softmax(1)[0, 1].item() == pytest.approx(1 / (1 + math.exp(-2 / 1.3)))
    assert head.predict(torch.tensor([[0.0, 1.1], [0.0, 0.9]])) == ["b", "a"]


def test_a_prior_from_counts_by_hand():
    data = Taught(torch.cat([hand().features, torch.zeros(2, 2)]), [*hand().labels, "a", "a"])
    plain, prior = (
        taught(SLDAHead(2, shrinkage=0.2, weighting=weighting), data) for weighting in ("equal", "counts")
    )
    added = solved(prior)[1] - solved(plain)[1]
    assert torch.allclose(added, torch.tensor([math.log(4 / 6), math.log(2 / 6)]).double())


def test_a_balanced_covariance_by_hand():
    """The mean square of a is 4 along x, that of b 1 along y; b has twice the samples but the same weight."""
    b = torch.tensor([[0.0, 3], [0, 1]])
    data = Taught(torch.cat([hand().features, b]), [*hand().labels, "b", "b"])
    head = taught(SLDAHead(2, shrinkage=0.2, weighting="covariance"), data)
    assert torch.allclose(head.past.covariance(balanced=True), torch.tensor([[2.0, 0], [0, 0.5]]).double())


@pytest.mark.parametrize("n", [1, 2])
def test_no_spread_is_the_identity(n):
    """With one sentence per class the spread is unknown: nearest mean."""
    data = Taught(torch.tensor([[1.0, 0.0], [0.0, 7.0]])[:n], ["a", "b"][:n])
    head = taught(SLDAHead(2), data)
    assert torch.equal(head.past.covariance(), torch.eye(2).double())
    assert head.predict(data.features) == data.labels


# ---- naive reference ----------------------------------------------------------------------------------


def blobs(seed: int = 0, classes: int = 4, n: int = 9, d: int = 5) -> Taught:
    draw = np.random.default_rng(seed)
    labels = [f"c{i % classes}" for i in range(classes * n)]
    centres = draw.normal(size=(classes, d)) * 2
    z = np.stack([centres[int(label[1:])] + draw.normal(size=d) for label in labels])
    return Taught(torch.tensor(z, dtype=torch.float32), labels)


def slow_scores(data: Taught, z: np.ndarray, e: float) -> np.ndarray:
    x, y = data.features.numpy().astype(float), np.array(data.labels)
    names = sorted(set(y))
    means = {c: x[y == c].mean(0) for c in names}
    spread = sum(np.outer(v - means[c], v - means[c]) for v, c in zip(x, y, strict=True))
    sigma = spread / (len(x) - len(names))
    inverse = np.linalg.inv((1 - e) * sigma + e * np.trace(sigma) / x.shape[1] * np.eye(x.shape[1]))
    return np.array([[m @ inverse @ v - m @ inverse @ m / 2 for m in means.values()] for v in z])


@pytest.mark.parametrize("e", [1e-4, 0.03, 0.3, 1.0])
def test_against_the_formula_written_out(e):
    data = blobs()
    head = taught(SLDAHead(5, shrinkage=e, weighting="equal"), data)
    z = blobs(seed=1).features
    assert np.allclose(head(z.double()).numpy(), slow_scores(data, z.numpy(), e), atol=1e-8)


# ---- exactness ----------------------------------------------------------------------------------------


def fixed() -> SLDAHead:
    return SLDAHead(5, shrinkage=0.03, weighting="equal")


def part(data: Taught, places: list[int]) -> Taught:
    return Taught(data.features[places], [data.labels[i] for i in places])


def same(left: SLDAHead, right: SLDAHead) -> None:
    assert sorted(left.labels) == sorted(right.labels)
    order = [right.labels.index(label) for label in left.labels]
    for mine, other in zip(solved(left), solved(right), strict=True):
        assert torch.allclose(mine, other[order], rtol=0, atol=1e-6)


@given(order=st.permutations(range(36)), cuts=st.lists(st.integers(1, 35), max_size=6))
@settings(max_examples=40, deadline=None)
def test_any_order_and_any_batching_give_the_same_head(order, cuts):
    data, edges = blobs(), sorted({0, *cuts, 36})
    pieces = [part(data, order[a:b]) for a, b in itertools.pairwise(edges)]
    same(taught(fixed(), *pieces), taught(fixed(), data))


@given(order=st.permutations(range(36)), cut=st.integers(1, 35))
@settings(max_examples=30, deadline=None)
def test_two_states_add_up(order, cut):
    data = blobs()
    left, right = (taught(fixed(), part(data, half)) for half in (order[:cut], order[cut:]))
    left.merge(right)
    same(left, taught(fixed(), data))


@given(order=st.permutations(range(36)), gone=st.sampled_from(["c0", "c1", "c2", "c3"]))
@settings(max_examples=30, deadline=None)
def test_forgetting_a_label_equals_never_having_learnt_it(order, gone):
    data = blobs()
    head = taught(fixed(), part(data, order[:20]), part(data, order[20:]))
    assert head.forget(gone) == "", "no trace of it is left"
    kept = [i for i, label in enumerate(data.labels) if label != gone]
    same(head, taught(fixed(), part(data, kept)))
    assert gone not in head.predict(data.features)


def test_a_class_that_arrives_twice_far_apart_is_right():
    """Batches of one class need the term n b/(n+b) (m-μ)(m-μ)ᵀ, which public implementations drop."""
    early = Taught(torch.tensor([[0.0, 0], [2, 0]]), ["a", "a"])
    late = Taught(torch.tensor([[8.0, 0], [10, 0]]), ["a", "a"])
    head = taught(SLDAHead(2), early, late)
    # Around the common mean 5: 25 + 9 + 9 + 25 = 68, over n - K = 3.
    assert head.past.covariance()[0, 0].item() == pytest.approx(68 / 3)


def test_large_offsets_do_not_eat_the_spread():
    data = blobs()
    near, far = (
        taught(fixed(), Taught(data.features.double() + shift, data.labels)) for shift in (0.0, 1000.0)
    )
    assert torch.allclose(near.past.covariance(), far.past.covariance(), atol=1e-6)


def test_pooled_sums_say_that_traces_stay():
    data = blobs()
    pooled = taught(SLDAHead(5, shrinkage=0.03, weighting="equal", scatter="pooled"), data)
    same(pooled, taught(fixed(), data))
    assert "pooled" in pooled.forget("c1")
    kept = part(data, [i for i, label in enumerate(data.labels) if label != "c1"])
    clean = taught(SLDAHead(5, shrinkage=0.03, weighting="equal", scatter="pooled"), kept)
    assert not torch.allclose(pooled.past.covariance(), clean.past.covariance())


def test_statistics_bring_the_head_back():
    data = blobs()
    head = SLDAHead(5)
    head.add(sorted(set(data.labels)))
    absorb(head, data, blobs(seed=2))
    other = SLDAHead(5)
    other.become(head.labels, head.seen)
    other.load_statistics({name: value.clone() for name, value in head.statistics().items()})
    z = blobs(seed=3).features
    assert torch.equal(head(z), other(z))
    assert head.threshold(0.9) == other.threshold(0.9)


def test_taking_in_never_changes_what_was_handed_out():
    data = blobs()
    head = taught(fixed(), data)
    before = head.statistics()
    copies = {name: value.clone() for name, value in before.items()}
    head.take_in(data)
    head.carry(torch.full((5, 5), 0.1))
    assert all(torch.equal(before[name], copies[name]) for name in copies)


# ---- the choice of the shrinkage ----------------------------------------------------------------------


def test_the_shrinkage_with_the_best_validation_score_is_chosen():
    data, valid = blobs(n=3, d=12), blobs(n=6, d=12)
    head = SLDAHead(12, weighting="equal")
    head.add(sorted(set(data.labels)))
    notes = absorb(head, data, valid, old=data)
    scores = {e: taught(SLDAHead(12, shrinkage=e, weighting="equal"), data).score(valid) for e in SHRINKAGES}
    assert len(set(scores.values())) > 1, "the choice must have an effect"
    assert scores[notes["shrinkage"]] == max(scores.values())


def test_sentences_left_out_in_turn_are_evidence_too():
    """If the encoder is unchanged, training sentences count like validation sentences."""
    data = blobs(n=5, d=12)
    head = SLDAHead(12)
    head.add(sorted(set(data.labels)))
    absorb(head, data, Taught(torch.zeros(0, 12), []))
    order = sorted(range(20), key=lambda i: data.labels[i])
    expected = torch.zeros(len(SHRINKAGES)).double()
    for fold in range(5):
        out = order[fold::5]
        rest = part(data, [i for i in range(20) if i not in out])
        for number, e in enumerate(SHRINKAGES):
            one = taught(SLDAHead(12, shrinkage=e), rest)
            expected[number] += len(out) * one.score(part(data, out))
    assert torch.allclose(head.evidence, expected)
    assert float(head.past.counts.sum()) == 20
    moved = SLDAHead(12)
    moved.add(sorted(set(data.labels)))
    absorb(moved, data, Taught(torch.zeros(0, 12), []), old=data)
    assert not moved.evidence.any(), "sentences that the encoder was trained on are no evidence"


def test_where_scores_tie_the_number_of_sentences_decides():
    """Any shrinkage separates distant classes, so the estimate from the number of sentences decides."""
    chosen = {}
    for n in (2, 2000):
        data = blobs(n=n, d=12)
        apart = Taught(data.features + 100 * torch.eye(12)[[int(c[1:]) for c in data.labels]], data.labels)
        head = SLDAHead(12, weighting="equal")
        head.add(sorted(set(data.labels)))
        chosen[n] = absorb(head, apart, apart)["shrinkage"]
        assert head.evidence.unique().numel() == 1, "all scores must be equal"
    assert chosen[2] >= 0.3
    assert chosen[2000] >= 0.3, "the classes are spheres, so full shrinkage costs nothing"


def test_oracle_shrinkage_by_hand():
    """diag(4, 1, 1), n = 20: (1/3 · 18 + 36) / ((21 - 2/3) · (18 - 12)) = 42/122; with few samples 1."""
    covariance = torch.diag(torch.tensor([4.0, 1, 1])).double()
    assert oracle_shrinkage(covariance, 20) == pytest.approx(42 / 122)
    assert oracle_shrinkage(covariance, 1) == 1.0
    assert oracle_shrinkage(torch.eye(3).double(), 50) == 1.0, "full shrinkage leaves a sphere unchanged"


def test_the_temperature_makes_validation_sentences_most_likely():
    data, valid = blobs(n=6, d=40), blobs(seed=0, n=12, d=40)
    head = SLDAHead(40)
    head.add(sorted(set(data.labels)))
    assert head.temperature == 10.0, "there is no evidence yet"
    absorb(head, data, valid)
    best = max(TEMPERATURES, key=lambda t: head.likelihood(valid, t))
    assert head.temperature == best
    scores = head(valid.features)[:, head.visible_rows()].double() / best
    gold = head.rows(valid.labels)
    by_hand, doubt = 0.0, 1 / (48 + 2)
    for row, k in zip(scores.log_softmax(1).tolist(), gold.tolist(), strict=True):
        by_hand += (1 - doubt) * row[k] + doubt * (sum(row) - row[k]) / 3
    assert head.likelihood(valid, best) == pytest.approx(by_hand)


def test_two_right_answers_are_no_certainty():
    data = blobs(n=4, d=40)
    head = SLDAHead(40)
    head.add(sorted(set(data.labels)))
    absorb(head, data, part(data, [0, 1]))
    assert head.score(part(data, [0, 1])) == 1.0
    likely = (head(data.features)[:2].double() / head.temperature).softmax(1).max(1).values
    assert (likely < 0.99).all()


def test_few_sentences_do_not_overrule_many():
    """Evidence is summed over tasks, weighted by the number of validation sentences."""
    data, valid = blobs(n=3, d=12), blobs(n=30, d=12)
    head = SLDAHead(12, weighting="equal")
    head.add(sorted(set(data.labels)))
    first = absorb(head, data, valid)["shrinkage"]
    one = Taught(valid.features[:1], valid.labels[:1])
    head.settle(one)
    assert head.chosen[0] == first


def test_without_validation_data_the_sums_decide():
    head = taught(SLDAHead(5), blobs())
    assert head.settle(Taught(torch.zeros(0, 5), []))["shrinkage"] in SHRINKAGES
    assert math.isnan(head.score(Taught(torch.zeros(0, 5), [])))


def test_what_the_user_fixed_is_not_chosen():
    data = blobs()
    head = SLDAHead(5, shrinkage=0.123, weighting="counts")
    head.add(sorted(set(data.labels)))
    assert absorb(head, data, blobs(seed=2))["shrinkage"] == 0.123
    assert len(head.options) == 1


def test_cross_validation_is_learning_without_the_fold():
    data = blobs(n=5)
    head = taught(fixed(), data)
    before = {name: value.clone() for name, value in head.statistics().items()}
    mean, error = head.cross_validated(data)
    order = sorted(range(len(data.labels)), key=lambda i: data.labels[i])
    scores = []
    for fold in range(5):
        out = set(order[fold::5])
        rest = part(data, [i for i in range(len(data.labels)) if i not in out])
        scores.append(taught(fixed(), rest).score(part(data, sorted(out))))
    assert mean == pytest.approx(np.mean(scores))
    assert error == pytest.approx(np.std(scores, ddof=1) / math.sqrt(5))
    assert all(torch.equal(value, before[name]) for name, value in head.statistics().items())


# ---- unknown inputs -----------------------------------------------------------------------------------


def test_distances_are_mahalanobis_to_the_nearest_class():
    data = blobs()
    head = taught(SLDAHead(5, shrinkage=0.03, weighting="equal"), data)
    inverse = torch.linalg.inv(shrunk(head.past.covariance(), 0.03))
    z = blobs(seed=4).features.double()
    each = torch.stack([((z - m) @ inverse * (z - m)).sum(1) for m in head.past.means()])
    assert torch.allclose(head.distances(z), each.min(0).values)


def test_the_threshold_keeps_what_validation_kept():
    data, valid = blobs(n=40), blobs(n=50)
    head = SLDAHead(5)
    head.add(sorted(set(data.labels)))
    absorb(head, data, valid)
    for keep in LEVELS:
        inside = (head.distances(valid.features) <= head.threshold(keep) + 1e-9).double().mean().item()
        assert inside == pytest.approx(keep, abs=0.02)
    assert (head.distances(valid.features + 50) > head.threshold(0.99)).all()


def test_a_threshold_needs_validation_data_and_sense():
    head = taught(SLDAHead(5), blobs())
    with pytest.raises(HoldfastError, match="needs validation"):
        head.threshold(0.95)
    with pytest.raises(HoldfastError, match=r"between 0\.5 and 0\.99"):
        head.threshold(0.2)


def test_empty_rows_are_not_labels_yet():
    sums = ClassSums(2)
    sums.grow(3)
    assert sums.means().shape == (3, 2)
    head = taught(SLDAHead(2), hand())
    head.add(["c"])
    assert head.visible_rows() == [0, 1]
    assert set(head.predict(torch.randn(20, 2))) <= {"a", "b"}

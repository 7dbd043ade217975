"""Class sums: a worked example, exactness of factors and triangles, and what is saved."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.heads import SLDAHead, Taught
from holdfast.heads.sums import ClassSums, eight_bytes, rounded, six_bytes, square, trapezoid
from holdfast.maths.params import Params

WIDTH, CLASSES, N = 8, 3, 33


def vectors(seed: int = 0, n: int = N) -> Tensor:
    return torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 3


def rows(n: int = N) -> Tensor:
    """Class 0 has over half of the sentences, more than dimensions; the others have fewer."""
    return torch.tensor([0, 1, 0, 2, 0, 0])[torch.arange(n) % 6]


def made(*parts: tuple[Tensor, Tensor]) -> ClassSums:
    sums = ClassSums(WIDTH)
    sums.grow(CLASSES)
    for z, which in parts:
        sums.add(z, which)
    return sums


def again(sums: ClassSums) -> ClassSums:
    """Return the sums as they come back from a state."""
    other = ClassSums(WIDTH)
    other.grow(len(sums.counts))
    state = {name: tensor.clone() for name, tensor in sums.state().items()}
    assert other.misfit(state) == ""
    other.load(state)
    return other


def slow(z: Tensor, which: Tensor) -> list[Tensor]:
    """Return each class's scatter around its mean, sentence by sentence."""
    found = []
    for k in range(CLASSES):
        own = z[which == k]
        found.append(sum((torch.outer(v - own.mean(0), v - own.mean(0)) for v in own), torch.zeros(8, 8)))
    return found


def close(found: Tensor, expected: Tensor, size: float) -> None:
    assert float((found - expected).abs().max()) <= 1e-9 * size


def same(sums: ClassSums, z: Tensor, which: Tensor) -> None:
    """Compare everything that heads read with a slow computation, to 1e-9 of the size of the vectors."""
    size = max(float(z.square().sum()), 1.0)
    counts = torch.bincount(which, minlength=CLASSES).double()
    assert torch.equal(sums.counts, counts)
    close(sums.sums, torch.zeros(CLASSES, WIDTH).double().index_add(0, which, z), size)
    for k, expected in enumerate(slow(z, which)):
        found = sums.deviations(k)
        close(found.T @ found, expected, size)
    close(sums.within(), sum(slow(z, which)), size)
    close(sums.moments(), z.T @ z, size)
    known = [k for k in range(CLASSES) if counts[k]]
    means = sum(slow(z, which)[k] / counts[k] for k in known) / max(len(known), 1)
    if len(z) > 6:  # otherwise there may be no spread, for which the identity stands
        close(sums.covariance(balanced=True), means, size)
        close(sums.covariance(), sum(slow(z, which)) / max(len(z) - len(known), 1), size)


# ---- a worked example ---------------------------------------------------------------------------------


def test_a_factor_by_hand():
    """(1, 0, 0), (3, 2, 0), (5, -2, 0): mean (3, 0, 0), scatter [[8, -4], [-4, 8]] = RᵀR.

    R = [[√8, -√2, 0], [0, √6, 0]]: √8 · √8 = 8, √8 · -√2 = -4, 2 + 6 = 8.
    """
    sums = ClassSums(3)
    sums.grow(1)
    sums.add(torch.tensor([[1.0, 0, 0], [3, 2, 0], [5, -2, 0]]), torch.zeros(3, dtype=torch.long))
    r = torch.tensor([[math.sqrt(8), -math.sqrt(2), 0], [0, math.sqrt(6), 0]]).double()
    assert torch.allclose(sums.deviations(0), r)
    state = sums.state()
    assert state["ranks"].tolist() == [2]
    assert state["triangles"].shape == (0, 6)
    # Packed without the zero below the diagonal.
    flat = torch.tensor([math.sqrt(8), -math.sqrt(2), 0, math.sqrt(6), 0]).double()
    assert torch.allclose(eight_bytes(state["factors"]), flat)


def test_a_factor_grows_into_a_triangle():
    """The eighth deviation in 8 dimensions makes the matrix the smaller form."""
    sums = ClassSums(WIDTH)
    sums.grow(1)
    z, ranks = vectors(n=10), []
    for v in z:
        sums.add(v[None], torch.zeros(1, dtype=torch.long))
        ranks.append(sums.state()["ranks"].item())
    assert ranks == [0, 1, 2, 3, 4, 5, 6, 7, -1, -1]
    assert torch.allclose(square(sums.state()["triangles"][0], WIDTH), z.T @ z)


# ---- exactness ----------------------------------------------------------------------------------------

orders = st.permutations(range(N))
cuts = st.lists(st.integers(1, N - 1), max_size=6)


@given(order=orders, cuts=cuts, saved=st.booleans())
@settings(max_examples=40, deadline=None)
def test_any_order_and_batching(order, cuts, saved):
    z, which, sums = vectors(), rows(), made()
    for a, b in itertools.pairwise(sorted({0, *cuts, N})):
        sums.add(z[order[a:b]], which[order[a:b]])
        sums = again(sums) if saved else sums
    same(sums, z, which)


@given(order=orders, cut=st.integers(0, N), saved=st.booleans())
@settings(max_examples=40, deadline=None)
def test_two_states_add_up(order, cut, saved):
    z, which = vectors(), rows()
    left, right = (made((z[part], which[part])) for part in (order[:cut], order[cut:]))
    left.merge(again(right) if saved else right, range(CLASSES))
    same(left, z, which)


@given(order=orders, gone=st.integers(0, N), saved=st.booleans())
@settings(max_examples=60, deadline=None)
def test_removed_rows_were_never_there(order, gone, saved):
    z, which = vectors(), rows()
    sums = made((z, which))
    sums = again(sums) if saved else sums
    sums.add(z[order[:gone]], which[order[:gone]], sign=-1)
    same(again(sums), z[order[gone:]], which[order[gone:]])


@given(order=orders, gone=st.integers(0, N), cut=st.integers(0, N))
@settings(max_examples=60, deadline=None)
def test_left_out_rows_are_removed_for_a_while(order, gone, cut):
    """In one step or in two; the sums themselves stay as they are, to the bit."""
    z, which = vectors(), rows()
    sums = made((z, which))
    before = {name: tensor.clone() for name, tensor in sums.state().items()}
    some, more = order[: min(cut, gone)], order[min(cut, gone) : gone]
    same(
        sums.left_out(z[some], which[some]).left_out(z[more], which[more]),
        z[order[gone:]],
        which[order[gone:]],
    )
    assert all(torch.equal(before[name], tensor) for name, tensor in sums.state().items())


@pytest.mark.parametrize("scatter", ["per-class", "pooled"])
def test_a_label_that_is_forgotten_leaves_the_others_to_the_bit(scatter):
    z, which = vectors(), rows()
    sums = ClassSums(WIDTH, scatter)
    sums.grow(CLASSES)
    sums.add(z, which)
    clean = ClassSums(WIDTH, scatter)
    clean.grow(2)
    clean.add(z[which != 1], which[which != 1] // 2)
    sums.remove(1)
    equal = [torch.equal(sums.state()[name], tensor) for name, tensor in clean.state().items()]
    assert all(equal) == (scatter == "per-class")


def test_the_features_move():
    move = 0.3 * vectors(5, WIDTH)
    z, which = vectors(), rows()
    sums = made((z, which))
    sums.carry(move)
    same(sums, z + z @ move, which)
    sums.add(vectors(1), rows())
    same(sums, torch.cat([z + z @ move, vectors(1)]), torch.cat([which, rows()]))


def test_many_small_lessons_with_saving_in_between():
    """Each rounding of a factor is 7.3e-12 at most; two hundred of them stay within 1e-9."""
    z = vectors(n=5)
    which = torch.zeros(5, dtype=torch.long)
    sums = made((z, which))
    for number in range(100):
        more = vectors(number, 2)
        sums.add(more, which[:2])
        sums = again(sums)
        sums.add(more, which[:2], sign=-1)
        sums = again(sums)
    same(sums, z, which)


@given(order=orders, cuts=cuts, gone=st.integers(0, 20))
@settings(max_examples=30, deadline=None)
def test_the_solved_head_is_the_same(order, cuts, gone):
    """Any order and batching, rows removed again, a state in between: to 1e-6."""
    z, labels = vectors(), [f"c{k}" for k in rows().tolist()]

    def taught(*parts: list[int]) -> SLDAHead:
        head = SLDAHead(WIDTH, shrinkage=0.05)
        head.add(["c0", "c1", "c2"])
        for part in parts:
            head.take_in(Taught(z[part], [labels[i] for i in part]))
            state = head.statistics()
            assert head.misfit(state) == ""
            head.load_statistics(state)
        return head

    edges = sorted({0, *cuts, N})
    head = taught(*(order[a:b] for a, b in itertools.pairwise(edges)))
    some = order[:gone]
    head.take_in(Taught(z[some], [labels[i] for i in some]), sign=-1)
    for mine, other in zip(head.solve(head.chosen), taught(order[gone:]).solve(head.chosen), strict=True):
        assert torch.allclose(mine, other, rtol=0, atol=1e-6)


def test_sentences_that_are_all_the_same():
    z = vectors(n=1).expand(6, WIDTH)
    sums = made((z, torch.zeros(6, dtype=torch.long)))
    assert torch.equal(sums.covariance(), torch.eye(WIDTH).double())
    sums.add(z[:4], torch.zeros(4, dtype=torch.long), sign=-1)
    assert torch.equal(sums.covariance(), torch.eye(WIDTH).double())
    assert torch.allclose(sums.means()[0], z[0])


def test_what_was_not_learnt_cannot_be_removed():
    sums = made((vectors(n=4), torch.zeros(4, dtype=torch.long)))
    state = sums.state()
    with pytest.raises(HoldfastError, match="not what was learnt"):
        sums.add(vectors(9, 2), torch.zeros(2, dtype=torch.long), sign=-1)
    with pytest.raises(HoldfastError, match="more sentences would be removed"):
        sums.add(vectors(n=1), torch.ones(1, dtype=torch.long), sign=-1)
    assert all(torch.equal(state[name], tensor) for name, tensor in sums.state().items())


def test_vectors_computed_again_may_differ_by_rounding():
    z, which = vectors(), rows()
    sums = made((z, which))
    noise = 1 + 1e-7 * torch.randn(N, WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    sums.add((z * noise)[:12], which[:12], sign=-1)
    expected = sum(slow(z[12:], which[12:]))
    assert torch.allclose(sums.within(), expected, rtol=0, atol=1e-4)


# ---- what is saved ------------------------------------------------------------------------------------


def test_six_bytes_a_number():
    x = vectors().reshape(-1) * torch.logspace(-30, 30, N * WIDTH).double()
    x[0] = 0
    near = rounded(x)
    assert float(((near - x).abs() / x.abs().clamp(min=1e-300)).max()) <= 2**-37
    assert not torch.equal(near, x)
    assert torch.equal(eight_bytes(six_bytes(near)), near), "rounded numbers lose nothing more"
    assert six_bytes(near).nbytes == 6 * len(x)


def test_saving_and_loading_changes_no_bit():
    sums = made((vectors(), rows()))
    assert set(sums.state()["ranks"].tolist()) == {-1, 5, 4}
    other = again(sums)
    for name, tensor in sums.state().items():
        assert torch.equal(tensor, other.state()[name]), name
    assert torch.equal(sums.covariance(), other.covariance())


def test_the_size_of_150_labels_of_50_sentences():
    """Without building the state: counted for one label, at the width of three layers of MiniLM."""
    sums = ClassSums(1152)
    sums.grow(1)
    z = torch.randn(50, 1152, generator=torch.Generator().manual_seed(0))
    sums.add(z, torch.zeros(50, dtype=torch.long))
    each = sum(tensor.nbytes for tensor in sums.state().values())
    assert each == 8 * (1 + 1152 + 1) + 6 * (49 * 1152 - 49 * 48 // 2)
    assert 150 * each <= 60e6
    assert sums.bytes_per_label == 8 * (1 + 1152 + 1 + 1152 * 1153 // 2)


def old_state(z: Tensor, which: Tensor) -> Params:
    """Return a state as it was written until now: the triangle of S_k for every class."""
    upper = torch.triu_indices(WIDTH, WIDTH).unbind()
    every = [z[which == k] for k in range(CLASSES)]
    return {
        "counts": torch.bincount(which, minlength=CLASSES).double(),
        "sums": torch.stack([own.sum(0) for own in every]),
        "triangles": torch.stack([(own.T @ own)[upper] for own in every]),
    }


def test_states_of_former_versions_stay_exact():
    z, which = vectors(), rows()
    state = old_state(z[:20], which[:20])
    sums = made()
    assert sums.misfit(state) == ""
    sums.load(state)
    assert torch.equal(sums.state()["triangles"], state["triangles"]), "loaded as they are"
    same(sums, z[:20], which[:20])
    other = made((z[20:26], which[20:26]))
    other.merge(again(sums), range(CLASSES))  # factors meet triangles
    sums.add(z[20:], which[20:])
    same(again(sums), z, which)
    sums.add(z[:5], which[:5], sign=-1)
    same(again(sums), z[5:], which[5:])
    same(other, z[:26], which[:26])


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ranks", lambda t: t - 2),
        ("ranks", lambda t: t + 1),
        ("ranks", lambda t: t * 0 + 2**40),
        ("ranks", lambda t: t.double()),
        ("ranks", lambda t: t[:-1]),
        ("factors", lambda t: t[:-1]),
        ("factors", lambda t: t[:, :2]),
        ("factors", lambda t: t.double()),
        ("factors", lambda t: t * 0 + 0x7FF0),
        ("triangles", lambda t: t[:0]),
        ("triangles", lambda t: torch.cat([t, t])),
        ("sums", lambda t: t[:, :-1]),
        ("counts", lambda t: t[:-1]),
        *((name, None) for name in ClassSums.names),
    ],
)
def test_tensors_that_do_not_belong_together_are_refused(name, change):
    sums = made((vectors(), rows()))
    state = sums.state()
    if change is None:
        del state[name]
    else:
        state[name] = change(state[name])
    assert sums.misfit(state) == name


# ---- one scatter for all ------------------------------------------------------------------------------

WIDE = 40  # a factor of up to ten rows


def wide(seed: int = 0, n: int = N) -> Tensor:
    return torch.randn(n, WIDE, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + 3


def pooled(*parts: tuple[Tensor, Tensor], classes: int = CLASSES) -> ClassSums:
    sums = ClassSums(WIDE, "pooled")
    sums.grow(classes)
    for z, which in parts:
        sums.add(z, which)
    return sums


def reloaded(sums: ClassSums) -> ClassSums:
    other = ClassSums(WIDE, "pooled")
    other.grow(len(sums.counts))
    state = {name: tensor.clone() for name, tensor in sums.state().items()}
    assert other.misfit(state) == ""
    other.load(state)
    for name, tensor in sums.state().items():
        assert torch.equal(tensor, other.state()[name]), name
    return other


def same_pooled(sums: ClassSums, z: Tensor, which: Tensor) -> None:
    size = max(float(z.square().sum()), 1.0)
    expected = torch.zeros(WIDE, WIDE).double()
    for k in sorted(set(which.tolist())):
        apart = z[which == k] - z[which == k].mean(0)
        expected += apart.T @ apart
    close(sums.within(), expected, size)
    close(sums.moments(), z.T @ z, size)
    assert sums.size() == pytest.approx(float(z.square().sum()), rel=1e-9, abs=1e-9)
    assert sums.sound(size)


def test_few_sentences_of_all_labels_are_a_factor():
    z, which = wide(), rows()
    sums = pooled()
    assert sums.state()["factors"].numel() == 0, "nothing is stored for nothing"
    for number, (v, k) in enumerate(zip(z, which, strict=True), 1):
        sums.add(v[None], k[None])
        rank = number - len(set(which[:number].tolist()))
        assert ("ranks" in sums.state()) == (rank <= WIDE // 4)
        same_pooled(reloaded(sums), z[:number], which[:number])


@given(order=orders, cuts=cuts, gone=st.integers(0, N), saved=st.booleans())
@settings(max_examples=30, deadline=None)
def test_pooled_rows_in_any_order_and_removed_again(order, cuts, gone, saved):
    z, which, sums = wide(), rows(), pooled()
    for a, b in itertools.pairwise(sorted({0, *cuts, N})):
        sums.add(z[order[a:b]], which[order[a:b]])
        sums = reloaded(sums) if saved else sums
    some = order[:gone]
    left = sums.left_out(z[some], which[some])
    sums.add(z[some], which[some], sign=-1)
    for one in (sums, left):
        same_pooled(one, z[order[gone:]], which[order[gone:]])


@given(order=orders, n=st.integers(0, N), gone=st.integers(0, N))
@settings(max_examples=30, deadline=None)
def test_pooled_rows_of_a_small_state_are_removed(order, n, gone):
    z, which, some = wide(), rows(), order[: min(n, 12)]
    sums = pooled((z[some], which[some]))
    less = some[:gone]
    sums.add(z[less], which[less], sign=-1)
    same_pooled(reloaded(sums), z[some[gone:]], which[some[gone:]])


@given(order=orders, cut=st.integers(0, N), end=st.integers(0, N), fold=st.booleans())
@settings(max_examples=30, deadline=None)
def test_two_pooled_states_add_up(order, cut, end, fold):
    """Factors and triangles in any pair; with `fold` two labels of the other state become one."""
    z, which = wide(), rows()
    left, right = order[:cut], order[cut : max(cut, end)]
    sums, other = pooled((z[left], which[left])), pooled((z[right], which[right]))
    places = [0, 1, 1] if fold else [0, 1, 2]
    sums.merge(reloaded(other), places)
    now = torch.cat([which[left], torch.tensor(places)[which[right]]])
    same_pooled(reloaded(sums), torch.cat([z[left], z[right]]), now)


@pytest.mark.parametrize("n", [6, N])
def test_pooled_features_move_and_lead(n):
    z, which, move = wide(n=n), rows(n), 0.1 * wide(5, WIDE)
    sums = pooled((z, which))
    sums.carry(move)
    same_pooled(sums, z + z @ move, which)
    lead = pooled((z, which)).leading(12)
    part = z[:, :12]
    assert torch.allclose(lead.moments(), part.T @ part)
    lead.add(part, which)
    assert torch.allclose(lead.moments(), 2 * part.T @ part)


@pytest.mark.parametrize("n", [9, N])
def test_a_removed_label_leaves_its_share_of_a_pooled_scatter(n):
    z, which = wide(n=n), rows(n)
    sums = pooled((z, which))
    before, middle = sums.covariance(), sums.sums.clone()
    sums.remove(1)
    assert torch.allclose(sums.covariance(), before)
    assert torch.equal(sums.sums, middle[[0, 2]])
    again = ClassSums(WIDE, "pooled")
    again.grow(2)
    assert again.misfit(sums.state()) == ""
    more = wide(7, 2)
    sums.add(more, torch.tensor([0, 0]))
    assert int(sums.counts.sum()) == int((which != 1).sum()) + 2


def test_nothing_added_changes_no_bit_of_a_pooled_factor():
    sums = pooled((wide(n=8), rows(8)))
    before = sums.state()
    sums.add(wide(n=0), rows(0))
    sums.add(wide(n=0), rows(0), sign=-1)
    assert all(torch.equal(before[name], tensor) for name, tensor in sums.state().items())


def test_what_pooled_sums_have_not_learnt_cannot_be_removed():
    sums = pooled((wide(n=8), rows(8)))
    with pytest.raises(HoldfastError, match="not what was learnt"):
        sums.add(wide(9, 1), torch.zeros(1, dtype=torch.long), sign=-1)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("ranks", lambda t: t + 20),
        ("ranks", lambda t: t * 0 - 2),
        ("ranks", lambda t: t - 1),
        ("ranks", lambda t: torch.cat([t, t])),
        ("factors", lambda t: t[:-1]),
        ("factors", lambda t: t * 0 + 0x7FF0),
        ("triangles", lambda t: torch.zeros(1, t.shape[1]).double()),
        ("factors", None),
        ("ranks", None),
    ],
)
def test_pooled_tensors_that_do_not_belong_together_are_refused(name, change):
    sums = pooled((wide(n=8), rows(8)))
    state = sums.state()
    if change is None:
        del state[name]
    else:
        state[name] = change(state[name])
    assert sums.misfit(state) == name


def test_pooled_sums_refuse_those_of_each_class():
    sums = ClassSums(WIDTH, "pooled")
    sums.grow(CLASSES)
    sums.add(vectors(), rows())
    assert list(sums.state()) == ["counts", "sums", "triangles"]
    assert sums.misfit(sums.state()) == ""
    assert sums.misfit(made((vectors(), rows())).state()) in ("factors", "ranks")


def test_a_trapezoid_is_unique():
    z = vectors(n=5)
    turned = torch.linalg.qr(vectors(1)[:5, :5]).Q @ z
    assert torch.allclose(trapezoid(z), trapezoid(turned), atol=1e-9)
    assert (trapezoid(z).diagonal() > 0).all()
    assert torch.equal(trapezoid(z).tril(-1), torch.zeros(5, WIDTH).double())

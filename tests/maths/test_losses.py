"""The task losses, compared with the worked examples of balanced_softmax.md and with naive loops."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional

from holdfast.data import load_stream
from holdfast.data.objective import objective
from holdfast.data.tasks import Split, Task
from holdfast.errors import HoldfastError
from holdfast.maths.losses import IGNORED, Objective, balanced_weights, relaxed_prior

DATA = Path(__file__).parents[3] / "shared" / "data"
Z = (1.2, 0.4, 0.9, -0.3, 2.0)  # classes 0, 1 past, 2, 3 current with 30 and 10 samples, 4 unseen


def with_prior(*prior: float) -> Objective:
    return Objective(torch.tensor(prior).log(), torch.ones(len(prior)))


def split(**counts: int) -> Split:
    return Split.of([(f"{label} {i}", label) for label, n in counts.items() for i in range(n)])


def task(train: Split, valid: Split | None = None) -> Task:
    return Task("t", train, valid or train, train)


@pytest.mark.parametrize(
    ("prior", "expected"),
    [
        ((1, 1, 30, 10, 0), 2.45185775),
        ((7, 7, 210, 70, 0), 2.45185775),  # only ratios matter
        ((0, 0, 30, 10, 0), 2.39428429),
        ((20, 20, 30, 10, 0), 3.17601986),
        ((1, 1, 1, 1, 0), 2.38098572),  # plain cross-entropy over the seen classes
        ((10, 10, 10, 10, 0), 2.38098572),
    ],
)
def test_relaxed_balanced_softmax_worked_example(prior: tuple[float, ...], expected: float) -> None:
    loss = with_prior(*prior)(torch.tensor([Z]), torch.tensor([3]))
    assert loss.item() == pytest.approx(expected, rel=1e-6)


def test_its_gradient_and_none_for_a_class_with_prior_zero() -> None:
    z = torch.tensor([Z], requires_grad=True)
    with_prior(1, 1, 30, 10, 0)(z, torch.tensor([3])).backward()
    expected = [0.03860232, 0.01734514, 0.85791911, -0.91386658, 0.0]
    assert z.grad is not None
    assert z.grad[0].tolist() == pytest.approx(expected, abs=1e-6)
    assert z.grad[0, 4] == 0
    assert z.grad.sum().item() == pytest.approx(0, abs=1e-6)


def test_nothing_overflows_or_saturates() -> None:
    z = torch.tensor([[60.0, 0.0, -60.0]], requires_grad=True)
    loss = with_prior(1, 1, 1)(z, torch.tensor([2]))
    loss.backward()
    assert loss.item() == 120.0
    assert z.grad is not None
    assert z.grad[0].tolist() == pytest.approx([1, 0, -1])
    z = torch.tensor([[1e3, -1e3, 1e3, 5e3]], requires_grad=True)
    loss = with_prior(1, 30, 10, 0)(z, torch.tensor([1]))
    loss.backward()
    assert loss.item() == pytest.approx(2000 + math.log(11 / 30))
    assert torch.isfinite(z.grad).all()


@settings(max_examples=50)
@given(st.data())
def test_both_losses_by_slow_loop(data: st.DataObject) -> None:
    k, n = data.draw(st.integers(2, 5)), data.draw(st.integers(1, 6))
    numbers = st.floats(-8, 8, width=32)
    z = data.draw(st.lists(st.lists(numbers, min_size=k, max_size=k), min_size=n, max_size=n))
    prior = data.draw(st.lists(st.integers(1, 500), min_size=k, max_size=k))
    weights = data.draw(st.lists(st.floats(0.125, 8, width=32), min_size=k, max_size=k))
    y = data.draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    keep = data.draw(st.lists(st.booleans(), min_size=n, max_size=n).filter(any))
    total = norm = 0.0
    for row, label, kept in zip(z, y, keep, strict=True):
        if kept:
            p = (
                prior[label]
                * math.exp(row[label])
                / sum(q * math.exp(v) for q, v in zip(prior, row, strict=True))
            )
            total -= weights[label] * math.log(p)
            norm += weights[label]
    labels = torch.tensor([label if kept else IGNORED for label, kept in zip(y, keep, strict=True)])
    loss = Objective(torch.tensor(prior).log(), torch.tensor(weights))
    assert loss(torch.tensor(z), labels).item() == pytest.approx(total / norm, rel=2e-5, abs=2e-5)
    assert loss.sums(torch.tensor(z), labels).tolist() == pytest.approx([total, norm], rel=2e-5, abs=2e-5)


def test_class_weighted_cross_entropy_is_torchs_and_ignores_fillers() -> None:
    z, y = (
        torch.randn(8, 3, generator=torch.Generator().manual_seed(0)),
        torch.tensor([0, 1, 2, 0, 1, 2, 0, 1]),
    )
    weights = torch.tensor([0.41, 0.89, 0.16])
    loss = Objective(torch.zeros(3), weights)
    torch.testing.assert_close(loss(z, y), functional.cross_entropy(z, y, weights))
    filled = torch.cat([y[:5], torch.full((3,), IGNORED)])
    torch.testing.assert_close(loss(z, filled), functional.cross_entropy(z[:5], y[:5], weights))


def test_a_mean_over_batches_is_the_quotient_of_sums() -> None:
    z, y = torch.randn(7, 3, generator=torch.Generator().manual_seed(1)), torch.tensor([0, 1, 2, 2, 1, 0, 0])
    loss = Objective(torch.zeros(3), torch.tensor([1.0, 5.0, 0.5]))
    losses, normaliser = loss.sums(z[:2], y[:2]) + loss.sums(z[2:], y[2:])
    torch.testing.assert_close(losses / normaliser, loss(z, y))


def test_balanced_weights() -> None:
    # n = 10, K = 2: 10/(2·8), 10/(2·2); every class weighs n/K in total
    weights = balanced_weights(split(a=8, b=2).counts())
    assert weights == {"a": 0.625, "b": 2.5}
    assert weights["a"] * 8 == weights["b"] * 2 == 5


def test_domain_incremental_weights_are_of_the_current_task_and_one_where_absent() -> None:
    lesson = task(split(a=8, b=2), split(a=1, b=9))
    for part in ("train", "valid"):
        loss = objective("domain-incremental", lesson, part, rows=["b", "c", "a"], seen=["a", "b", "c"])
        assert loss.weights.tolist() == [2.5, 1.0, 0.625]
        assert loss.log_prior.tolist() == [0, 0, 0]
    plain = objective("domain-incremental", lesson, "train", rows=["a", "b"], seen=[], class_weights="none")
    assert plain.weights.tolist() == [1, 1]


def test_the_papers_weights_and_what_they_do_not_know() -> None:
    def weights(lesson: Task) -> list[float]:
        rows = ["neutral", "change", "sustain"]
        loss = objective("domain-incremental", lesson, "train", rows=rows, seen=rows, class_weights="paper")
        return loss.weights.tolist()

    assert weights(task(split(change=1, neutral=1))) == pytest.approx([0.16, 0.41, 0.89])
    with pytest.raises(HoldfastError, match=r"'joy'.*class_weights=task") as error:
        weights(task(split(change=1, joy=1)))
    assert "\n" not in str(error.value)


def test_priors_of_train_and_valid() -> None:
    # `d` has no validation sentence, so its prior is 1; `z` has not been seen
    lesson = task(split(c=30, d=10), split(c=4))
    rows, seen = ["a", "c", "z", "d", "b"], ["a", "b", "c", "d"]
    train = objective("class-incremental", lesson, "train", rows=rows, seen=seen)
    valid = objective("class-incremental", lesson, "valid", rows=rows, seen=seen)
    assert train.log_prior.exp().tolist() == pytest.approx([1, 30, 0, 10, 1])
    assert valid.log_prior.exp().tolist() == pytest.approx([1, 4, 0, 1, 1])
    assert train.weights.tolist() == valid.weights.tolist() == [1] * 5


def test_a_class_taught_again_counts_as_current() -> None:
    prior = relaxed_prior({"a": 5, "b": 2}, current=["a", "b"], rows=["a", "b", "c"], seen=["a", "b", "c"])
    assert prior.tolist() == [5, 2, 1]


def test_a_relaxation_under_a_cap_is_the_loss_of_the_whole_data() -> None:
    """The loss only sees ratios: 4 of 40 sentences and an earlier label at 0.1 are 40 sentences and 1."""
    labels = {"rows": ["old", "a", "b", "new"], "seen": ["old"]}
    whole = objective("class-incremental", task(split(a=40, b=40)), "train", **labels)
    capped = objective("class-incremental", task(split(a=4, b=4)), "train", **labels, relaxation=0.1)
    z, y = torch.tensor([[1.2, 0.4, -0.3, 2.0], [0.1, 0.2, 0.3, 0.4]]), torch.tensor([1, 2])
    torch.testing.assert_close(capped(z, y), whole(z, y))
    # By hand, for the first sentence: -log 40 e^.4 / (e^1.2 + 40 e^.4 + 40 e^-.3)
    parts = [math.exp(1.2), 40 * math.exp(0.4), 40 * math.exp(-0.3)]
    assert float(capped(z[:1], y[:1])) == pytest.approx(-math.log(parts[1] / sum(parts)), abs=1e-6)
    assert float(capped(z, y)) != pytest.approx(
        float(objective("class-incremental", task(split(a=4, b=4)), "train", **labels)(z, y)), abs=1e-3
    )


def test_joint_training_is_plain_cross_entropy() -> None:
    loss = objective("joint", task(split(a=8, b=2)), "train", rows=["a", "b"], seen=["a", "b"])
    z, y = torch.tensor([[0.3, -0.2], [1.0, 2.0]]), torch.tensor([0, 0])
    torch.testing.assert_close(loss(z, y), functional.cross_entropy(z, y))


@pytest.mark.skipif(not (DATA / "hwu64").is_dir(), reason="the paper's data is not beside the repository")
@pytest.mark.parametrize("order", ["1", "2", "3"])
def test_every_class_of_every_hwu64_task_has_its_count_as_prior(order: str) -> None:
    # In the authors' code up to one class in five has prior 0 or that of another class (la_mas.md, D10).
    stream = load_stream("hwu64", order=order, data_dir=DATA)
    assert [len(lesson.labels) for lesson in stream] == [5] * 5
    seen: list[str] = []
    for lesson in stream:
        past, counts = list(seen), {}
        for label in lesson.train.labels:
            counts[label] = counts.get(label, 0) + 1
        seen += lesson.labels
        loss = objective("class-incremental", lesson, "train", rows=stream.labels, seen=seen)
        expected = [
            float(counts[label]) if label in counts else float(label in past) for label in stream.labels
        ]
        assert loss.log_prior.exp().tolist() == pytest.approx(expected)
        assert sum(value > 1 for value in expected) == 5

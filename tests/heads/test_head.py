"""The linear head: rows initialised by (seed, label), growth that keeps existing rows."""

import math

import torch
from torch.nn import functional

from holdfast.heads.linear import LinearHead


def head(*labels: str, seed: int = 0, width: int = 16, visible="seen") -> LinearHead:
    made = LinearHead(width, seed=seed, visible=visible)
    made.add(labels)
    return made


def row(of: LinearHead, label: str) -> list[float]:
    place = of.labels.index(label)
    return [*of.linear.weight[place].tolist(), of.linear.bias[place].item()]


def test_a_row_depends_on_seed_and_label_alone() -> None:
    one, other = head("music", "radio", "game"), LinearHead(16)
    torch.manual_seed(99)
    other.add(["game"])
    other.add(["radio", "music"])
    for label in one.labels:
        assert row(one, label) == row(other, label)
    assert row(one, "music") != row(one, "radio")
    assert row(one, "music") != row(head("music", seed=1), "music")


def test_making_rows_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    head("a", "b")
    assert torch.equal(torch.rand(3), expected)


def test_rows_start_as_torch_starts_a_linear_layer() -> None:
    values = torch.tensor([row(head(f"label {i}", width=100), f"label {i}") for i in range(50)])
    assert values.abs().max() <= 0.1  # 1/sqrt(100)
    assert abs(values.mean()) < 0.005
    assert math.isclose(values.std().item(), 0.1 / math.sqrt(3), rel_tol=0.05)


def test_growth_keeps_old_rows_bit_equal_and_names_the_new_ones() -> None:
    it = head("a", "b")
    with torch.no_grad():
        it.linear.weight.normal_()
    before = {name: value.clone() for name, value in it.linear.state_dict().items()}
    added = it.add(["b", "c", "d"])
    assert it.labels == ["a", "b", "c", "d"]
    assert {name: tuple(value.shape) for name, value in added.items()} == {
        "linear.weight": (2, 16),
        "linear.bias": (2,),
    }
    for name, value in it.linear.state_dict().items():
        assert torch.equal(value[:2], before[name])
        assert torch.equal(value[2:], added[f"linear.{name}"])
    assert [name for name, weight in it.named_parameters() if weight.requires_grad] == [
        "linear.weight",
        "linear.bias",
    ]
    added["linear.weight"].zero_()
    assert it.linear.weight[2:].any()


def test_adding_known_labels_gives_nothing_and_changes_nothing() -> None:
    it = head("a", "b")
    linear = it.linear
    assert it.add(["b", "a"]) == {}
    assert it.linear is linear
    assert it.labels == ["a", "b"]


def test_forward_is_one_column_per_row_also_without_rows() -> None:
    it, x = head("a", "b", "c"), torch.ones(5, 16)
    assert torch.equal(it(x), functional.linear(x, it.linear.weight, it.linear.bias))
    assert LinearHead(16)(x).shape == (5, 0)


def test_growth_keeps_the_precision() -> None:
    it = head("a").double()
    it.add(["b"])
    assert it.linear.weight.dtype == it.linear.bias.dtype == torch.float64


def test_visible_rows() -> None:
    it = head("a", "b", "c", "d")
    assert it.visible_rows() == []
    it.teach(["d", "b"])
    it.teach(["b"])
    assert it.seen == ["d", "b"]
    assert it.visible_rows() == [1, 3]  # in the order of the head
    everything = head("a", "b", visible="all")
    assert everything.visible_rows() == [0, 1]

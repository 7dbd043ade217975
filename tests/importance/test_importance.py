"""Importance: hooks compared with a loop over samples, worked examples, and invariances."""

from __future__ import annotations

import random
from functools import partial

import pytest
import torch
from helpers.importance import Features, long_and_short, row
from helpers.toys import TOPICS, small
from torch import Tensor, nn

from holdfast import importance
from holdfast.data.batches import Batch, Examples
from holdfast.errors import HoldfastError
from holdfast.maths.params import trainable
from holdfast.models import Network, build_classifier


def classifier(path: str, **changes: object) -> Network:
    model = build_classifier(path, small(**changes), labels=TOPICS)
    model.head.add(TOPICS[:3])
    model.head.teach(TOPICS[:3])
    torch.manual_seed(3)
    with torch.no_grad():  # adapters near the identity would hide mistakes
        for weight in trainable(model).values():
            weight.add_(0.3 * torch.randn_like(weight))
    return model.double().eval()


@pytest.fixture
def model(tiny_bert: str) -> Network:
    return classifier(tiny_bert)


@pytest.fixture
def data(model: Network) -> Examples:
    return model.encode(long_and_short())


def squared_norm(model: Network, batch: Batch) -> Tensor:
    return model(batch).logits[:, model.head.visible_rows()].square().sum()


def plain_norm(model: Network, batch: Batch) -> Tensor:
    return model(batch).logits[:, model.head.visible_rows()].square().sum().sqrt()


def log_likelihood(model: Network, batch: Batch) -> Tensor:
    [label] = batch.labels.tolist()
    rows = model.head.visible_rows()
    return torch.log_softmax(model(batch).logits[0, rows], 0)[rows.index(label)]


def one_by_one(model: Network, data: Examples, score, magnitude) -> dict[str, Tensor]:
    model.eval()
    weights = trainable(model)
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for i in range(len(data)):
        found = torch.autograd.grad(
            score(model, data.collate([i])), list(weights.values()), allow_unused=True
        )
        for name, gradient in zip(weights, found, strict=True):
            if gradient is not None:
                sums[name] += magnitude(gradient) / len(data)
    return sums


ESTIMATORS = {
    "mas": (importance.mas, squared_norm, torch.abs),
    "mas, l2": (partial(importance.mas, norm="l2"), plain_norm, torch.abs),
    "fisher": (importance.fisher, log_likelihood, torch.square),
}
every_estimator = pytest.mark.parametrize("estimator", ESTIMATORS)


def assert_close(found: dict[str, Tensor], expected: dict[str, Tensor], share: float = 1e-5) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        largest = float(value.abs().max())
        assert found[name].shape == value.shape
        assert float((found[name] - value).abs().max()) <= share * largest, name


@every_estimator
@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_one_backward_pass_gives_what_single_samples_give(model, data, estimator, batch_size):
    fast, score, magnitude = ESTIMATORS[estimator]
    expected = one_by_one(model, data, score, magnitude)
    assert all(float(value.max()) > 0 for value in expected.values()), "the reference must not be trivial"
    assert_close(fast(model, data, batch_size=batch_size), expected)


@every_estimator
@pytest.mark.parametrize("vector", ["cls", "pooler"])
def test_other_sentence_vectors(tiny_bert, estimator, vector):
    model = classifier(tiny_bert, vector=vector)
    data = model.encode(long_and_short())
    fast, score, magnitude = ESTIMATORS[estimator]
    assert_close(fast(model, data), one_by_one(model, data, score, magnitude))


@every_estimator
def test_names_are_those_of_trainable_weights(model, data, estimator):
    fast, *_ = ESTIMATORS[estimator]
    model.head.linear.bias.requires_grad_(False)
    found = fast(model, data)
    assert set(found) == set(trainable(model))
    assert "head.linear.bias" not in found
    assert all("embeddings" not in name and "query" not in name for name in found)


@every_estimator
def test_does_not_depend_on_order_or_padding(model, data, estimator):
    fast, *_ = ESTIMATORS[estimator]
    mixed = random.Random(1).sample(range(len(data)), len(data))
    other = Examples([data.tokens[i] for i in mixed], [data.labels[i] for i in mixed], data.pad)
    assert_close(fast(model, other, batch_size=4), fast(model, data, batch_size=7), share=1e-12)


def test_a_word_that_names_nothing_is_refused(model, data):
    with pytest.raises(HoldfastError, match=r"unknown labels 'tru' \(did you mean 'true'\?\)"):
        importance.fisher(model, data, labels="tru")
    with pytest.raises(HoldfastError, match="unknown convention 'LACL'"):
        importance.mas(model, data, convention="LACL")
    with pytest.raises(HoldfastError, match=r"unknown norm 'L2' \(did you mean 'l2'\?\)"):
        importance.mas(model, data, norm="L2")


def test_mas_does_not_read_labels(model, data):
    blind = Examples(data.tokens, [0] * len(data), data.pad)
    found, expected = importance.mas(model, blind), importance.mas(model, data)
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_fisher_reads_labels(model, data):
    blind = Examples(data.tokens, [0] * len(data), data.pad)
    found, expected = importance.fisher(model, blind), importance.fisher(model, data)
    assert not torch.allclose(found["head.linear.bias"], expected["head.linear.bias"])


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("convention", ["per-sample", "lacl"])
def test_leaves_the_model_as_it_was(model, data, training, convention):
    model.train(training)
    model.head.linear.bias.grad = torch.ones(3, dtype=torch.float64)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    importance.mas(model, data, convention=convention)
    assert model.training is training
    assert model.dropout.training is training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
    assert list(gradients) == ["head.linear.bias"]
    assert torch.equal(gradients["head.linear.bias"], torch.ones(3, dtype=torch.float64))
    assert not any(module._forward_hooks for module in model.modules())


class Scale(nn.Module):
    """A trainable module that is neither a Linear nor a LayerNorm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(0.5, 1.5, width, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@every_estimator
def test_fallback_for_other_modules_and_tied_weights(model, data, estimator):
    fast, score, magnitude = ESTIMATORS[estimator]
    model.dropout = nn.Sequential(Scale(32), model.dropout)
    first, last = (layer.output.dropout.adapter for layer in model.encoder.encoder.layer)
    last.down.weight = first.down.weight
    names = set(trainable(model))
    assert "dropout.0.factor" in names
    assert "encoder.encoder.layer.1.output.dropout.adapter.down.weight" not in names, "tied: one name"
    expected = one_by_one(model, data, score, magnitude)
    assert_close(fast(model, data, batch_size=5), expected)


def test_a_layer_called_twice_adds_up_before_the_absolute_value(model, data):
    twice = model.encoder.encoder.layer[0].output.dropout
    twice.again = twice.adapter  # the Sequential runs the same adapter twice
    assert_close(importance.mas(model, data), one_by_one(model, data, squared_norm, torch.abs))


def test_lacl_is_the_released_estimator(tiny_bert):
    model = classifier(tiny_bert, logits="all", head="preallocated")
    assert len(model.head.visible_rows()) == 6 > len(model.head.seen)
    data = model.encode(long_and_short())
    weights = trainable(model)
    sums = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    torch.manual_seed(11)
    model.train()
    for start in range(0, len(data), 20):
        batch = data.collate(list(range(start, min(start + 20, len(data)))))
        total = model(batch).logits.square().sum()
        for name, gradient in zip(weights, torch.autograd.grad(total, list(weights.values())), strict=True):
            sums[name] += 20 / len(data) * gradient.abs()
    torch.manual_seed(11)
    found = importance.mas(model, data, convention="lacl")
    assert_close(found, sums, share=1e-12)
    torch.manual_seed(12)
    other = importance.mas(model, data, convention="lacl")
    assert not torch.allclose(other["head.linear.weight"], sums["head.linear.weight"]), "dropout is on"


@every_estimator
def test_unseen_rows_of_a_preallocated_head_get_exactly_zero(tiny_bert, estimator):
    fast, *_ = ESTIMATORS[estimator]
    model = classifier(tiny_bert, head="preallocated")
    assert len(model.head.labels) == 6
    found = fast(model, model.encode(long_and_short()))
    for name in ("head.linear.weight", "head.linear.bias"):
        assert (found[name][:3] > 0).all()
        assert (found[name][3:] == 0).all()
    model.head.visible = "all"
    found = importance.mas(model, model.encode(long_and_short()))
    assert (found["head.linear.bias"] > 0).all()


# ---- specs/importance_estimators.md, section 8 --------------------------------------------------------


@pytest.fixture
def worked() -> tuple[Features, Examples]:
    model = Features([[1.0, 2.0], [-1.0, 1.0]], [[0.5, -0.25], [-0.5, 0.75]])
    return model, Examples(tokens=[[0], [1]], labels=[0, 1], pad=0)


def test_worked_numbers(worked):
    model, data = worked
    weight = "head.linear.weight"
    mas = importance.mas(model, data)[weight]
    assert torch.allclose(mas, torch.tensor([[0.75, 0.75], [2.25, 3.25]], dtype=torch.float64), atol=1e-8)
    lacl = importance.mas(model, data, convention="lacl")[weight]
    assert torch.allclose(lacl, torch.tensor([[15.0, 15.0], [5.0, 65.0]], dtype=torch.float64), atol=1e-7)
    # z = (0, 1) and (-3/4, 5/4), norms 1 and √2.125 = 1.457738; the gradient is z/‖z‖ ⊗ features
    plain = importance.mas(model, data, norm="l2")[weight]
    expected = torch.tensor([[0.257248, 0.257248], [0.928746, 1.428746]], dtype=torch.float64)
    assert torch.allclose(plain, expected, atol=1e-6)
    fisher = importance.fisher(model, data)[weight]
    assert torch.allclose(fisher, row([0.27432799, 1.07599796]), atol=1e-8)


def test_worked_numbers_of_other_labels(worked):
    model, data = worked
    predicted = Examples(data.tokens, [1, 1], data.pad)
    found = importance.fisher(model, predicted)["head.linear.weight"]
    assert torch.allclose(found, row([0.04326941, 0.15176364]), atol=1e-8)

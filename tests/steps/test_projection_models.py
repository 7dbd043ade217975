"""Second moments of a real model's inputs, and projected steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers.importance import long_and_short
from helpers.projection import kept, random_moment
from helpers.toys import TOPICS, class_stream, small
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from holdfast.data.batches import Examples
from holdfast.maths.params import trainable
from holdfast.models import Network, build_classifier
from holdfast.steps import projection
from holdfast.steps.projection import project_after_step, projector, second_moments

# ---- second moments -----------------------------------------------------------------------------------


@pytest.fixture
def model(tiny_bert: str) -> Network:
    """Return a model with dropout in training mode, with adapters far from the identity."""
    model = build_classifier(tiny_bert, small())
    model.head.add(TOPICS[:3])
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in trainable(model).values():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.train()


@pytest.fixture
def data(model: Network) -> Examples:
    return model.encode(long_and_short())


def sentence_by_sentence(model: Network, data: Examples) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the mean of x xᵀ over tokens, for the head over sentences, without any padding."""
    seen: dict[str, list[Tensor]] = {}
    handles = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear) and module.weight.requires_grad:
            seen[name] = []

            def note(module: nn.Linear, args: tuple[Tensor, ...], name: str = name) -> None:
                for x in args[0].double().reshape(-1, module.in_features):
                    one = module.bias is not None and module.bias.requires_grad
                    seen[name].append(torch.cat([x, torch.ones(1, dtype=torch.float64)]) if one else x)

            handles.append(module.register_forward_pre_hook(note))
    model.eval()
    with torch.no_grad():
        for i in range(len(data)):
            model(data.collate([i]))
    for handle in handles:
        handle.remove()
    model.train()
    moments = {name: sum(torch.outer(x, x) for x in xs) / len(xs) for name, xs in seen.items()}
    return moments, {name: len(xs) for name, xs in seen.items()}


@pytest.mark.parametrize("batch_size", [1, 3, 8, 32])
def test_moments_against_a_loop_over_sentences(model, data, batch_size):
    expected, counts = sentence_by_sentence(model, data)
    found, tokens = second_moments(model, data, batch_size=batch_size)
    assert found.keys() == expected.keys() == tokens.keys()
    assert len(found) == 9, "two layers with two adapters of two matrices each, and the head"
    words = sum(map(len, data.tokens))
    for name, moment in expected.items():
        assert counts[name] == int(tokens[name]) == (len(data) if name == "head.linear" else words)
        assert found[name].dtype == torch.float32, "the type it is stored in"
        assert float((found[name] - moment).abs().max()) < 1e-5 * float(moment.abs().max()), name
        assert float(found[name][-1, -1]) == 1.0, "the constant input"
        assert len(found[name]) == model.get_submodule(name).in_features + 1


def test_moments_of_the_head_are_of_sentence_vectors(model, data):
    """The head never sees tokens."""
    moments, _ = second_moments(model, data)
    with torch.no_grad():
        vectors = torch.cat([model.eval().features(data.collate([i])) for i in range(len(data))]).double()
    inner = vectors.T @ vectors / len(data)
    assert torch.allclose(moments["head.linear"][:-1, :-1].double(), inner, rtol=1e-4, atol=1e-6)
    assert torch.allclose(moments["head.linear"][-1, :-1].double(), vectors.mean(0), rtol=1e-4, atol=1e-6)


def test_moments_leave_the_model_as_it_was(model, data):
    before = copy.deepcopy(model.state_dict())
    second_moments(model, data)
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(weight.grad is None for weight in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_moments_look_at_no_label(model, data):
    expected, _ = second_moments(model, data)
    found, _ = second_moments(model, Examples(data.tokens, [-1] * len(data), data.pad))
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_bias_that_does_not_train_has_no_constant(model, data):
    model.head.linear.bias.requires_grad_(False)
    place = "encoder.encoder.layer.0.output.dropout.adapter.down"
    model.get_submodule(place).weight.requires_grad_(False)
    expected, _ = sentence_by_sentence(model, data)
    found, _ = second_moments(model, data)
    assert place not in found, "a matrix that does not train needs no projector"
    assert found.keys() == expected.keys()
    assert found["head.linear"].shape == (32, 32)
    assert torch.allclose(found["head.linear"].double(), expected["head.linear"], rtol=1e-4, atol=1e-6)


def test_layers_that_are_projected(model):
    """All trained matrices, by name."""
    matrices = {name for name, weight in trainable(model).items() if weight.dim() == 2}
    assert {f"{place}.weight" for place in projection.linear_layers(model)} == matrices
    assert len(matrices) == 9


# ---- projected steps ----------------------------------------------------------------------------------


class Toy(nn.Module):
    """Two linear layers, one without a bias, and a separate norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.one = nn.Linear(6, 5)
        self.norm = nn.LayerNorm(5)
        self.two = nn.Linear(5, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.norm(self.one(x)).tanh())


OPTIMIZERS: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda weights: SGD(weights, lr=0.1),
    "momentum": lambda weights: SGD(weights, lr=0.1, momentum=0.9),
    "adamw": lambda weights: AdamW(weights, lr=0.05, weight_decay=0.1),
}
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS)
PROJECTORS = {
    "one": projector(random_moment(7, rank=4, seed=1), 100.0, tau=3.0),
    "two": projector(random_moment(5, rank=2, seed=2), 100.0, tau=3.0),
}
FREE = {"two": [1, 3]}


def train(model: nn.Module, optimizer: Optimizer, steps: int, around: Callable[..., None] | None = None):
    generator = torch.Generator().manual_seed(9)
    for _ in range(steps):
        x, y = (torch.randn(8, n, generator=generator, dtype=torch.float64) for n in (6, 4))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        before = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        optimizer.step()
        if around:
            around(before)


def by_hand(model: Toy, before: dict[str, Tensor]) -> None:
    """Apply [W b] ← [W b] + u P row by row, except to free rows; restore the norm."""
    with torch.no_grad():
        for name in ("norm.weight", "norm.bias"):
            dict(model.named_parameters())[name].copy_(before[name])
        for row in range(5):
            u = [*(model.one.weight[row] - before["one.weight"][row])]
            u = torch.stack([*u, model.one.bias[row] - before["one.bias"][row]]) @ PROJECTORS["one"]
            model.one.weight[row] = before["one.weight"][row] + u[:6]
            model.one.bias[row] = before["one.bias"][row] + u[6]
        for row in range(4):
            if row not in FREE["two"]:
                u = (model.two.weight[row] - before["two.weight"][row]) @ PROJECTORS["two"]
                model.two.weight[row] = before["two.weight"][row] + u


@every_optimizer
@pytest.mark.parametrize("steps", [1, 4])
def test_an_update_is_projected_on_the_input_side(optimizer, steps):
    """Weight and bias are projected together, after the optimiser's scaling."""
    assert [kept(P) for P in PROJECTORS.values()] == [3, 3], "neither zero nor the identity"
    found, expected = Toy().double(), Toy().double()
    start = copy.deepcopy(found.state_dict())
    own = OPTIMIZERS[optimizer](found.parameters())
    project_after_step(own, dict(found.named_parameters()), PROJECTORS, FREE)
    train(found, own, steps)
    train(expected, OPTIMIZERS[optimizer](expected.parameters()), steps, lambda b: by_hand(expected, b))
    for name, value in expected.state_dict().items():
        assert torch.allclose(found.state_dict()[name], value, rtol=0, atol=1e-12), name
        assert torch.equal(value, start[name]) is name.startswith("norm."), name


@every_optimizer
def test_the_first_step_is_the_free_one_times_p(optimizer):
    free, held = Toy().double(), Toy().double()
    start = copy.deepcopy(free.state_dict())
    own = OPTIMIZERS[optimizer](held.parameters())
    project_after_step(own, dict(held.named_parameters()), PROJECTORS, {})
    train(held, own, 1)
    train(free, OPTIMIZERS[optimizer](free.parameters()), 1)
    u, v = ({n: w - start[n] for n, w in model.state_dict().items()} for model in (free, held))
    whole = torch.cat([u["one.weight"], u["one.bias"][:, None]], 1) @ PROJECTORS["one"]
    assert torch.allclose(v["one.weight"], whole[:, :6], atol=1e-12)
    assert torch.allclose(v["one.bias"], whole[:, 6], atol=1e-12)
    assert torch.allclose(v["two.weight"], u["two.weight"] @ PROJECTORS["two"], atol=1e-12)
    assert not torch.allclose(v["two.weight"], u["two.weight"], atol=1e-3)


@every_optimizer
def test_free_rows_take_the_whole_step(optimizer):
    free, held = Toy().double(), Toy().double()
    own = OPTIMIZERS[optimizer](held.parameters())
    project_after_step(own, dict(held.named_parameters()), PROJECTORS, {"one": range(5), "two": [0]})
    train(held, own, 1)
    train(free, OPTIMIZERS[optimizer](free.parameters()), 1)
    assert torch.allclose(held.one.weight, free.one.weight, rtol=0, atol=1e-15)
    assert torch.allclose(held.one.bias, free.one.bias, rtol=0, atol=1e-15)
    assert torch.allclose(held.two.weight[0], free.two.weight[0], rtol=0, atol=1e-15)
    assert not torch.allclose(held.two.weight[1:], free.two.weight[1:], atol=1e-3)


@every_optimizer
def test_what_is_in_no_projected_layer_stays(optimizer):
    model = Toy().double()
    start = copy.deepcopy(model.state_dict())
    own = OPTIMIZERS[optimizer](model.parameters())
    project_after_step(own, dict(model.named_parameters()), {"two": PROJECTORS["two"]}, {})
    train(model, own, 3)
    for name, value in model.state_dict().items():
        assert torch.equal(value, start[name]) is (name != "two.weight"), name


@every_optimizer
@pytest.mark.parametrize("bias", [True, False])
def test_old_outputs_stay_through_a_whole_training(optimizer, bias):
    """In single precision, with a projector computed from the old inputs."""
    generator = torch.Generator().manual_seed(11)
    old = torch.randn(4, 12, generator=generator)
    new, wanted = torch.randn(16, 12, generator=generator), torch.randn(16, 3, generator=generator)
    rows = (torch.cat([old, torch.ones(4, 1)], 1) if bias else old).double()
    P = projector(rows.T @ rows / 4, 1e6, tau=1.1)
    assert kept(P) == rows.shape[1] - 4
    torch.manual_seed(12)
    layer = nn.Linear(12, 3, bias=bias)
    before, other = layer(old).detach(), layer(new).detach()
    params = {f"layer.{name}": weight for name, weight in layer.named_parameters()}
    own = OPTIMIZERS[optimizer](params.values())
    project_after_step(own, params, {"layer": P}, {})
    losses = []
    for _ in range(25):
        own.zero_grad()
        loss = (layer(new) - wanted).square().mean()
        loss.backward()
        own.step()
        losses.append(float(loss.detach()))
    assert float((layer(old).detach() - before).abs().max()) < 1e-5
    assert float((layer(new).detach() - other).abs().max()) > 0.3
    assert losses[-1] < 0.8 * losses[0], "it must still learn"


def test_a_step_in_half_precision_is_projected_in_single():
    """The weights are rounded, the projector is not."""
    generator = torch.Generator().manual_seed(13)
    weight = nn.Parameter(torch.zeros(40, 7, dtype=torch.bfloat16))
    weight.grad = torch.randn(40, 7, generator=generator).bfloat16()
    optimizer = SGD([weight], lr=1.0)
    P = PROJECTORS["one"]
    project_after_step(optimizer, {"layer.weight": weight}, {"layer": P}, {})
    optimizer.step()
    expected = (-weight.grad.double() @ P).bfloat16()
    assert float((weight.detach() == expected).double().mean()) > 0.98  # except for ties in rounding


def test_moments_of_a_task_make_its_answers_stay(tiny_bert_dry):
    """Moments, projector and steps on the head: a sentence's logits do not change."""
    task = class_stream().tasks[0]
    model = build_classifier(tiny_bert_dry, small())
    model.head.add(TOPICS[:4])
    few = model.encode(task.train)
    few = Examples(few.tokens[:10], few.labels[:10], few.pad)
    moments, _ = second_moments(model, few)
    P = projector(moments["head.linear"], 1e6, tau=10.0)
    assert 10 < kept(P) < 33
    texts = task.train.texts[:10]
    before = model.logits(texts)
    params = {name: weight for name, weight in trainable(model).items() if name.startswith("head.")}
    optimizer = AdamW(params.values(), lr=0.05, weight_decay=0.0)
    project_after_step(optimizer, params, {"head.linear": P}, {"head.linear": [3]})
    generator = torch.Generator().manual_seed(1)
    for _ in range(5):
        for weight in params.values():
            weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()
    moved = (model.logits(texts) - before).abs().amax(0)
    assert float(moved[:3].max()) < 5e-3
    assert float(moved[3]) > 0.1

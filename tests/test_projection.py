"""Projectors: the spec's worked numbers, their algebra, moments by single sentences, projected steps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TOPICS, class_stream, small
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from test_importance import long_and_short
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from holdfast import projection
from holdfast.data.batches import Examples
from holdfast.models import Classifier, build_classifier
from holdfast.params import trainable
from holdfast.projection import correlation, project_after_step, projector, second_moments


def double(rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def kept(P: Tensor) -> int:
    """The trace of an orthogonal projector is the dimension it projects on."""
    return round(float(P.trace()))


# ---- the worked example: specs/adabop.md, section 8 ---------------------------------------------------

X = double([[2, 0, 1], [0, 1, 0], [2, 1, 1]])
F = X.T @ X
STEP = double([[1, 2, 3], [-1, 0, 1]])
STRICT = double([[0.2, 0, -0.4], [0, 0, 0], [-0.4, 0, 0.8]])
LOOSE = double(
    [
        [0.25085138, -0.21821789, -0.37457431],
        [-0.21821789, 0.93643578, -0.10910895],
        [-0.37457431, -0.10910895, 0.81271284],
    ]
)
SOFT = double(
    [
        [0.41512605, -0.10084034, -0.29243697],
        [-0.10084034, 0.67226891, -0.05042017],
        [-0.29243697, -0.05042017, 0.85378151],
    ]
)


def assert_printed(found: Tensor, expected: Tensor) -> None:
    """Equal to the eight digits that are printed."""
    assert found.dtype == torch.float64
    assert float((found - expected).abs().max()) < 1e-8


@pytest.mark.parametrize(
    ("lam", "tau", "count"), [(0.1, 1.2, 2), (0.1, 1.5, 2), (0.3, 1.2, 1), (0.3, 1.5, 2), (0.3, 5.0, 3)]
)
def test_how_many_vectors_the_ratio_keeps(lam, tau, count):
    assert kept(projector(F, lam, tau=tau)) == count


def test_the_strict_projector():
    P = projector(F, 0.3, tau=1.2)
    assert_printed(P, STRICT)
    assert_printed(STEP @ P, double([[-1, 0, 2], [-0.6, 0, 1.2]]))
    assert float((STEP @ P @ X.T).abs().max()) < 1e-14


@pytest.mark.parametrize("lam", [0.1, 0.3])
def test_the_loose_projector(lam):
    P = projector(F, lam, tau=1.5)
    assert_printed(P, LOOSE)
    normal = P / torch.linalg.norm(P)
    assert_printed(normal, P / 2**0.5)
    assert_printed(normal[0], double([0.17737871, -0.15430335, -0.26486404]))
    moved = [[-1.30930734, 1.32732684, 1.84534633], [-0.62542569, 0.10910895, 1.18728716]]
    assert_printed(STEP @ P, double(moved))


@pytest.mark.parametrize("lam", [0.1, 0.3])
def test_the_fraction_of_the_worked_example(lam):
    assert_printed(projector(F, lam, selection="fraction", fraction=0.4), STRICT)


def test_the_soft_projector():
    P = projector(F, 0.3, selection="soft", tau=1.0, fraction=0.0)
    assert_printed(P, SOFT)
    change = [[0.84033613, 1.09243697, 1.93277311], [-0.26890756, 0.05042017, -0.21848739]]
    assert_printed(STEP @ P @ X.T, double(change))
    assert_printed(STEP @ X.T, double([[5, 2, 7], [-1, 0, -1]]))


def owm(rows: Tensor, a: float) -> Tensor:
    """The recursion of Orthogonal Weights Modification, one input at a time."""
    P = torch.eye(rows.shape[1], dtype=torch.float64)
    for x in rows:
        k = P @ x
        P = P - torch.outer(k, k) / (a + x @ k)
    return P


@pytest.mark.parametrize("lam", [0.005, 0.3, 10.0])
def test_the_soft_projector_is_what_owm_arrives_at(lam):
    assert torch.allclose(projector(F, lam, selection="soft"), owm(X, 1 / lam), rtol=0, atol=1e-13)


G = double([[0.02, 0.01, 0], [0, 0.03, -0.01]])
BEFORE = double([[0.03, 0, 0.01], [0.01, 0.02, 0]])


def test_the_correlation_of_the_worked_example():
    assert correlation(G, BEFORE) == pytest.approx(0.02435843, abs=1e-8)
    assert correlation(G, BEFORE, scale_free=True) == pytest.approx(0.72127246, abs=1e-8)


def test_how_the_correlation_scales():
    """The new gradient's size never matters; the old one's does, unless it is divided out."""
    assert correlation(7 * G, BEFORE) == pytest.approx(correlation(G, BEFORE), rel=1e-12)
    assert correlation(G, 7 * BEFORE) == pytest.approx(7 * correlation(G, BEFORE), rel=1e-12)
    free = correlation(G, BEFORE, scale_free=True)
    assert correlation(7 * G, 5 * BEFORE, scale_free=True) == pytest.approx(free, rel=1e-12)


def test_gradients_that_have_nothing_in_common():
    assert correlation(double([[1, 0, 0]]), double([[0, 2, 0], [0, 0, 3]])) == 0.0
    assert correlation(double([[0, 5, 0]]), double([[0, 2, 0]]), scale_free=True) == pytest.approx(1.0)


# ---- rules and edges ----------------------------------------------------------------------------------


def random_moment(d: int, rank: int | None = None, seed: int = 0) -> Tensor:
    rows = torch.randn(rank or 2 * d, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return rows.T @ rows / len(rows)


@pytest.mark.parametrize("d", [5, 64])
def test_with_a_fraction_lambda_is_inert(d):
    moment = random_moment(d)
    weak, strong = (projector(moment, lam, selection="fraction", fraction=0.3) for lam in (0.005, 100.0))
    assert torch.allclose(weak, strong, rtol=0, atol=1e-12)
    assert kept(weak) == int(0.3 * d)
    ratios = [projector(moment, lam, tau=2.0) for lam in (0.005, 100.0)]
    assert kept(ratios[0]) > kept(ratios[1]), "with a ratio it is not"


def test_a_fraction_keeps_at_least_one_vector():
    moment = random_moment(64)
    P = projector(moment, 0.1, selection="fraction", fraction=0.01)
    assert kept(P) == 1
    assert float((P @ moment).trace()) == pytest.approx(float(torch.linalg.eigvalsh(moment)[0]), rel=1e-9)


def test_a_fraction_of_all_is_everything():
    P = projector(random_moment(5), 0.1, selection="fraction", fraction=1.0)
    assert torch.allclose(P, torch.eye(5, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(("selection", "open_ways"), [("ratio", 6), ("fraction", 1), ("soft", 6)])
def test_inputs_that_were_all_zero(selection, open_ways):
    P = projector(torch.zeros(6, 6), 0.3, selection=selection)
    assert torch.isfinite(P).all()
    assert kept(P) == open_ways
    assert kept(P @ P) == open_ways


@pytest.mark.parametrize("scale_free", [False, True])
def test_gradients_that_are_zero(scale_free):
    zero = torch.zeros_like(G)
    assert correlation(zero, BEFORE, scale_free=scale_free) == 0.0
    assert correlation(G, zero, scale_free=scale_free) == 0.0
    assert correlation(zero, zero, scale_free=scale_free) == 0.0


def test_round_off_below_zero_is_no_eigenvalue():
    """A moment stored in single precision may be slightly indefinite; a strong λ must not blow that up."""
    moment = torch.diag(double([-1e-9, 0.0, 1.0]))
    P = projector(moment, 1e10, tau=1.5)
    assert torch.allclose(P, torch.diag(double([1, 1, 0])))
    soft = projector(moment, 1e10, selection="soft")
    assert torch.allclose(soft, torch.diag(double([1, 1, 1e-10])), atol=1e-12)


@pytest.mark.parametrize("selection", ["ratio", "fraction", "soft"])
def test_single_precision_is_decomposed_in_double(selection):
    moment = random_moment(8).float()
    found = projector(moment, 0.3, selection=selection, tau=1.5)
    assert found.dtype == torch.float64
    assert torch.equal(found, projector(moment.double(), 0.3, selection=selection, tau=1.5))


# ---- properties ---------------------------------------------------------------------------------------

# Whole numbers: an eigenvalue of their Gram matrix is 0 or clearly above.
sides = st.integers(1, 7)
inputs = st.tuples(sides, sides).flatmap(
    lambda shape: arrays.arrays(np.float64, shape, elements=st.integers(-3, 3).map(float))
)
strengths = st.floats(-3, 3).map(lambda exponent: 10.0**exponent)
ratios = st.floats(1.01, 30.0)


def moment_of(rows: np.ndarray) -> Tensor:
    x = torch.from_numpy(rows)
    return x.T @ x / len(x)


@given(inputs, strengths, ratios)
def test_a_hard_projector_is_one(rows, lam, tau):
    moment = moment_of(rows)
    P = projector(moment, lam, tau=tau)
    assert torch.allclose(P, P.T, atol=1e-12)
    assert torch.allclose(P @ P, P, atol=1e-12)
    spectrum = np.sort(1 + lam * np.linalg.eigvalsh(moment.numpy()).clip(0))
    limit = tau * spectrum[0]
    surely = int((spectrum < limit * (1 - 1e-9)).sum())
    perhaps = int((spectrum < limit * (1 + 1e-9)).sum())
    assert surely <= kept(P) <= perhaps
    assert abs(float(P.trace()) - kept(P)) < 1e-9
    assert torch.allclose(P @ moment, moment @ P, atol=1e-9), "made of the moment's own eigenvectors"


@given(inputs, st.floats(0, 1))
def test_a_fraction_is_a_projector_on_the_least_used(rows, fraction):
    moment = moment_of(rows)
    P = projector(moment, 1.0, selection="fraction", fraction=fraction)
    count = max(int(len(P) * fraction), 1)
    assert torch.allclose(P, P.T, atol=1e-12)
    assert torch.allclose(P @ P, P, atol=1e-12)
    assert float(P.trace()) == pytest.approx(count, abs=1e-9)
    least = np.sort(np.linalg.eigvalsh(moment.numpy()))[:count].sum()
    assert float((P @ moment).trace()) == pytest.approx(least, abs=1e-9)


@given(inputs, strengths)
def test_a_soft_projector_shrinks(rows, lam):
    moment = moment_of(rows)
    P = projector(moment, lam, selection="soft")
    assert torch.allclose(P, P.T, atol=1e-12)
    values = torch.linalg.eigvalsh(P)
    assert float(values.min()) >= -1e-12
    assert float(values.max()) <= 1 + 1e-12
    eye = torch.eye(len(P), dtype=torch.float64)
    assert torch.allclose(P @ (eye + lam * moment), eye, atol=1e-9 * (1 + lam * float(moment.abs().max())))


@given(inputs, st.integers(0, 100))
def test_in_the_null_space_old_outputs_stay(rows, seed):
    """τ just above 1 and a strong λ: whatever the update, no old input notices."""
    moment = moment_of(rows)
    rank = int(np.linalg.matrix_rank(rows))
    assume(rank < rows.shape[1])
    P = projector(moment, 1e6, tau=1.001)
    assert kept(P) == rows.shape[1] - rank
    update = torch.randn(3, rows.shape[1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    assert float((update @ P @ torch.from_numpy(rows).T).abs().max()) < 1e-6
    assert float((update @ P).abs().max()) > 0


# ---- second moments -----------------------------------------------------------------------------------


@pytest.fixture
def model(tiny_bert: str) -> Classifier:
    """With dropout, in training mode, with adapters that are not near the identity."""
    model = build_classifier(tiny_bert, small())
    model.head.add(TOPICS[:3])
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in trainable(model).values():
            weight.add_(0.1 * torch.randn_like(weight))
    return model.train()


@pytest.fixture
def data(model: Classifier) -> Examples:
    return model.encode(long_and_short())


def sentence_by_sentence(model: Classifier, data: Examples) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The mean of x xᵀ over real tokens, for the head over sentences, with nothing padded anywhere."""
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
    assert len(found) == 9, "two adapters of two matrices in each of two layers, and the head"
    words = sum(map(len, data.tokens))
    for name, moment in expected.items():
        assert counts[name] == int(tokens[name]) == (len(data) if name == "head.linear" else words)
        assert found[name].dtype == torch.float32, "as it is stored"
        assert float((found[name] - moment).abs().max()) < 1e-5 * float(moment.abs().max()), name
        assert float(found[name][-1, -1]) == 1.0, "of the constant"
        assert len(found[name]) == model.get_submodule(name).in_features + 1


def test_moments_of_the_head_are_of_sentence_vectors(model, data):
    """Not of tokens: the head never sees one."""
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
    """Every matrix that trains, by its place."""
    matrices = {name for name, weight in trainable(model).items() if weight.dim() == 2}
    assert {f"{place}.weight" for place in projection.linear_layers(model)} == matrices
    assert len(matrices) == 9


# ---- projected steps ----------------------------------------------------------------------------------


class Toy(nn.Module):
    """Two linear layers, one without a bias, and a norm that belongs to none."""

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
    """[W b] ← [W b] + u P, row by row; the free rows whole; the norm back where it was."""
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
    """Of weight and bias together, after the optimiser's own scaling."""
    assert [kept(P) for P in PROJECTORS.values()] == [3, 3], "neither nothing nor everything"
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
    """In single precision, with a projector from the old inputs themselves."""
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
    assert losses[-1] < 0.8 * losses[0], "and yet it learns"


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
    assert float((weight.detach() == expected).double().mean()) > 0.98  # but for ties in rounding


def test_moments_of_a_task_make_its_answers_stay(tiny_bert_dry):
    """The whole of it on the head: moments, projector, steps; a sentence's logits do not move."""
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

import copy

import pytest
import torch
from helpers.families import adapted, tiny
from torch import Tensor, nn
from torch.nn.functional import gelu, layer_norm, linear, relu
from transformers import AutoConfig, AutoModel, PreTrainedModel

from holdfast.errors import HoldfastError
from holdfast.models.adapters import ADAPTERS, FAMILIES, Adapter, adapt

TOKENS = torch.arange(1, 13).view(2, 6)

every_family = pytest.mark.parametrize("family", FAMILIES)


def adapters(model: nn.Module) -> list[Adapter]:
    return [module for module in model.modules() if isinstance(module, Adapter)]


def silence(model: nn.Module) -> None:
    for adapter in adapters(model):
        nn.init.zeros_(adapter.up.weight)
        nn.init.zeros_(adapter.up.bias)


def run(model: PreTrainedModel) -> Tensor:
    torch.manual_seed(1)
    return model(input_ids=TOKENS).last_hidden_state


@every_family
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("preset", ADAPTERS)
def test_a_zero_up_projection_leaves_the_output_bit_equal(family: str, training: bool, preset: str) -> None:
    plain, model = tiny(family).train(training), adapted(family, preset).train(training)
    silence(model)
    assert torch.equal(run(model), run(plain))
    if training:
        assert not torch.equal(run(plain), run(plain.eval())), "dropout is off: the comparison shows nothing"


@every_family
def test_only_two_adapters_and_the_norms_of_each_layer_are_trainable(family: str) -> None:
    model, points = adapted(family), FAMILIES[family]
    trainable = {name for name, weight in model.named_parameters() if weight.requires_grad}
    layers = [f"{points.layers}.{i}" for i in range(2)]
    expected = {
        f"{layer}.{path}.adapter.{part}"
        for layer in layers
        for path in points.after
        for part in ("down.weight", "down.bias", "up.weight", "up.bias")
    }
    parts = ("weight",) if family == "modernbert" else ("weight", "bias")
    expected |= {f"{layer}.{path}.{part}" for layer in layers for path in points.norms for part in parts}
    expected.discard("layers.0.attn_norm.weight")  # ModernBERT's first layer has no attention norm
    assert trainable == expected
    assert len(adapters(model)) == 4


@every_family
def test_every_adapter_gets_a_gradient_and_changes_the_output(family: str) -> None:
    model = adapted(family)
    out = run(model)
    (out * torch.randn_like(out)).sum().backward()
    for name, weight in model.named_parameters():
        assert (weight.grad is not None and bool(weight.grad.any())) == weight.requires_grad, name

    silence(model)
    base = run(model)
    for adapter in adapters(model):
        nn.init.normal_(adapter.up.weight)
        assert not torch.allclose(run(model), base)
        nn.init.zeros_(adapter.up.weight)


@every_family
@pytest.mark.parametrize("which", [0, 1])
def test_the_contribution_enters_just_before_the_residual_addition(family: str, which: int) -> None:
    # What an adapter adds must reach the next reader of the residual stream unchanged, neither scaled by a
    # dropout nor normalised: the LayerNorm of its own block or, in pre-norm ModernBERT, the one that follows.
    model, points = adapted(family), FAMILIES[family]
    own = f"{points.layers}.0.{points.norms[which]}"
    reader = ("layers.0.mlp_norm", "layers.1.attn_norm")[which] if family == "modernbert" else own
    read: list[Tensor] = []
    model.get_submodule(reader).register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    run(model)
    amount = torch.linspace(-1, 1, 32)
    adapter = model.get_submodule(f"{points.layers}.0.{points.after[which]}.adapter")
    adapter.up.bias.data += amount
    run(model)
    before, after = read
    torch.testing.assert_close(after - before, amount.expand_as(before), atol=1e-5, rtol=0)


def test_a_bert_layer_by_hand() -> None:
    model = adapted("bert", seed=3)
    for adapter in adapters(model):
        nn.init.normal_(adapter.up.weight)
    first = model.encoder.layer[0]

    def block(module: nn.Module, x: Tensor, residual: Tensor) -> Tensor:
        x = linear(x, module.dense.weight, module.dense.bias)
        down, up = module.dropout.adapter.down, module.dropout.adapter.up
        x = x + linear(gelu(linear(x, down.weight, down.bias)), up.weight, up.bias)
        norm = module.LayerNorm
        return layer_norm(x + residual, (32,), norm.weight, norm.bias, norm.eps)

    x = model.embeddings(TOKENS)
    attended = block(first.attention.output, first.attention.self(x)[0], x)
    expected = block(first.output, first.intermediate(attended), attended)
    actual = model(TOKENS, output_hidden_states=True).hidden_states[1]
    torch.testing.assert_close(actual, expected)


def test_the_presets_start_as_stated() -> None:
    x = torch.randn(5, 32)
    lacl = Adapter(32, ADAPTERS["lacl"], torch.Generator().manual_seed(0))
    w1, w2 = lacl.down.weight, lacl.up.weight
    assert w1.shape == (2000, 32)
    assert lacl.up.bias.shape == (32,)
    assert w1.std().item() == pytest.approx(0.02, rel=0.02)
    assert not lacl.down.bias.any()
    assert not lacl.up.bias.any()
    nn.init.normal_(lacl.down.bias)
    nn.init.normal_(lacl.up.bias)
    torch.testing.assert_close(lacl(x), x + relu(relu(x @ w1.T + lacl.down.bias) @ w2.T + lacl.up.bias))
    assert (lacl(x) >= x).all()

    houlsby = Adapter(32, ADAPTERS["houlsby"], torch.Generator().manual_seed(0))
    assert houlsby.down.weight.shape == (64, 32)
    assert houlsby.up.weight.std().item() == pytest.approx(1e-3, rel=0.1)
    assert 0 < (houlsby(x) - x).abs().max() < 1e-3


def test_the_seed_alone_decides_the_weights() -> None:
    plain = tiny("bert")
    models = [copy.deepcopy(plain) for _ in range(3)]
    before = torch.get_rng_state()
    for model, seed in zip(models, (7, 7, 8), strict=True):
        adapt(model, ADAPTERS["houlsby"], seed=seed)
    assert torch.equal(torch.get_rng_state(), before)

    same, again, other = ([adapter.down.weight for adapter in adapters(model)] for model in models)
    assert all(torch.equal(a, b) for a, b in zip(same, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(same, other, strict=True))
    assert not torch.equal(same[0], same[1])


def test_adapters_take_the_dtype_of_the_encoder() -> None:
    model = tiny("bert").double()
    adapt(model, ADAPTERS["houlsby"], seed=0)
    assert run(model).dtype == torch.float64


def test_an_unsupported_type_is_named_and_left_alone() -> None:
    model = AutoModel.from_config(AutoConfig.for_model("gpt2", n_embd=32, n_layer=1, n_head=2, vocab_size=60))
    with pytest.raises(HoldfastError, match=r"^no adapters for the model type 'gpt2'; supported: bert, .*\Z"):
        adapt(model, ADAPTERS["houlsby"], seed=0)
    assert all(weight.requires_grad for weight in model.parameters())

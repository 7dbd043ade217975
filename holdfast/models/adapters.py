"""Bottleneck adapters, inserted into a frozen Hugging Face encoder without copying its code."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.utils import skip_init
from typing_extensions import override

from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class AdapterSpec:
    """The shape and initialisation of an adapter: weights are drawn from N(0, std²), biases are 0."""

    width: int
    activation: type[nn.Module]
    output: type[nn.Module]
    std: float


ADAPTERS = {
    # Houlsby et al. (2019): a narrow bottleneck that starts near the identity (they truncate the normal).
    "houlsby": AdapterSpec(width=64, activation=nn.GELU, output=nn.Identity, std=1e-3),
    # The paper's released code: wider than the encoder, and it adds only non-negative values.
    "lacl": AdapterSpec(width=2000, activation=nn.ReLU, output=nn.ReLU, std=0.02),
}


class Adapter(nn.Module):
    """Computes x + output(up(activation(down(x)))); the weights are drawn from `generator`."""

    def __init__(self, size: int, spec: AdapterSpec, generator: torch.Generator) -> None:
        super().__init__()
        self.acting = True
        # The initialisation of nn.Linear would draw from the global generator, and be overwritten.
        self.down: nn.Linear = skip_init(nn.Linear, size, spec.width)
        self.activation = spec.activation()
        self.up: nn.Linear = skip_init(nn.Linear, spec.width, size)
        self.output = spec.output()
        for linear in (self.down, self.up):
            nn.init.normal_(linear.weight, std=spec.std, generator=generator)
            nn.init.zeros_(linear.bias)

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Add the bottleneck's contribution to `x`, or return `x` if switched off."""
        if not self.acting:
            return x
        added: Tensor = self.output(self.up(self.activation(self.down(x))))
        return x + added


@dataclass(frozen=True)
class AttachPoints:
    """Module paths of a model family: its layers, and in each the adapter positions and trained LayerNorms.

    The adapters follow the last module before each of the two residual additions: a dropout if there is one.
    """

    layers: str
    after: tuple[str, str]
    norms: tuple[str, str]


BERT = AttachPoints(
    layers="encoder.layer",
    after=("attention.output.dropout", "output.dropout"),
    norms=("attention.output.LayerNorm", "output.LayerNorm"),
)

FAMILIES = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "electra": BERT,
    "deberta-v2": BERT,
    "mpnet": AttachPoints(
        layers="encoder.layer",
        after=("attention.dropout", "output.dropout"),
        norms=("attention.LayerNorm", "output.LayerNorm"),
    ),
    "distilbert": AttachPoints(
        layers="transformer.layer",
        after=("attention.out_lin", "ffn.dropout"),  # attention.dropout acts on the attention weights
        norms=("sa_layer_norm", "output_layer_norm"),
    ),
    "modernbert": AttachPoints(
        layers="layers",
        after=("attn.out_drop", "mlp.Wo"),  # mlp.drop comes before the output projection
        norms=("attn_norm", "mlp_norm"),  # pre-norm; the first layer's attn_norm is an identity
    ),
}


def layers_of(encoder: PreTrainedModel) -> list[nn.Module]:
    """Return the layers of an encoder of a known family, from the bottom up."""
    return list(encoder.get_submodule(FAMILIES[encoder.config.model_type].layers).children())


def adapt(encoder: PreTrainedModel, spec: AdapterSpec, *, seed: int, top: int | None = None) -> None:
    """Freeze `encoder`, then add two adapters to each layer; only they and the layers' LayerNorms can train.

    With `top`, only that many of the last layers are adapted.
    Adapter weights are drawn on the CPU in layer order from a separate generator: a seed gives the same
    weights on every device, and the global generator is unchanged.
    """
    kind = encoder.config.model_type
    if kind not in FAMILIES:
        raise HoldfastError(f"no adapters for the model type {kind!r}; supported: {', '.join(FAMILIES)}")
    family = FAMILIES[kind]
    generator = torch.Generator().manual_seed(seed)
    encoder.requires_grad_(False)
    layers = layers_of(encoder)
    if top is not None and top > len(layers):
        raise HoldfastError(f"adapt_layers is {top}, but the encoder has {len(layers)} layers; use fewer")
    for layer in layers[-top:] if top else layers:
        for path in family.after:
            adapter = Adapter(encoder.config.hidden_size, spec, generator).to(encoder.device, encoder.dtype)
            wrapped = OrderedDict(wrapped=layer.get_submodule(path), adapter=adapter)
            layer.set_submodule(path, nn.Sequential(wrapped))
        for path in family.norms:
            layer.get_submodule(path).requires_grad_(True)

"""Importance for LoRA: what is held are the adapters' own weights.

Penalising the product's effect, Σ a (s B A)², has no proximal step in closed form. It is not needed: B is 0
where training starts and the product is linear in it, so pulling B towards 0 is pulling the product there,
weight by weight and exactly. A has no effect as long as B is 0 and is left free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.importance.sequences import SequenceSums
from holdfast.lm.artefact import Importance
from holdfast.maths.params import Params, precise, trainable

LORA = "lora_B."


def on_adapters(model: nn.Module, importance: Importance) -> Params:
    """The importance for a model's trainable weights; for LoRA made from that of the matrices it adapts.

    An importance that was measured on the wrapped model itself is taken as it is.
    """
    if not _is_of_base(model, importance.values):
        # What is frozen is not held, but it must be what was measured all the same.
        importance.check({name: weight.detach() for name, weight in model.named_parameters()})
        return importance.values
    importance.check({name: weight.detach() for name, weight in _base_weights(model, importance).items()})
    found = carried(model, importance.values)
    if free := [name for name in trainable(model) if name not in found and "lora_A." not in name]:
        raise HoldfastError(
            f"{free[0]} would be trained without protection: no importance can be made for it"
        )
    return found


def carried(model: nn.Module, values: Params) -> Params:
    """What matters in the matrices under adapters, as what matters in the adapters; else as it is.

    |∂S/∂B_or| ≤ s Σ_i |∂S/∂W_oi| |A_ri|: the chain rule with every sign the worst.
    """
    if not _is_of_base(model, values):
        return values
    found: Params = {}
    for name in trainable(model):
        place, _, rest = name.partition(f".{LORA}")
        base = values.get(_plain(place) + ".weight") if rest else None
        if base is not None:
            module: Any = model.get_submodule(place)
            adapter = rest.partition(".")[0]
            down = precise(module.lora_A[adapter].weight.detach()).abs()
            matrix = precise(base).to(down.device)
            matrix = matrix.T if getattr(module, "fan_in_fan_out", False) else matrix  # GPT-2 keeps it so
            found[name] = float(module.scaling[adapter]) * matrix @ down.T
    return found


def matters_now(model: nn.Module, importance: Importance, data: Iterable[Mapping[str, Tensor]]) -> Params:
    """What matters for other data where the weights are now, of the same weights and in the same way.

    Under adapters that is of the matrices they adapt: only like can be compared with like.
    """
    with (
        _trained(_base_weights(model, importance)) if _is_of_base(model, importance.values) else nullcontext()
    ):
        sums = SequenceSums(model, importance.card.kind, squared=importance.card.squared)
        for sequence in data:
            sums.add(model, sequence)
    return {_plain(name).replace(".base_layer", ""): value for name, value in sums.mean().items()}


@contextmanager
def _trained(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Let gradients reach weights that are frozen."""
    frozen = [weight for weight in weights.values() if not weight.requires_grad]
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _is_of_base(model: nn.Module, values: Params) -> bool:
    """Whether a model trains adapters, and these values are of what is under them."""
    weights = trainable(model)
    return any(LORA in name for name in weights) and not any(name in values for name in weights)


def _base_weights(model: nn.Module, importance: Importance) -> dict[str, nn.Parameter]:
    """The weights under the adapters, by the names they had without them."""
    every = {_plain(name).replace(".base_layer", ""): weight for name, weight in model.named_parameters()}
    return {name: every[name] for name in importance.values if name in every}


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.")

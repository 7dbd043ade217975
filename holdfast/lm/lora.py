"""Importance for LoRA: what is held are the adapters' own weights.

Penalising the product's effect, Σ a (s B A)², has no proximal step in closed form. It is not needed: B is 0
where training starts and the product is linear in it, so pulling B towards 0 is pulling the product there,
weight by weight and exactly. A has no effect as long as B is 0 and is left free.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from holdfast.errors import HoldfastError
from holdfast.lm.artefact import Importance
from holdfast.params import Params, precise, trainable

LORA = "lora_B."


def on_adapters(model: nn.Module, importance: Importance) -> Params:
    """The importance for a model's trainable weights; for LoRA made from that of the matrices it adapts.

    |∂S/∂B_or| ≤ s Σ_i |∂S/∂W_oi| |A_ri|: the chain rule with every sign the worst. An importance that was
    measured on the wrapped model itself is taken as it is.
    """
    weights = trainable(model)
    adapters = [name for name in weights if LORA in name]
    if not adapters or any(name in importance.values for name in weights):
        # What is frozen is not held, but it must be what was measured all the same.
        importance.check({name: weight.detach() for name, weight in model.named_parameters()})
        return importance.values
    importance.check(_base_weights(model, importance))
    found: Params = {}
    for name in adapters:
        place, _, rest = name.partition(f".{LORA}")
        module: Any = model.get_submodule(place)
        adapter = rest.partition(".")[0]
        base = importance.values.get(_plain(place) + ".weight")
        if base is not None:
            down = precise(module.lora_A[adapter].weight.detach()).abs()
            matrix = precise(base).to(down.device)
            matrix = matrix.T if getattr(module, "fan_in_fan_out", False) else matrix  # GPT-2 keeps it so
            found[name] = float(module.scaling[adapter]) * matrix @ down.T
    if free := [name for name in weights if name not in found and "lora_A." not in name]:
        raise HoldfastError(
            f"{free[0]} would be trained without protection: no importance can be made for it"
        )
    return found


def _base_weights(model: nn.Module, importance: Importance) -> Params:
    """The weights under the adapters, by the names they had without them."""
    every = {
        _plain(name).replace(".base_layer", ""): weight.detach() for name, weight in model.named_parameters()
    }
    return {name: every[name] for name in importance.values if name in every}


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.")

"""Importance for LoRA adapters.

A penalty on the product, Σ a (s B A)², has no closed-form proximal step, but a penalty on B alone has. So an
importance of the base model protects only the B matrices. In a new adapter B is 0, and pulling B back to 0
pulls the product to 0.
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
    """Check that the importance fits the model; return its values, which may include frozen weights.

    For LoRA, derive those of the adapters' B from the importance of the adapted matrices, unless it was
    measured on the wrapped model itself.
    """
    if not _is_of_base(model, importance.values):
        # Frozen weights are not protected, but must match the fingerprint too.
        importance.check({name: weight.detach() for name, weight in model.named_parameters()})
        return importance.values
    importance.check({name: weight.detach() for name, weight in _base_weights(model, importance).items()})
    found = carried(model, importance.values)
    if free := [name for name in trainable(model) if name not in found and "lora_A." not in name]:
        raise HoldfastError(
            f"{free[0]} would be trained without protection: no importance can be derived for it; freeze it"
        )
    return found


def carried(model: nn.Module, values: Params) -> Params:
    """Derive the importance of the adapters' B from that of the adapted matrices; return others unchanged.

    For MAS this is an upper bound by the chain rule: |∂S/∂B_or| ≤ s Σ_i |∂S/∂W_oi| |A_ri|. For Fisher the
    same formula is only a heuristic.
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
            matrix = (
                matrix.T if getattr(module, "fan_in_fan_out", False) else matrix
            )  # GPT-2's Conv1D stores it transposed
            found[name] = float(module.scaling[adapter]) * matrix @ down.T
    return found


def matters_now(model: nn.Module, importance: Importance, data: Iterable[Mapping[str, Tensor]]) -> Params:
    """Measure the importance for other data at the current weights.

    With LoRA and an `importance` of the base model, include the frozen weights that it covers.
    """
    of_base = _is_of_base(model, importance.values)
    with _trained(_base_weights(model, importance)) if of_base else nullcontext():
        sums = SequenceSums(model, importance.card.kind, squared=importance.card.squared)
        for sequence in data:
            sums.add(model, sequence)
    found = sums.mean()
    return {_base_name(name): value for name, value in found.items()} if of_base else found


@contextmanager
def _trained(weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Enable gradients of frozen weights within the context."""
    frozen = [weight for weight in weights.values() if not weight.requires_grad]
    for weight in frozen:
        weight.requires_grad_(True)
    try:
        yield
    finally:
        for weight in frozen:
            weight.requires_grad_(False)


def _is_of_base(model: nn.Module, values: Params) -> bool:
    """Return whether the model trains LoRA adapters and no trained weight has a value of its own."""
    weights = trainable(model)
    return any(LORA in name for name in weights) and not any(name in values for name in weights)


def _base_weights(model: nn.Module, importance: Importance) -> dict[str, nn.Parameter]:
    """Return the weights of the base model that have an importance, by their names in the base model."""
    every = {_base_name(name): weight for name, weight in model.named_parameters()}
    return {name: every[name] for name in importance.values if name in every}


def _base_name(name: str) -> str:
    return _plain(name).replace(".base_layer", "")


def _plain(name: str) -> str:
    return name.removeprefix("base_model.model.")

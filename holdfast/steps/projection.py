"""Updates that keep old outputs: projectors onto the null space of old inputs, as AdaBOP uses them.

For y = W x an update ΔW with ΔW x = 0 for all old inputs x changes no old output. Each layer's update is
multiplied, on the input side, by a projector made of the old inputs' second moment. A bias is a weight of the
constant input 1, so [W b] is projected as one matrix (Cheng et al., TCSVT 2025, and its predecessors OWM and
Adam-NSCL).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast import distributed
from holdfast.data.batches import Batch, Examples
from holdfast.maths.losses import IGNORED
from holdfast.maths.params import Params, eval_mode, precise
from holdfast.models import Network

Selection = Literal["ratio", "fraction", "soft"]


def linear_layers(model: nn.Module) -> dict[str, nn.Linear]:
    """Return the trainable linear layers, by their name in the model."""
    return {
        place: layer
        for place, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and layer.weight.requires_grad
    }


def joined(params: Params, place: str) -> Tensor:
    """Return a layer's weight and bias as one matrix [W b], or only W if no bias is trained."""
    weight, bias = params[f"{place}.weight"], params.get(f"{place}.bias")
    return weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)


def second_moments(model: Network, data: Examples, *, batch_size: int = 32) -> tuple[Params, Params]:
    """Return the mean of x xᵀ over every layer's input tokens without padding, and the number of tokens."""
    layers = linear_layers(model)
    device = next(model.parameters()).device
    counts = {place: torch.zeros((), dtype=torch.float64, device=device) for place in layers}
    # Of full size from the start: a process without any sentence still takes part in the sum.
    widths = {place: layer.in_features + _trains(layer.bias) for place, layer in layers.items()}
    sums = {p: torch.zeros(w, w, dtype=torch.float64, device=device) for p, w in widths.items()}
    with torch.no_grad(), eval_mode(model), _inputs(layers) as given:
        for batch in data.batches(batch_size):
            if (batch.labels == IGNORED).all():
                continue
            batch = batch.without_loss().to(device)
            for group in map(batch.rows, batch.by_length()):
                given.clear()
                model(group)
                for place, x in given:
                    rows = _real(x, group, layers[place].bias)
                    sums[place] += rows.T @ rows
                    counts[place] += len(rows)
    counts = {place: distributed.total(count) for place, count in counts.items()}
    means = {place: distributed.total(total) / counts[place] for place, total in sums.items()}
    return {place: mean.float() for place, mean in means.items()}, counts


def _real(x: Tensor, batch: Batch, bias: nn.Parameter | None) -> Tensor:
    """Return a layer's inputs as rows in double precision, without padding, with a 1 for a trained bias."""
    mask = batch.attention_mask.bool()
    rows = x[mask] if x.shape[:2] == mask.shape and x.dim() == 3 else x.reshape(-1, x.shape[-1])
    rows = rows.double()
    return torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1) if _trains(bias) else rows


def _trains(bias: nn.Parameter | None) -> bool:
    return bias is not None and bias.requires_grad


@contextmanager
def _inputs(layers: dict[str, nn.Linear]) -> Iterator[list[tuple[str, Tensor]]]:
    """Record the inputs of every layer."""
    given: list[tuple[str, Tensor]] = []

    def watch(place: str) -> Callable[..., None]:
        return lambda module, inputs, output: given.append((place, inputs[0].detach()))

    handles = [layer.register_forward_hook(watch(place)) for place, layer in layers.items()]
    try:
        yield given
    finally:
        for handle in handles:
            handle.remove()


def projector(
    moment: Tensor, lam: float, *, selection: Selection = "ratio", tau: float = 10.0, fraction: float = 0.01
) -> Tensor:
    """Return the projector P, from the spectrum of λF + I.

    `ratio`: onto the eigenvectors with values of at most τ times the smallest. `fraction`: onto this share of
    them (at least one) with the smallest values, whatever λ. `soft`: (I + λF)^-1, which damps gradually.
    """
    values, vectors = torch.linalg.eigh(moment.double())
    spectrum = lam * values.clamp(min=0) + 1  # ascending
    kept = {
        "ratio": int((spectrum <= tau * spectrum[0]).sum()),
        "fraction": max(int(len(values) * fraction), 1),
        "soft": len(values),
    }[selection]
    basis = vectors[:, :kept]
    found: Tensor = basis @ (basis / spectrum if selection == "soft" else basis).T
    return found


def correlation(new: Tensor, old: Tensor, *, scale_free: bool = False) -> float:
    """Return R = ‖G Gᵀ_old‖ / ‖G‖: how much of a layer's new gradient lies along the previous task's.

    It is at most the spectral norm of the old gradient; `scale_free` divides by that, to a value in [0, 1].
    """
    new, old = new.double(), old.double()
    size, largest = torch.linalg.norm(new), torch.linalg.matrix_norm(old, 2) if old.numel() else 0.0
    scale = float(size * largest if scale_free else size)
    return float(torch.linalg.norm(new @ old.T)) / scale if scale > 0 else 0.0


def project_after_step(
    optimizer: Optimizer, params: dict[str, nn.Parameter], projectors: Params, free: dict[str, Sequence[int]]
) -> None:
    """Replace every step's update u of a layer by u P; weights outside of projected layers stay fixed.

    The update is projected after the optimiser's own scaling: projecting the gradient instead could
    change old outputs. `free` are rows of a layer that no old output depends on.
    """
    before: Params = {}
    own = {place: P.to(precise(next(iter(params.values())).detach())) for place, P in projectors.items()}

    @torch.no_grad()
    def leave(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        before.update({name: weight.detach().clone() for name, weight in params.items()})

    @torch.no_grad()
    def project(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        update = {name: precise(w.detach()) - precise(before[name]) for name, w in params.items()}
        allowed = {name: torch.zeros_like(value) for name, value in update.items()}
        for place, P in own.items():
            whole = joined(update, place)
            part = whole @ P
            part[list(free.get(place, ()))] = whole[list(free.get(place, ()))]
            width = update[f"{place}.weight"].shape[1]
            allowed[f"{place}.weight"] = part[:, :width]
            if part.shape[1] > width:
                allowed[f"{place}.bias"] = part[:, -1]
        for name, weight in params.items():
            weight.copy_(precise(before[name]) + allowed[name])

    optimizer.register_step_pre_hook(leave)
    optimizer.register_step_post_hook(project)

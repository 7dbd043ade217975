"""The penalty as a term of the loss, as the paper has it: through Adam's moments, clipped with the rest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.errors import HoldfastError


class LossForm:
    """Adds a penalty to what a model in training gives as its loss, once for every step of the optimiser."""

    def __init__(self, penalty: Callable[[], Tensor]) -> None:
        self.penalty = penalty
        self.together = 1
        """Processes whose losses `Trainer` adds up, where it divides them by the items of all."""
        self._begun = False
        """Whether the penalty is in this step's loss already."""
        self._probe: Tensor | None = None
        """A factor of the penalty that gets a gradient only if the penalty is part of what is trained on."""

    def attach(self, model: nn.Module, optimizer: Optimizer) -> list[Any]:
        """Hooks on both; what removes them."""
        self._begun, self._probe = False, None
        return [
            model.register_forward_hook(self._add, with_kwargs=True),
            optimizer.register_step_pre_hook(self._check),
        ]

    def _add(self, model: nn.Module, args: Any, kwargs: Mapping[str, Any], output: Any) -> Any:
        if not (model.training and torch.is_grad_enabled()):
            return output
        if getattr(output, "loss", None) is None:
            raise HoldfastError(
                "mode='loss' needs the model to compute its own loss from labels; here the trainer does: "
                "use the proximal form, or add Protect.penalty() to your loss"
            )
        # Losses that are divided by the items of a whole step are summed over its parts, others averaged.
        summed = kwargs.get("num_items_in_batch") is not None
        if not (summed and self._begun):
            self._begun = True
            self._probe = torch.ones_like(output.loss, requires_grad=True)
            output.loss = output.loss + self._probe * self.penalty() / (self.together if summed else 1)
        return output

    def _check(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Refuse to train on where a trainer makes its own loss of the model's output, and drops ours."""
        probe, self._probe, self._begun = self._probe, None, False
        if probe is None or probe.grad is None:
            raise HoldfastError(
                "this trainer does not use the model's own loss, so that mode='loss' would hold nothing: "
                "use the proximal form, or add Protect.penalty() to your loss"
            )

"""The paper's form of the penalty: a term of the loss, clipped and seen by the optimiser with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from holdfast.errors import HoldfastError


class LossForm:
    """Add a penalty to the loss that a model returns in training; it counts once per optimiser step."""

    def __init__(self, penalty: Callable[[], Tensor]) -> None:
        self.penalty = penalty
        self.together = 1
        """Factor by which `Trainer` multiplies a loss that is divided by the number of items of the step."""
        self._begun = False
        """Whether this step's loss already contains the penalty."""
        self._probe: Tensor | None = None
        """A factor of 1 on the penalty; it gets a gradient only if the trained loss contains the penalty."""

    def attach(self, model: nn.Module, optimizer: Optimizer) -> list[Any]:
        """Register hooks on the model and the optimiser; return their handles."""
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
                "mode='loss' needs a model that returns its loss, but this one returned none: "
                "use the proximal form, or add Protect.penalty() to your loss"
            )
        # Trainer sums the micro-batch losses if the model divides by the step's items; otherwise it averages.
        summed = kwargs.get("num_items_in_batch") is not None
        if not (summed and self._begun):
            self._begun = True
            self._probe = torch.ones_like(output.loss, requires_grad=True)
            output.loss = output.loss + self._probe * self.penalty() / (self.together if summed else 1)
        return output

    def _check(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Raise HoldfastError if the penalty was not part of the trained loss."""
        probe, self._probe, self._begun = self._probe, None, False
        if probe is None or probe.grad is None:
            raise HoldfastError(
                "this trainer does not use the model's own loss, so mode='loss' would have no effect: "
                "use the proximal form, or add Protect.penalty() to your loss"
            )

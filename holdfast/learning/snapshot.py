"""Snapshot: what a training run changes of a model and its method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from holdfast.maths import params as P
from holdfast.maths.params import Params
from holdfast.methods.base import Method
from holdfast.models import Network


@dataclass(frozen=True)
class Snapshot:
    """Weights, the method's state and the memory of a computed head at one moment."""

    weights: Params
    state: Mapping[str, Any]
    """State of the method: groups of tensors, and plain numbers."""
    memory: Params

    @classmethod
    def of(cls, model: Network, method: Method) -> Self:
        """Return a snapshot of the present."""
        return cls(P.snapshot(model), method.state_dict(), model.memory())

    @classmethod
    def joined(cls, tensors: Mapping[str, Params], numbers: Mapping[str, Any]) -> Self:
        """Return the snapshot that `parts` has split into these."""
        own = {name: group for name, group in tensors.items() if name not in ("weights", "memory")}
        return cls(tensors["weights"], own | dict(numbers), tensors.get("memory", {}))

    def parts(self) -> tuple[dict[str, Params], dict[str, Any]]:
        """Return groups of tensors, by name, and the plain numbers of the method's state."""
        tensors = {"weights": self.weights} | ({"memory": self.memory} if self.memory else {})
        tensors |= {name: value for name, value in self.state.items() if isinstance(value, dict)}
        return tensors, {name: value for name, value in self.state.items() if name not in tensors}

    def restore(self, model: Network, method: Method) -> None:
        """Make the model and the method what they were."""
        P.restore(model, self.weights)
        method.load_state_dict(self.state)
        model.load_memory(self.memory)

"""Methods whose head is computed, not trained: see `heads/` and docs/method.md."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from holdfast.data.tasks import Task
from holdfast.fields import setting
from holdfast.methods import knobs
from holdfast.methods.base import LearnerView, Method, Plan
from holdfast.methods.search import Decision
from holdfast.models import Adapters, Reading

COMPUTED = "its head is computed, not trained"


@dataclass
class ClosedForm(Method):
    """A frozen encoder under a head computed from sums, in one forward pass over each sentence.

    Cost: b, one forward pass over each sentence
    Two tasks: b1 + b2
    Extras: none
    """

    cannot: ClassVar[dict[str, str]] = {
        "domain-incremental": "the encoder stays frozen: where its features do not separate the labels, no "
        "amount of data helps; la+slda trains it"
    }
    reduces_to_seq: ClassVar[bool | str] = COMPUTED
    adapters: ClassVar[Adapters] = "never"

    lr: float = setting(0.0, "unused: nothing is trained", least=0)
    layers: int = knobs.layers()
    normalise: bool = knobs.normalise()

    @property
    @override
    def reading(self) -> Reading:
        return Reading(self.layers, self.normalise)

    @property
    @override
    def moves(self) -> bool:
        return self.lr > 0

    @override
    def plan(self, learner: LearnerView, task: Task) -> Plan:
        """Search nothing: the head chooses its own options."""
        return Decision((yield {"lr": 0.0}))

"""Multi-task learning: all tasks at once, the upper baseline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from holdfast.data.tasks import Split, Stream, Task
from holdfast.methods.base import Method


@dataclass
class MTL(Method):
    """Joint training on the data of all tasks: the yardstick of continual learning.

    Paper: the upper baseline of every continual-learning paper
    Cost: E·(b1 + b2 + …), once for all tasks
    Two tasks: E·(b1 + b2)
    Keeps: the data of all tasks
    """

    cannot: ClassVar[dict[str, str]] = dict.fromkeys(
        ("class-incremental", "domain-incremental"),
        "keeps and reads the data of all tasks: not continual learning",
    )

    @override
    def curriculum(self, stream: Stream) -> Stream:
        """Join all tasks; a class-incremental stream becomes "joint" and loses the balanced softmax."""
        joined = Task(
            "all",
            *(
                Split(
                    tuple(text for task in stream for text in getattr(task, part).texts),
                    tuple(label for task in stream for label in getattr(task, part).labels),
                )
                for part in ("train", "valid", "test")
            ),
        )
        scenario = "joint" if stream.scenario == "class-incremental" else stream.scenario
        return Stream(stream.name, (joined,), scenario)

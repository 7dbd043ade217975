"""The texts that wait for one thread: how many may, and for how long."""

from __future__ import annotations

import math
from collections.abc import Callable

from holdfast.serve.serving import ServiceLimits

WEIGHT = 0.9  # of what was measured before, at each batch
ENOUGH = 32  # texts after which the speed counts: the first batch of a process may be slow


class Full(Exception):
    """More texts are waiting than the service accepts, or than it can answer in time."""

    def __init__(self, seconds: float) -> None:
        super().__init__("too many texts are waiting; try again")
        self.retry = max(1, math.ceil(seconds))
        """Seconds after which to try again."""


class Line:
    """What waits for a thread that classifies; several queues may share it."""

    def __init__(self, limits: ServiceLimits, on_change: Callable[[int], None] = lambda texts: None) -> None:
        self.limits = limits
        self.on_change = on_change
        """Told how many texts have come, or how many have gone as a negative number."""
        self.size = 0
        """Texts that wait or are being classified."""
        self._measured = 0
        self._texts = self._seconds = 0.0

    def enter(self, texts: int) -> None:
        """Let texts wait; raise `Full` if too many do."""
        self.check(texts)
        self.size += texts
        self.on_change(texts)

    def leave(self, texts: int) -> None:
        """Take texts out: they are answered, or nobody waits for them."""
        self.size -= texts
        self.on_change(-texts)

    def check(self, texts: int) -> None:
        """Raise `Full` if so many texts may not wait.

        Those before them may take half of the time that a request has. So one request can always wait.
        """
        if self.size + texts > self.limits.queue or self.seconds(self.size) > self.limits.timeout / 2:
            raise Full(self.seconds(self.size))

    def note(self, texts: int, seconds: float) -> None:
        """Note how long a batch took."""
        self._measured += texts
        self._texts = WEIGHT * self._texts + texts
        self._seconds = WEIGHT * self._seconds + seconds

    def seconds(self, texts: int) -> float:
        """Return how long texts will take, by the latest batches; 0 as long as that is not known."""
        return texts * self._seconds / self._texts if self._measured >= ENOUGH else 0.0

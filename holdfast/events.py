"""Progress of long work. The base class ignores every event; the command line shows them."""

from __future__ import annotations


class Progress:
    """Listens to a learner at work."""

    def plan(self, tasks: int) -> None:
        """How many tasks there will be."""

    def task(self, number: int, name: str) -> None:
        """A task begins."""

    def trial(self, number: int, what: str) -> None:
        """A training begins."""

    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        """An epoch of it ended."""

    def looked(self, done: int, total: int) -> None:
        """So many of the sentences have been looked at (or predicted)."""

    def scored(self, score: float, reused: bool) -> None:
        """The training ended (or was found finished) with this validation score."""

    def tested(self, row: list[float | None]) -> None:
        """A task was learnt; the test scores of all so far. For logs: nothing may decide by them."""

    def note(self, text: str) -> None:
        """Something worth a line of its own."""

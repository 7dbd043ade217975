"""Progress of long work. The base class logs notes and ignores other events; the command line shows them."""

from __future__ import annotations

import logging

LOGGER = logging.getLogger("holdfast")


class Progress:
    """Listener for the events of a learner at work."""

    def plan(self, tasks: int) -> None:
        """Called with the number of tasks."""

    def task(self, number: int, name: str) -> None:
        """Called when a task begins."""

    def trial(self, number: int, what: str) -> None:
        """Called when a trial begins; its training may exist already."""

    def epoch(self, epoch: int, epochs: int, losses: dict[str, float]) -> None:
        """Called when an epoch of the training has ended."""

    def looked(self, done: int, total: int) -> None:
        """Called when `done` of `total` sentences, or steps of a study, are done."""

    def scored(self, score: float, reused: bool) -> None:
        """Called when a training has ended, or was found finished, with its validation score."""

    def tested(self, row: list[float | None]) -> None:
        """Called after a task with the test scores of all tasks so far; for logs, never for decisions."""

    def note(self, text: str) -> None:
        """Called with a message for the user; the base class logs it."""
        LOGGER.info(text)

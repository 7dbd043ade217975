"""Micro-batching: requests that arrive together are classified together, by one generation."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

from holdfast.runtime.answers import Answer, Asked
from holdfast.serve.line import Full, Line
from holdfast.serve.loaded import Loaded
from holdfast.serve.serving import ServiceLimits


class Ended(Exception):
    """The queue accepts nothing any more."""


@dataclass
class Answered:
    """The answers to one request, all by the same generation."""

    answers: list[Answer]
    generation: int


@dataclass
class _Waiting:
    texts: Sequence[str]
    asked: Asked
    answer: asyncio.Future[Answered]


class Batcher:
    """A queue of requests before one thread.

    A batch takes the loaded generation once, when it begins. A new one is put in its place between two
    batches, so no request is answered by two.
    """

    def __init__(
        self,
        current: Callable[[], Loaded],
        compute: Executor,
        limits: ServiceLimits,
        on_batch: Callable[[int], None] = lambda size: None,
        *,
        line: Line | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.current = current
        self.compute = compute
        self.limits = limits
        self.on_batch = on_batch
        self.line = line or Line(limits)
        """What waits for the same thread; the queues of several learners share it."""
        self.clock = clock
        self.size = 0
        """Number of texts that wait or are being classified here."""
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._expected = 1
        self._task: asyncio.Task[None] | None = None
        self._ended = False

    def start(self) -> None:
        """Begin to answer."""
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Answer what is waiting, then end."""
        self._ended = True
        while self.size and self._task is not None and not self._task.done():
            await asyncio.sleep(0.01)
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def ask(self, texts: Sequence[str], asked: Asked) -> Answered:
        """Return the answers to texts; raise `Full` if too many are waiting, `Ended` after `stop`."""
        if self._ended:
            raise Ended
        self.line.enter(len(texts))
        one = _Waiting(texts, asked, asyncio.get_running_loop().create_future())
        self.size += len(texts)
        self._waiting.append(one)
        self._arrived.set()
        try:
            return await one.answer
        finally:
            self.size -= len(texts)
            self.line.leave(len(texts))

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._batch()
            if not batch:
                continue
            loaded = self.current()
            texts = sum(len(one.texts) for one in batch)
            self.on_batch(texts)
            outcomes, seconds = await loop.run_in_executor(self.compute, self._timed, loaded, batch)
            self.line.note(texts, seconds)
            for one, outcome in zip(batch, outcomes, strict=True):
                if one.answer.done():
                    continue  # its client has gone, or its time is over
                if isinstance(outcome, Exception):
                    one.answer.set_exception(outcome)
                else:
                    one.answer.set_result(Answered(outcome, loaded.generation))
            self._shed(texts)

    def _timed(
        self, loaded: Loaded, batch: Sequence[_Waiting]
    ) -> tuple[list[list[Answer] | Exception], float]:
        """Return the answers and how long they took; the wait for the thread does not count."""
        began = self.clock()
        return _answered(loaded, batch), self.clock() - began

    def _shed(self, answered: int) -> None:
        """Refuse those who came last and cannot be answered in time.

        They were let in before the speed was known: the process has just started, or texts have become
        longer.
        """
        ahead = self.line.size - answered
        while self._waiting:
            ahead -= len(self._waiting[-1].texts)
            if self.line.seconds(ahead) <= self.limits.timeout / 2:
                return
            last = self._waiting.pop()
            if not last.answer.done():
                last.answer.set_exception(Full(self.line.seconds(ahead)))

    async def _batch(self) -> list[_Waiting]:
        """Return the requests of the next batch.

        After a batch of several requests, wait a few milliseconds for as many again: their clients have just
        been answered. A request that is alone does not wait.
        """
        end = None
        while not self._waiting or (
            len(self._waiting) < self._expected
            and sum(len(o.texts) for o in self._waiting) < self.limits.batch
        ):
            now = asyncio.get_running_loop().time()
            if self._waiting and end is None:
                end = now + self.limits.wait
            if end is not None and now >= end:
                break
            self._arrived.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._arrived.wait(), None if end is None else end - now)
        batch: list[_Waiting] = []
        texts = 0
        while self._waiting and (not batch or texts + len(self._waiting[0].texts) <= self.limits.batch):
            one = self._waiting.popleft()
            if not one.answer.done():
                batch.append(one)
                texts += len(one.texts)
        self._expected = max(len(batch), 1)
        return batch


def _answered(loaded: Loaded, batch: Sequence[_Waiting]) -> list[list[Answer] | Exception]:
    """Classify the texts of a batch; requests that ask for the same are classified together."""
    found: list[list[Answer] | Exception] = [[] for _ in batch]
    alike: defaultdict[Asked, list[int]] = defaultdict(list)
    for place, one in enumerate(batch):
        alike[one.asked].append(place)
    for asked, places in alike.items():
        texts = list(itertools.chain.from_iterable(batch[place].texts for place in places))
        try:
            answers = iter(loaded.answers(texts, asked))
            for place in places:
                found[place] = list(itertools.islice(answers, len(batch[place].texts)))
        except Exception as error:  # any error is an answer to its own requests, never the end of the queue
            for place in places:
                found[place] = error
    return found

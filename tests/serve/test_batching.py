"""The queue before the thread that classifies: what is batched, what is refused, what an error does."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.answers import PLAIN, Answer, Asked
from holdfast.serve.application import _error
from holdfast.serve.batching import Batcher
from holdfast.serve.line import Full, Line
from holdfast.serve.loaded import Loaded
from holdfast.serve.serving import ServiceLimits


class Bench:
    """A batcher over a function that notes its calls."""

    def __init__(self, *, seconds: float = 0.0, **limits: Any) -> None:
        self.calls: list[tuple[int, list[str]]] = []
        self.seconds = seconds
        self.generation = 1
        self.batcher = Batcher(self.loaded, ThreadPoolExecutor(1), ServiceLimits(**limits))

    def loaded(self) -> Loaded:
        number = self.generation

        def answers(texts: Sequence[str], asked: Asked) -> list[Answer]:
            self.calls.append((number, list(texts)))
            time.sleep(self.seconds)
            if asked.top == 9:
                raise HoldfastError("nine is too many")
            if asked.top == 8:
                raise ZeroDivisionError
            return [Answer(text, f"{text}@{number}", 1.0, []) for text in texts]

        return Loaded(number, ["a"], None, answers)

    async def ask(self, *texts: str, asked: Asked = PLAIN) -> list[str | None]:
        found = await self.batcher.ask(texts, asked)
        assert {answer.label for answer in found.answers} == {f"{t}@{found.generation}" for t in texts}
        return [answer.label for answer in found.answers]


def test_requests_that_wait_together_are_classified_together_in_their_order() -> None:
    async def main() -> list[tuple[int, list[str]]]:
        bench = Bench(seconds=0.02)
        bench.batcher.start()
        await asyncio.gather(*(bench.ask(f"a{i}", f"b{i}") for i in range(5)))
        await bench.batcher.stop()
        return bench.calls

    calls = asyncio.run(main())
    assert [text for _, texts in calls for text in texts] == [f"{c}{i}" for i in range(5) for c in "ab"]
    assert len(calls) <= 2


def test_a_batch_is_no_larger_than_its_limit_and_a_request_is_never_cut() -> None:
    async def main() -> list[int]:
        bench = Bench(batch=4)
        bench.batcher.start()
        await asyncio.gather(
            *(bench.ask(*(f"{i}.{j}" for j in range(n))) for i, n in enumerate([3, 2, 2, 9, 1]))
        )
        await bench.batcher.stop()
        return [len(texts) for _, texts in bench.calls]

    assert asyncio.run(main()) == [3, 4, 9, 1]


def test_what_is_asked_differently_is_classified_apart() -> None:
    async def main() -> list[tuple[int, list[str]]]:
        bench = Bench()
        bench.batcher.start()
        await asyncio.gather(*(bench.ask(f"{i}", asked=Asked(top=1 + i % 2)) for i in range(4)))
        await bench.batcher.stop()
        return bench.calls

    assert [texts for _, texts in asyncio.run(main())] == [["0", "2"], ["1", "3"]]


def test_a_swap_waits_for_the_batch_that_runs() -> None:
    async def main() -> tuple[list[Any], list[tuple[int, list[str]]]]:
        bench = Bench(seconds=0.05)
        bench.batcher.start()
        first = asyncio.create_task(bench.ask("a", "b"))
        await asyncio.sleep(0.02)
        bench.generation = 2
        found = [await bench.ask("c"), await first]
        await bench.batcher.stop()
        return found, bench.calls

    found, calls = asyncio.run(main())
    assert found == [["c@2"], ["a@1", "b@1"]]
    assert [number for number, _ in calls] == [1, 2]


def test_too_many_texts_are_refused_at_once_and_room_comes_back() -> None:
    async def main() -> None:
        bench = Bench(seconds=0.05, queue=3)
        bench.batcher.start()
        first = asyncio.create_task(bench.ask("a", "b"))
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await bench.ask("c", "d")
        assert await bench.ask("c") == ["c@1"]
        await first
        assert bench.batcher.size == 0
        await bench.batcher.stop()

    asyncio.run(main())


def test_an_error_belongs_to_those_who_asked_for_it() -> None:
    async def main() -> None:
        bench = Bench()
        bench.batcher.start()
        found = await asyncio.gather(
            bench.ask("a"),
            bench.ask("b", asked=Asked(top=9)),
            bench.ask("c", asked=Asked(top=8)),
            return_exceptions=True,
        )
        assert found[0] == ["a@1"]
        assert [type(one) for one in found[1:]] == [HoldfastError, ZeroDivisionError]
        assert await bench.ask("d") == ["d@1"]
        await bench.batcher.stop()

    asyncio.run(main())


def test_a_client_that_has_gone_is_not_worked_for() -> None:
    async def main() -> list[tuple[int, list[str]]]:
        bench = Bench(seconds=0.03)
        bench.batcher.start()
        first = asyncio.create_task(bench.ask("a"))
        await asyncio.sleep(0.01)
        gone = asyncio.create_task(bench.ask("b"))
        await asyncio.sleep(0.005)
        gone.cancel()
        await first
        await bench.ask("c")
        await bench.batcher.stop()
        assert bench.batcher.size == 0
        return bench.calls

    assert [texts for _, texts in asyncio.run(main())] == [["a"], ["c"]]


def test_a_lone_request_does_not_wait_for_others() -> None:
    async def main() -> float:
        bench = Bench(wait=5.0)
        bench.batcher.start()
        began = time.monotonic()
        for text in "abc":
            await bench.ask(text)
        await bench.batcher.stop()
        return time.monotonic() - began

    assert asyncio.run(main()) < 2


class Clocked:
    """A batcher over a model that needs a second for each text, on a clock of its own, when it is let go."""

    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.go = threading.Event()
        limits_ = ServiceLimits(timeout=80, batch=40, **limits)
        self.batcher = Batcher(self.loaded, ThreadPoolExecutor(1), limits_, clock=lambda: self.now)

    def loaded(self) -> Loaded:
        def answers(texts: Sequence[str], asked: Asked) -> list[Answer]:
            assert self.go.wait(60)
            self.now += len(texts)
            return [Answer(text, "a", 1.0, []) for text in texts]

        return Loaded(1, ["a"], None, answers)

    def ask(self, size: int) -> asyncio.Task[Any]:
        return asyncio.create_task(self.batcher.ask(["text"] * size, PLAIN))


def test_a_queue_that_cannot_be_answered_in_time_is_full_and_says_when_to_come_back() -> None:
    async def main() -> None:
        slow = Clocked()
        slow.batcher.start()
        slow.go.set()
        await slow.ask(40)  # now the speed is known
        slow.go.clear()
        waiting = [slow.ask(40), slow.ask(1)]  # 0 and 40 seconds of work are before them
        await asyncio.sleep(0)
        with pytest.raises(Full) as refused:
            await slow.ask(1)
        assert refused.value.retry == 41
        slow.go.set()
        await asyncio.gather(*waiting)
        await slow.ask(256)  # one request can always wait, however long it takes
        await slow.batcher.stop()

    asyncio.run(main())


def test_those_who_came_last_are_refused_as_soon_as_the_speed_is_known() -> None:
    async def main() -> list[Any]:
        slow = Clocked()
        slow.batcher.start()
        waiting = [slow.ask(40) for _ in range(5)]
        await asyncio.sleep(0)
        slow.go.set()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert slow.batcher.size == slow.batcher.line.size == 0
        await slow.batcher.stop()
        return [type(one).__name__ for one in found]

    assert asyncio.run(main()) == ["Answered"] * 3 + ["Full"] * 2


def test_the_speed_counts_when_enough_texts_were_measured_and_follows_the_latest() -> None:
    line = Line(ServiceLimits())
    line.note(1, 5.0)  # the first batch of a process
    assert line.seconds(1000) == 0
    for _ in range(50):
        line.note(100, 1.0)
    assert line.seconds(1000) == pytest.approx(10, abs=0.1)
    for _ in range(50):
        line.note(10, 1.0)
    assert line.seconds(1000) == pytest.approx(100, abs=10)


def test_the_answer_of_a_full_queue_has_the_seconds_to_wait() -> None:
    reply = asyncio.run(_error(None, Full(12.3)))  # type: ignore[arg-type]
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "13")


def test_queues_of_one_thread_share_their_room() -> None:
    async def main() -> None:
        line, compute = Line(ServiceLimits(queue=3)), ThreadPoolExecutor(1)
        slow = Clocked()
        one, other = (Batcher(slow.loaded, compute, ServiceLimits(), line=line) for _ in range(2))
        one.start()
        other.start()
        first = asyncio.create_task(one.ask(["a", "b"], PLAIN))
        await asyncio.sleep(0)
        with pytest.raises(Full):
            await other.ask(["c", "d"], PLAIN)
        slow.go.set()
        await first
        await one.stop()
        await other.stop()

    asyncio.run(main())

"""Learners in memory: loading that fails for a while, eviction, invented names, a lost pointer."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from holdfast.runtime.answers import PLAIN
from holdfast.serve import states as states_module
from holdfast.serve.batching import Batcher, Ended
from holdfast.serve.loaded import load
from holdfast.serve.server import is_many, serve
from holdfast.serve.serving import ServiceLimits, Serving
from holdfast.serve.states import Happened, NoSuch, Served, States, Unloadable
from holdfast.storage.generations import Store


def states_of(path: Path, *, many: bool = False, model: str | None = None, **limits: Any) -> States:
    serving = Serving(str(path), "token", "unused", many=many, model=model, limits=ServiceLimits(**limits))
    return States(serving, Happened())


def test_a_generation_that_cannot_be_loaded_for_a_while_is_tried_again(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    def flaky(path: Path, model: str | None = None, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries in (2, 3):
            raise HoldfastError("no memory")
        return load(path, model, **more)

    async def main() -> None:
        states = states_of(mine, poll=0.01)
        await states.start()
        (one,) = states.loaded
        Store(mine).rollback(1)
        end = time.monotonic() + 10
        while one.loaded.generation != 1 and time.monotonic() < end:
            await asyncio.sleep(0.01)
        assert (one.loaded.generation, one.wrong, tries) == (1, "", 4)
        await states.stop()

    monkeypatch.setattr(states_module, "load", flaky)
    monkeypatch.setattr(states_module, "PAUSES", (0.05, 0.1), raising=False)
    asyncio.run(main())


def test_pauses_between_tries_double_and_begin_anew_with_another_generation(
    made: Path,
) -> None:
    one = Served(made, load(made), None)
    pauses = []
    for mark in [(1, 1, 1)] * 8 + [(2, 2, 2)]:
        one.note_failure(mark, "broken")
        pauses.append(one.pause)
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 1]
    one.again = time.monotonic() + 60
    assert one.is_due()  # the mark on disk is another one


def test_a_learner_that_is_evicted_while_it_is_asked_is_loaded_again(
    mine: Path, one_layer: str, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    for name in ("one", "two"):
        shutil.copytree(mine, folder / name)

    async def main() -> None:
        states = states_of(folder, many=True, model=one_layer, loaded=1)
        for name in ("one", "two") * 3:
            first, second = await asyncio.wait_for(
                asyncio.gather(states.ask("one", ["music0"], PLAIN), states.ask(name, ["music0"], PLAIN)), 20
            )
            assert first.generation == second.generation == 2
        old = await states.one("one")
        await old.batcher.stop()
        with pytest.raises(Unloadable, match="stopping"):
            await asyncio.wait_for(states.ask("one", ["music0"], PLAIN), 5)
        await states.stop()

    asyncio.run(main())


def test_a_request_between_the_lookup_and_the_queue_is_answered_after_an_eviction(
    mine: Path, one_layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "many"
    for name in ("one", "two"):
        shutil.copytree(mine, folder / name)

    async def main() -> None:
        states = states_of(folder, many=True, model=one_layer, loaded=1)
        found = states.one
        evicted = False

        async def slow(name: str) -> Served:
            nonlocal evicted
            one = await found(name)
            if name == "one" and not evicted:
                evicted = True
                await found("two")
                await asyncio.sleep(0.05)
            return one

        monkeypatch.setattr(states, "one", slow)
        answered = await asyncio.wait_for(states.ask("one", ["music0"], PLAIN), 10)
        assert evicted
        assert answered.generation == 2
        await states.stop()

    asyncio.run(main())


def test_a_queue_that_has_ended_accepts_nothing(made: Path) -> None:
    async def main() -> None:
        states = states_of(made)
        batcher = Batcher(lambda: load(made), states.compute, ServiceLimits())
        batcher.start()
        await batcher.stop()
        with pytest.raises(Ended):
            await asyncio.wait_for(batcher.ask(["a"], PLAIN), 2)

    asyncio.run(main())


def test_invented_names_leave_nothing_behind(tmp_path: Path) -> None:
    async def main() -> None:
        states = states_of(tmp_path, many=True)
        for number in range(20):
            with pytest.raises(NoSuch):
                await states.one(f"invented{number}")
        assert not states._locks

    asyncio.run(main())


def test_a_learner_that_lost_its_pointer_is_no_folder_of_learners(mine: Path) -> None:
    (mine / "CURRENT").unlink()
    assert not is_many(mine)
    with pytest.raises(HoldfastError, match=r"lost its file CURRENT; .* holdfast rollback .* 2"):
        serve(mine, port=0)


def test_a_generation_is_not_the_name_of_a_learner(mine: Path) -> None:
    states = states_of(mine, many=True)
    assert states.names() == []
    with pytest.raises(NoSuch):
        states.path("generation-000001")

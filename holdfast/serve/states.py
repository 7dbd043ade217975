"""The learners that a service answers for: loaded when asked, watched for new generations, evicted by use."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from holdfast.errors import HoldfastError
from holdfast.runtime.answers import Asked
from holdfast.runtime.artefact import is_artefact
from holdfast.serve.batching import Answered, Batcher, Ended
from holdfast.serve.line import Line
from holdfast.serve.loaded import Loaded, Stamp, import_torch, load, stamp
from holdfast.serve.serving import Serving
from holdfast.storage.generations import NAMED, Store

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
PAUSES = 1.0, 60.0  # seconds before a generation that could not be loaded is tried again: at first, at most
Ready = dict[str, tuple[Stamp, Loaded]]
log = logging.getLogger("holdfast.serve")


class NoSuch(HoldfastError):
    """There is no learner of this name."""


class Unloadable(HoldfastError):
    """A learner exists but cannot be loaded."""


@dataclass
class Happened:
    """What the learners report to the meters; every entry is called with numbers or outcomes only."""

    batch: Callable[[int], None] = lambda size: None
    load: Callable[[str, float], None] = lambda outcome, seconds: None
    evict: Callable[[], None] = lambda: None
    wait: Callable[[int], None] = lambda texts: None
    hold: Callable[[Sequence[int]], None] = lambda generations: None
    """Told the generations in memory, one for each learner, whenever they change."""


@dataclass
class Served:
    """One learner: its loaded generation and the queue before it."""

    path: Path
    loaded: Loaded
    stamp: Stamp
    batcher: Batcher = field(init=False)
    used: float = 0.0
    wrong: str = ""
    """Why the newest generation cannot be loaded; the one before goes on answering."""
    failed: Stamp = None
    """The stamp that could not be loaded last."""
    pause: float = 0.0
    again: float = 0.0
    """When to try it again."""
    refreshing: asyncio.Lock = field(default_factory=asyncio.Lock)

    def is_due(self) -> bool:
        """Return whether there is something to load: it changed, or failed long enough ago."""
        mark = stamp(self.path)
        if mark == self.stamp:
            self.wrong = ""
            return False
        return mark != self.failed or time.monotonic() >= self.again

    def note_failure(self, mark: Stamp, wrong: str) -> None:
        """Remember what is wrong, and when to try again."""
        first, most = PAUSES
        self.pause = min(2 * self.pause, most) if self.pause and mark == self.failed else first
        self.wrong, self.failed, self.again = wrong, mark, time.monotonic() + self.pause


class States:
    """Learners by name; the only one of a service without names is called by the empty name."""

    def __init__(self, serving: Serving, happened: Happened, ready: Ready | None = None) -> None:
        self.serving = serving
        self.happened = happened
        self.compute = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self.line = Line(serving.limits, happened.wait)
        self._ready = {} if ready is None else ready
        """Learners that are loaded already; each is taken out when it is first asked for."""
        self._served: dict[str, Served] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # as long as one waits
        self._ending: set[asyncio.Task[None]] = set()
        self._watching: asyncio.Task[None] | None = None

    @property
    def loaded(self) -> list[Served]:
        """Learners in memory."""
        return list(self._served.values())

    def path(self, name: str) -> Path:
        """Return the directory of a learner."""
        root = Path(self.serving.path)
        if not self.serving.many:
            if name:
                raise NoSuch("this service has one learner; leave out ?state=")
            return root
        if not _is_name(name):
            raise NoSuch("name the learner with ?state=NAME: letters, digits, '.', '_' and '-'")
        return root / name

    def names(self) -> list[str]:
        """Return the names of all learners of a folder."""
        root = Path(self.serving.path)
        if not self.serving.many or not root.is_dir():
            return []
        return sorted(p.name for p in root.iterdir() if _is_name(p.name) and stamp(p) is not None)

    async def start(self) -> None:
        """Load the only learner, and begin to watch."""
        if not self.serving.many:
            await self.one("")
        elif not all(is_artefact(self.path(name)) for name in self.names()):
            await asyncio.to_thread(import_torch)  # so that no request waits for it
        self._watching = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Answer what is waiting, then end."""
        if self._watching is not None:
            self._watching.cancel()
            with suppress(asyncio.CancelledError):
                await self._watching
        await asyncio.gather(*(one.batcher.stop() for one in self.loaded), *self._ending)
        self.compute.shutdown()

    async def ask(self, name: str, texts: Sequence[str], asked: Asked) -> Answered:
        """Return the answers to texts."""
        self.line.check(len(texts))  # before a learner is loaded for them
        while True:
            one = await self.one(name)
            try:
                return await one.batcher.ask(texts, asked)
            except Ended:  # evicted; it is loaded again, unless the service stops
                if self._served.get(name) is one:
                    raise Unloadable("the service is stopping") from None

    async def one(self, name: str) -> Served:
        """Return a learner, loaded if it is not yet; one that was not used for longest may be evicted."""
        path = self.path(name)
        found = self._served.get(name)
        if found is None:
            async with self._locks.setdefault(name, asyncio.Lock()):
                found = self._served.get(name) or await self._loaded(name, path)
        found.used = time.monotonic()
        return found

    def _load(self, path: Path) -> Loaded:
        return load(path, self.serving.model, threads=self.serving.threads)

    async def _loaded(self, name: str, path: Path) -> Served:
        began = time.monotonic()
        ready = self._ready.pop(name, None)
        mark = stamp(path) if ready is None else ready[0]
        if self.serving.many and mark is None:
            raise NoSuch(f"there is no learner called {name!r}")
        try:
            loaded = await asyncio.to_thread(self._load, path) if ready is None else ready[1]
        except HoldfastError as error:  # it names paths, which are not for everybody
            self.happened.load("failed", time.monotonic() - began)
            log.error("%s cannot be loaded: %s", name or path.name, error)
            raise Unloadable("the learner cannot be loaded; the service's log says why") from error
        self.happened.load("loaded", time.monotonic() - began)
        served = Served(path, loaded, mark)
        served.batcher = Batcher(
            lambda: served.loaded, self.compute, self.serving.limits, self.happened.batch, line=self.line
        )
        served.batcher.start()
        served.used = time.monotonic()
        self._served[name] = served
        self._evict()
        self._tell()
        return served

    def _evict(self) -> None:
        while len(self._served) > self.serving.limits.loaded:
            idle = {name: one for name, one in self._served.items() if not one.batcher.size}
            if len(idle) < 2:
                return  # never the one that was just loaded
            name = min(idle, key=lambda one: idle[one].used)
            self.happened.evict()
            ending = asyncio.create_task(self._served.pop(name).batcher.stop())
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    def _tell(self) -> None:
        self.happened.hold([one.loaded.generation for one in self.loaded])

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.serving.limits.poll)
            if self.serving.supervisor not in (None, os.getppid()):
                log.error("the supervisor is gone; this worker ends too")
                signal.raise_signal(signal.SIGTERM)
                return
            for one in self.loaded:
                if one.is_due():
                    await self.refresh(one)

    async def refresh(self, one: Served) -> None:
        """Load the current generation beside the one that answers, then put it in its place."""
        async with one.refreshing:
            mark, began = stamp(one.path), time.monotonic()
            if mark == one.stamp:
                return
            try:
                if mark is None and (self.serving.read_only or Store(one.path).on_disk()):
                    raise HoldfastError(f"{one.path} has lost its current generation")
                one.loaded = await asyncio.to_thread(self._load, one.path)
                one.wrong, one.stamp, one.pause = "", mark, 0.0
                self.happened.load("swapped", time.monotonic() - began)
                self._tell()
                log.info("generation %d answers", one.loaded.generation)
            except Exception as error:
                wrong = str(error) if isinstance(error, HoldfastError) else type(error).__name__
                one.note_failure(mark, wrong)
                self.happened.load("failed", time.monotonic() - began)
                log.error("the new generation cannot be loaded: %s", one.wrong)


def _is_name(name: str) -> bool:
    """Return whether a learner may be called so; a generation of a learner is not one."""
    return bool(NAME.fullmatch(name)) and not NAMED.fullmatch(name)

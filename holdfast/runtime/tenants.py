"""Many artefacts in one process: loaded by name, evicted by use, with their encoders shared."""

from __future__ import annotations

import os
import re
import threading
from collections import OrderedDict
from pathlib import Path
from typing import NamedTuple

from holdfast.data.tasks import printable
from holdfast.errors import HoldfastError
from holdfast.runtime.artefact import MANIFEST, is_artefact
from holdfast.runtime.classifier import Classifier

TENANT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Tenant(NamedTuple):
    """A classifier, and what the manifest was when it was loaded."""

    classifier: Classifier
    stamp: tuple[int, int, int]


class Tenants:
    """The artefacts in the folders of a directory, by the folders' names.

    Those used last stay in memory: at most `most` of them, whose own files (without the encoders they share)
    have at most `most_bytes` together. An artefact that was exported again is loaded again.

    >>> from holdfast import Learner
    >>> from holdfast.everyday.export import export
    >>> from holdfast.runtime import Tenants
    >>> learner = Learner.create("encoder")
    >>> _ = learner.learn(["wake me at six", "play jazz"], ["alarm", "music"])
    >>> _ = learner.save("intents")
    >>> _ = export("intents", "tenants/home", onnx=True, share=True)
    >>> tenants = Tenants("tenants")
    >>> tenants.names
    ['home']
    >>> tenants.get("home").predict(["play some jazz"])
    ['music']
    """

    def __init__(
        self,
        root: str | Path,
        *,
        most: int = 256,
        most_bytes: int = 1_000_000_000,
        threads: int | None = None,
    ) -> None:
        self.root = Path(root)
        self.most, self.most_bytes, self.threads = max(most, 1), most_bytes, threads
        self._loaded: OrderedDict[str, Tenant] = OrderedDict()
        self._loading: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    @property
    def names(self) -> list[str]:
        """The names of all artefacts in the directory, sorted."""
        if not self.root.is_dir():
            raise HoldfastError(f"{self.root} is no directory; check the path")
        return sorted(
            path.name for path in self.root.iterdir() if TENANT.fullmatch(path.name) and is_artefact(path)
        )

    @property
    def loaded(self) -> list[str]:
        """The names of those in memory, the one used last at the end."""
        with self._guard:
            return list(self._loaded)

    def get(self, name: str) -> Classifier:
        """Return the classifier of a tenant, loaded if it is not in memory.

        A classifier that is evicted keeps answering those who hold it.
        """
        path = self.root / name
        if not TENANT.fullmatch(name) or not is_artefact(path):
            raise HoldfastError(f"there is no artefact {printable(name)[:200]!r} in {self.root}")
        with self._guard:
            if found := self._fresh(name, path):
                return found
            lock = self._loading.setdefault(name, threading.Lock())
        try:
            with lock:
                with self._guard:
                    if found := self._fresh(name, path):  # loaded while we waited
                        return found
                stamp = _stamp(path)
                classifier = Classifier(path, threads=self.threads)
                with self._guard:
                    self._loaded[name] = Tenant(classifier, stamp)
                    self._loaded.move_to_end(name)
                    self._evict()
                return classifier
        finally:
            with self._guard:
                self._loading.pop(name, None)

    def _fresh(self, name: str, path: Path) -> Classifier | None:
        """Return the loaded classifier if its artefact is still the one that was loaded."""
        own = self._loaded.get(name)
        if own is None or own.stamp != _stamp(path):
            return None
        self._loaded.move_to_end(name)
        return own.classifier

    def _evict(self) -> None:
        """Drop those that were not used for longest."""
        total = sum(own.classifier.own_bytes for own in self._loaded.values())
        while len(self._loaded) > 1 and (len(self._loaded) > self.most or total > self.most_bytes):
            _, gone = self._loaded.popitem(last=False)
            total -= gone.classifier.own_bytes


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path / MANIFEST)
    except OSError as error:
        raise HoldfastError(f"{path} cannot be read: {error.strerror}") from error
    return found.st_ino, found.st_mtime_ns, found.st_size

"""Graphs and tokenizers that the classifiers of one process share, found by the hash of their files."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from holdfast.errors import HoldfastError, require
from holdfast.runtime.decisions import Numbers

Thing = TypeVar("Thing")
WORD = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./"


class InUse(Generic[Thing]):
    """A thing that several classifiers use. It goes with the last of them."""

    def __init__(self, thing: Thing) -> None:
        self.thing = thing


class Shelf(Generic[Thing]):
    """Things by their key, each made once as long as somebody holds it."""

    def __init__(self) -> None:
        self._held: weakref.WeakValueDictionary[Any, InUse[Thing]] = weakref.WeakValueDictionary()
        self._making: dict[Any, threading.Lock] = {}
        self._guard = threading.Lock()

    def get(self, key: Any, make: Callable[[], Thing]) -> InUse[Thing]:
        """Return the thing with this key; others wait while it is made, but not for other things."""
        with self._guard:
            lock = self._making.setdefault(key, threading.Lock())
        try:
            with lock:
                held = self._held.get(key)
                if held is None:
                    held = InUse(make())
                    self._held[key] = held
                return held
        finally:
            with self._guard:
                self._making.pop(key, None)

    def __len__(self) -> int:
        return len(self._held)


class Graph:
    """An ONNX graph, ready to run."""

    def __init__(self, data: bytes, threads: int, *, arena: bool) -> None:
        runtime = require("onnxruntime", "onnx")
        if _refers_to_files(data):
            raise HoldfastError("a graph takes its weights from another file; export the artefact again")
        options = runtime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
        options.enable_mem_pattern = False  # shapes change from batch to batch
        options.enable_cpu_mem_arena = arena
        options.log_severity_level = 4  # errors are raised
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self.session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of its C++ code, without a common base class
            raise HoldfastError(f"a graph cannot be loaded: {_line(error)}") from error
        self.inputs = [one.name for one in self.session.get_inputs()]
        self.outputs = [one.name for one in self.session.get_outputs()]

    def run(self, values: Mapping[str, Numbers]) -> dict[str, Numbers]:
        """Return the outputs for those of the values that are inputs."""
        try:
            found = self.session.run(None, {name: values[name] for name in self.inputs})
        except KeyError as error:
            raise HoldfastError(f"a graph wants the input {error}, which nothing gives") from error
        except Exception as error:
            raise HoldfastError(f"a graph cannot be run: {_line(error)}") from error
        return dict(zip(self.outputs, found, strict=True))


class Words:
    """A tokenizer of texts: token ids, truncated as the learner does it."""

    def __init__(self, data: bytes, longest: int) -> None:
        tokenizers = require("tokenizers", "onnx")
        try:
            self.tokenizer = tokenizers.Tokenizer.from_str(data.decode())
            cut = self.tokenizer.truncation or {}
            self.tokenizer.enable_truncation(
                longest,
                stride=0,
                strategy="longest_first",
                direction=cut.get("direction", "right"),
            )
            self.tokenizer.no_padding()
        except Exception as error:  # of its Rust code
            raise HoldfastError(f"the tokenizer cannot be loaded: {_line(error)}") from error

    def ids(self, texts: list[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        return [one.ids for one in self.tokenizer.encode_batch_fast(texts)]


GRAPHS: Shelf[Graph] = Shelf()
WORDS: Shelf[Words] = Shelf()


def _refers_to_files(data: bytes) -> bool:
    """Return whether a graph names another file, from which onnxruntime would read the values of a tensor.

    Such a tensor has the key "location", as a string of its own: the byte before it, its length, is in no
    name. This is checked in the bytes, since the package onnx takes as long to load as the graph.
    """
    place = data.find(b"location")
    while place >= 0:
        if place == 0 or data[place - 1] not in WORD:
            return True
        place = data.find(b"location", place + 1)
    return False


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]

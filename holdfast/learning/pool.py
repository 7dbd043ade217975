"""Finished trainings, kept by a hash of all that decides them."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from holdfast.methods.base import Method

# What a training goes through beside our own code and torch.
LIBRARIES = {name: version(name) for name in ("transformers", "tokenizers", "accelerate")}
FIRST_TASKS = 2  # later tasks start from weights that few runs share


@functools.cache
def code_hash() -> str:
    """A hash of the package's own source: the same code trains the same, whatever is committed beside it."""
    total, here = hashlib.sha256(), Path(__file__).parents[1]
    for path in sorted(here.rglob("*.py")):
        total.update(path.relative_to(here).as_posix().encode() + b"\0" + path.read_bytes())
    return total.hexdigest()


@dataclass(frozen=True)
class Pool:
    """A directory of trial files, of one run or of several that read and write there.

    Nothing in it has to be there and nothing in it changes a number: a training is found only by a run that
    would have made it bit for bit, with the same code.
    """

    directory: Path
    code: str = field(default_factory=code_hash)
    """The version of the code: another one may train otherwise."""

    def place(self, *what: Any) -> Path:
        """Where the training that these things decide is, or belongs."""
        total = hashlib.sha256()
        _feed(total, [self.code, torch.__version__, LIBRARIES, torch.get_num_threads(), *what])
        return self.directory / f"{total.hexdigest()[:24]}.trial"


HOOKS = ("before_task", "losses", "optimizer", "constrain", "deployed")


def alike(method: Method) -> dict[str, Any] | None:
    """What the method trains as; None where a class that says so has been given other hooks since."""
    for owner in type(method).__mro__:
        if "trains_as" in owner.__dict__:
            return method.trains_as()
        if any(hook in owner.__dict__ for hook in HOOKS):
            return None
    return None


def fingerprint(*what: Any) -> str:
    """A hash of tensors and JSON, however nested."""
    total = hashlib.sha256()
    _feed(total, list(what))
    return total.hexdigest()


def _feed(total: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        total.update(f"{value.dtype}{tuple(value.shape)}".encode())
        total.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)
    elif isinstance(value, Mapping):
        total.update(f"{{{len(value)}".encode())
        for name in sorted(value):
            total.update(json.dumps(name).encode())
            _feed(total, value[name])
    elif isinstance(value, list | tuple):
        total.update(f"[{len(value)}".encode())
        for item in value:
            _feed(total, item)
    else:
        total.update(json.dumps(value).encode())

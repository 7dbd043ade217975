"""The console that all commands share, and how they start torch."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console

from holdfast.data.tasks import printable
from holdfast.settings import MOST_THREADS, usable_cpus

console = Console()
STOPPED = "stopped; run the same command again to resume"


def plain(text: str) -> str:
    """Return text without characters that a terminal would execute; line breaks stay."""
    return "\n".join(map(printable, text.split("\n")))


def say(text: str) -> None:
    """Print a plain line, without markup, colours or wrapping."""
    console.print(plain(text), soft_wrap=True, highlight=False, markup=False)


def say_error(markup: str) -> None:
    """Print one line on stderr."""
    Console(stderr=True).print(markup, soft_wrap=True, highlight=False)


def start_torch(threads: int | None) -> Any:
    """Import torch with a fixed number of threads, by default `default_threads()`."""
    threads = limit_threads(threads)
    import torch

    torch.set_num_threads(threads)
    return torch


def limit_threads(threads: int | None) -> int:
    """Fix the number of threads of what is imported later, by default `default_threads()`; return it."""
    threads = threads or default_threads()
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return threads


def default_threads() -> int:
    """Return OMP_NUM_THREADS if it is a valid number, else the number of CPUs this process may use."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    valid = chosen.isdecimal() and 1 <= int(chosen) <= MOST_THREADS
    return int(chosen) if valid else usable_cpus()

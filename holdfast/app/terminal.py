"""The terminal that all commands share, and how torch is started for them."""

from __future__ import annotations

import os
from typing import Any

from rich.console import Console

console = Console()


def say_error(markup: str) -> None:
    """One line on stderr."""
    Console(stderr=True).print(markup, soft_wrap=True, highlight=False)


def start_torch(threads: int) -> Any:
    """Import torch with a number of threads: 1 and 2 do not give the same bits, so it is never left open."""
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = str(threads)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    import torch

    torch.set_num_threads(threads)
    return torch

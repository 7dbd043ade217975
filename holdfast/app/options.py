"""Options that several commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from holdfast.settings import MOST_THREADS

CORES = os.cpu_count() or 1
Threads = Annotated[int, typer.Option(min=1, max=MOST_THREADS, help="CPU threads; by default all cores.")]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with hwu64/, annomi/, gsm8k/, mbpp/; else HOLDFAST_DATA, else the cache."),
]

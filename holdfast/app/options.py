"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.settings import MOST_THREADS

Threads = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=MOST_THREADS,
        show_default="OMP_NUM_THREADS, else the CPUs this process may use",
        help="CPU threads.",
    ),
]
SpecThreads = Annotated[
    int,
    typer.Option(
        min=1,
        max=MOST_THREADS,
        help="CPU threads. Part of the spec: their number may change the last digits.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        show_default="HOLDFAST_DATA, else the download cache",
        help="Folder of the data sets: hwu64/, clinc150/, gsm8k/ and so on.",
    ),
]

"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.settings import MOST_THREADS

State = Annotated[Path, typer.Argument(help="Directory of the learner.", metavar="STATE")]
StateOrArtefact = Annotated[
    Path, typer.Argument(help="Directory of the learner, or of an exported artefact.", metavar="STATE")
]
File = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV or JSONL file, saved Hugging Face dataset, or hf:owner/name.", metavar="FILE"
    ),
]
TextColumn = Annotated[str, typer.Option(help="Column of the sentences.")]
LabelColumn = Annotated[str, typer.Option(help="Column of the labels.")]
Encoder = Annotated[
    str | None,
    typer.Option("--model", help="Folder or name of the encoder, if it is no longer where it was."),
]
Keep = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Number of generations to keep this time; 1 deletes all older ones. Without it: what "
        "`learn --keep` said, else 5.",
    ),
]
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

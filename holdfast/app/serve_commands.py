"""The command that runs the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.app.options import Threads
from holdfast.app.terminal import limit_threads, say
from holdfast.errors import require


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("serve")(serve)


def serve(
    state: Annotated[
        Path,
        typer.Argument(
            help="Directory of a learner, new or existing, or a folder of several.", metavar="STATE"
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but this machine's own needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8000,
    token_file: Annotated[
        Path | None,
        typer.Option(
            show_default="HOLDFAST_TOKEN, else one is made and printed",
            help="File with the token that changes need.",
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that answer.")] = 1,
    many: Annotated[
        bool, typer.Option("--many", help="STATE is a folder of learners, named by ?state=, even if empty.")
    ] = False,
    loaded: Annotated[int, typer.Option(min=1, help="Learners of a folder kept in memory.")] = 8,
    allow_host: Annotated[
        list[str], typer.Option(help="Host name that requests may be addressed to. Repeatable.")
    ] = [],  # noqa: B006
    max_batch: Annotated[int, typer.Option(min=1, help="Texts that are classified together.")] = 256,
    max_queue: Annotated[int, typer.Option(min=1, help="Texts that may wait; more get status 429.")] = 2048,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts in one request.")] = 256,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a text.")] = 10_000,
    max_upload: Annotated[int, typer.Option(min=1, help="Megabytes of an uploaded file.")] = 16,
    slow: Annotated[float, typer.Option(min=0.1, help="Seconds in which a request must arrive.")] = 10.0,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for an answer.")] = 30.0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds for open requests and jobs when the service stops.")
    ] = 20.0,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or name of the encoder, if it is no longer where it was, or of a new STATE."
        ),
    ] = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Serve STATE over HTTP, with a page in the browser: predict, teach, correct, go back."""
    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, "serve")
    threads = limit_threads(threads)  # torch is imported with the first learner
    from holdfast.serve import server
    from holdfast.serve.serving import ServiceLimits

    limits = ServiceLimits(
        loaded=loaded,
        batch=max_batch,
        queue=max_queue,
        texts=max_texts,
        characters=max_characters,
        upload=max_upload * 2**20,
        slow=slow,
        timeout=timeout,
        grace=grace,
    )
    server.serve(
        state,
        host=host,
        port=port,
        token=server.token_from(token_file),
        workers=workers,
        threads=threads,
        many=many,
        model=model,
        allow=tuple(allow_host),
        limits=limits,
        say=say,
    )
    return {"state": state, "stopped": True}

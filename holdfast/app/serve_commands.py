"""The command that runs the service."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.app.formats import write
from holdfast.app.options import Threads
from holdfast.app.terminal import limit_threads, say
from holdfast.errors import HoldfastError, require


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("serve")(serve)


def serve(
    state: Annotated[
        str,
        typer.Argument(
            help="Directory of a learner, new or existing, or a folder of several. Or a URL, such as "
            "s3://bucket/intents, of a learner or an artefact, which is copied and served read-only.",
            metavar="STATE",
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
    engine: Annotated[
        Literal["local", "ray"],
        typer.Option(help="`ray` serves read-only replicas on Ray Serve; it needs the extra `ray`."),
    ] = "local",
    replicas: Annotated[
        int, typer.Option(min=1, max=10_000, help="Replicas on Ray, with --threads CPUs each, by default 1.")
    ] = 1,
    max_replicas: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="as --replicas",
            help="Let Ray choose the number of replicas by the load: --replicas at least, this at most.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(show_default="start a local cluster", help="Address of the Ray cluster."),
    ] = None,
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
    format: Annotated[
        Literal["text", "json"],
        typer.Option(help="Format of what is printed at the start; with `json`, one document on stdout."),
    ] = "text",
) -> dict[str, Any] | None:
    """Serve STATE over HTTP, with a page in the browser: predict, teach, correct, go back."""
    for module in ("fastapi", "uvicorn", "prometheus_client", "python_multipart"):
        require(module, "serve")
    on_ray = engine == "ray"
    if not on_ray and (replicas > 1 or max_replicas or address):
        raise HoldfastError("--replicas, --max-replicas and --address are about Ray; add --engine ray")
    if on_ray and workers > 1:
        raise HoldfastError("--workers is for --engine local; on Ray, use --replicas")
    if max_replicas is not None and max_replicas < replicas:
        raise HoldfastError(f"--max-replicas {max_replicas} is less than --replicas {replicas}")
    threads = limit_threads(threads or (1 if on_ray else None))  # torch is imported with the first learner
    from holdfast.serve import server
    from holdfast.serve.mirror import Mirror, is_url, shown_url
    from holdfast.serve.serving import ServiceLimits

    path, source = Path(state), ""
    if is_url(state):
        if many:
            raise HoldfastError("a URL names one learner or artefact; leave out --many")
        mirror = Mirror(state)
        mirror.sync()
        path, source = mirror.path, state

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

    def started(address: str, made: str | None) -> None:
        if format == "json":
            write({"state": shown_url(state), "address": address, "token": made})
            return
        say(f"serving {shown_url(state)} at {address}" + (f"#token={made}" if made else ""))
        if made:
            say("whoever has this address may change the learner; set your own token with --token-file")

    common: dict[str, Any] = {
        "source": source,
        "host": host,
        "port": port,
        "token": server.token_from(token_file),
        "threads": threads,
        "many": many,
        "model": model,
        "allow": tuple(allow_host),
        "limits": limits,
        "started": started,
    }
    if on_ray:
        from holdfast.serve.on_ray import serve_on_ray

        serve_on_ray(path, replicas=replicas, most=max_replicas, address=address, say=say, **common)
    else:
        if source:
            mirror.follow()
        server.serve(path, workers=workers, **common)
    return None  # the answer was given at the start

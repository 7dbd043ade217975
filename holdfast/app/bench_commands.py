"""The commands about whole studies: run a suite, and show what the records of a folder say."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.app.options import DataDir
from holdfast.app.terminal import console, say_error, start_torch
from holdfast.errors import HoldfastError
from holdfast.fields import unknown
from holdfast.settings import MOST_THREADS

ENGINES = ("local", "ray")


def bench(
    suite: Annotated[str, typer.Argument(help="Name of a suite (--list shows them) or its TOML file.")] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the records; only what is missing in it is run.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray (an extra: see docs/benchmark.md).")] = "local",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time (local); as many as fit the cores if not given.")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="Of a running Ray cluster; else one is started here.")
    ] = None,
    stream: Annotated[list[str], typer.Option(help="Instead of the suite's streams; repeatable.")] = [],  # noqa: B006
    order: Annotated[list[str], typer.Option(help="Instead of its orders; repeatable.")] = [],  # noqa: B006
    method: Annotated[list[str], typer.Option(help="Only these of its methods; repeatable.")] = [],  # noqa: B006
    seed: Annotated[list[int], typer.Option(help="Instead of its seeds; repeatable.")] = [],  # noqa: B006
    model: Annotated[str | None, typer.Option(help="Instead of its encoder.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help="Threads of each run; part of its spec.")
    ] = None,
    data_dir: DataDir = None,
    track: Annotated[str | None, typer.Option(help="tensorboard, wandb, mlflow or trackio.")] = None,
    list_suites: Annotated[bool, typer.Option("--list", help="Show the suites and end.")] = False,
) -> None:
    """Run a suite of methods, streams, orders and seeds. Killed, the same command goes on where it was."""
    start_torch(1)
    from holdfast.app.board import Board, LiveBoard
    from holdfast.bench.bench import bench as run_suite
    from holdfast.bench.engine import Engine, Local
    from holdfast.bench.tracking import check_tracker
    from holdfast.studies.suites import SUITES, load_suite

    if list_suites:
        table = Table("suite", "runs", "what", box=None)
        for name in SUITES:
            known = load_suite(name)
            table.add_row(name, str(len(known.specs)), known.about)
        console.print(table)
        return
    if not suite or out is None:
        raise HoldfastError("give a suite and --out, a folder for its records; --list shows the suites")
    if engine not in ENGINES:
        raise HoldfastError(unknown(engine, list(ENGINES), "engine"))
    if engine == "ray" and jobs:
        raise HoldfastError("--jobs is for --engine local; a cluster runs as many as its processors hold")
    if engine == "local" and address:
        raise HoldfastError("--address is that of a Ray cluster; add --engine ray")
    check_tracker(track)
    given: dict[str, Any] = {
        "streams": stream,
        "orders": order,
        "seeds": seed,
        "model": model,
        "threads": threads,
    }
    wanted = load_suite(suite, {key: value for key, value in given.items() if value}, method)
    chosen: Engine
    if engine == "ray":
        from holdfast.bench.on_ray import OnRay

        chosen = OnRay(address)
    else:
        chosen = Local(jobs)
    kind = LiveBoard if console.is_terminal else Board
    console.print(f"[bold]{escape(wanted.name)}[/bold]  {escape(wanted.about)}", soft_wrap=True)
    try:
        failures = run_suite(
            wanted,
            out,
            chosen,
            lambda total, at_once: kind(console, total, at_once),
            data_dir=data_dir,
            track=track,
        )
    except KeyboardInterrupt:
        say_error("stopped; the same command goes on where this one was")
        raise typer.Exit(130) from None
    for failure in failures:
        say_error(f"[red]failed:[/red] {escape(failure.spec.title)}: {escape(failure.why)}")
    if failures:
        say_error(
            f"{len(failures)} of {len(wanted.specs)} runs are missing; the same command tries them again"
        )
        raise typer.Exit(1)
    console.print(
        f"all {len(wanted.specs)} runs are in {out}; see them: holdfast report {out}",
        soft_wrap=True,
        highlight=False,
    )


def report(
    directory: Annotated[Path, typer.Argument(help="Folder with records.")],
    open_it: Annotated[bool, typer.Option("--open", help="Show the page in a browser.")] = False,
) -> None:
    """Put the records of a folder side by side: a table here, a page to open, Markdown, CSV and LaTeX."""
    from holdfast.report.tables import show
    from holdfast.studies.views import write_report

    written = write_report(directory)
    for line in written.complaints:
        say_error(f"[yellow]note:[/yellow] {escape(line)}")
    for section, tables in written.sections:
        if tables:
            show(console, tables[0])
        if section.missing:
            console.print(f"{len(section.missing)} of {len(section.runs)} runs are missing", highlight=False)
    console.print(f"report: {written.page}", soft_wrap=True, highlight=False)
    if open_it:
        webbrowser.open(written.page.resolve().as_uri())


def add_to(app: typer.Typer) -> None:
    """Give an app these commands."""
    for command in (bench, report):
        app.command()(command)

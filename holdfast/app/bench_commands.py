"""The commands for studies: run a suite, report on the records of a folder."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.app.formats import Unmet, plain
from holdfast.app.options import DataDir
from holdfast.app.terminal import STOPPED, console, say, say_error, start_torch
from holdfast.errors import HoldfastError
from holdfast.settings import MOST_THREADS


def bench(
    suite: Annotated[
        str, typer.Argument(help="Suite listed by `holdfast bench --list`, or a TOML file.")
    ] = "",
    out: Annotated[
        Path | None, typer.Option(help="Folder for the records. Runs with a record are not repeated.")
    ] = None,
    engine: Annotated[
        Literal["local", "ray"], typer.Option(help="Where to run; `ray` needs the extra `ray`.")
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            show_default="one per GPU, else as many as fit the CPUs",
            help="Number of parallel runs, for engine `local`.",
        ),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            show_default="start a local cluster", help="Address of the Ray cluster for engine `ray`."
        ),
    ] = None,
    stream: Annotated[list[str], typer.Option(help="Replace the suite's streams. Repeatable.")] = [],  # noqa: B006
    order: Annotated[list[str], typer.Option(help="Replace its orders. Repeatable.")] = [],  # noqa: B006
    method: Annotated[list[str], typer.Option(help="Run only this method. Repeatable.")] = [],  # noqa: B006
    seed: Annotated[list[int], typer.Option(help="Replace its seeds. Repeatable.")] = [],  # noqa: B006
    model: Annotated[str | None, typer.Option(help="Replace its encoder.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, max=MOST_THREADS, help="Replace its number of CPU threads per run.")
    ] = None,
    data_dir: DataDir = None,
    track: Annotated[
        Literal["tensorboard", "wandb", "mlflow", "trackio"] | None,
        typer.Option(help="Experiment tracker that receives losses and scores."),
    ] = None,
    list_suites: Annotated[bool, typer.Option("--list", help="List the suites.")] = False,
) -> dict[str, Any]:
    """Run a suite of methods, streams, orders and seeds. Run it again to resume after a kill."""
    start_torch(1)
    from holdfast.app.display import SuiteDisplay
    from holdfast.bench.bench import bench as run_suite
    from holdfast.bench.engine import Engine, Local
    from holdfast.bench.tracking import check_tracker
    from holdfast.studies.suites import SUITES, load_suite

    if list_suites:
        table = Table("suite", "runs", "description", box=None)
        suites = {name: load_suite(name) for name in SUITES}
        for name, known in suites.items():
            table.add_row(name, str(len(known.specs)), known.about)
        console.print(table)
        return {
            "suites": [
                {"name": name, "runs": len(one.specs), "about": one.about} for name, one in suites.items()
            ]
        }
    if not suite or out is None:
        raise HoldfastError("give a suite and --out, a folder for its records; --list shows the suites")
    if engine == "ray" and jobs:
        raise HoldfastError("--jobs is for --engine local; omit it: Ray runs as many as its cluster can hold")
    if engine == "local" and address:
        raise HoldfastError("--address is for a Ray cluster; add --engine ray")
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
    console.print(f"[bold]{escape(wanted.name)}[/bold]  {escape(wanted.about)}", soft_wrap=True)
    try:
        failures = run_suite(
            wanted,
            out,
            chosen,
            lambda total, at_once: SuiteDisplay(console, total, at_once),
            data_dir=data_dir,
            track=track,
        )
    except KeyboardInterrupt:
        say_error(STOPPED)
        raise typer.Exit(130) from None
    for failure in failures:
        say_error(f"[red]failed:[/red] {escape(failure.spec.title)}: {escape(failure.why)}")
    answer = {
        "suite": wanted.name,
        "out": out,
        "runs": len(wanted.specs),
        "failed": [{"run": failure.spec.title, "why": failure.why} for failure in failures],
    }
    if failures:
        say_error(f"{len(failures)} of {len(wanted.specs)} runs failed; run the same command again to retry")
        raise Unmet(plain(answer))
    say(f"all {len(wanted.specs)} runs are in {out}; show them with: holdfast report {out}")
    return answer


def report(
    directory: Annotated[Path, typer.Argument(help="Folder with records.")],
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> dict[str, Any]:
    """Compare the records of a folder: print a summary, and write a page, Markdown, CSV and LaTeX there."""
    from holdfast.report.summary import told
    from holdfast.report.tables import show
    from holdfast.studies.views import write_report

    written = write_report(directory)
    for line in written.complaints:
        kind, line = line.split(": ", 1) if line.startswith("caution: ") else ("note", line)
        say_error(f"[yellow]{kind}:[/yellow] {escape(line)}")
    for section, tables in written.sections:
        if tables:
            show(console, tables[0])
        for line in told(section):
            say(line)
    say(f"report: {written.page}")
    if open_it:
        webbrowser.open(written.page.resolve().as_uri())
    return {
        "page": written.page,
        "notes": written.complaints,
        "runs": sum(len(section.runs) for section, _ in written.sections),
        "missing": sum(len(section.missing) for section, _ in written.sections),
    }


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    for command in (bench, report):
        app.command()(command)

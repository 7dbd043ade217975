"""Write docs/cli.md, the tables of all commands, from the command line itself: `make docs`."""

import inspect
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

from holdfast.app.main import app

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# Command-line reference

Written by `make docs` from the command line itself; `holdfast COMMAND --help` prints the same.
[Everyday use](everyday.md) explains the commands on a learner, [studies](benchmark.md) those on suites, and
[language models](language-models.md) those under `lm`.

An input error prints one line on stderr and exits with code 2. Exit code 1 means that a run of `bench`
failed or that `eval --fail-under` was not reached, 130 that Ctrl-C stopped the command. Every command
answers programs with `--format json`. Downloads are kept in the system's cache folder, or in the
folder that `HOLDFAST_CACHE` names.
"""
KINDS = {int: "integer", float: "number", str: "text", Path: "path"}


def page() -> str:
    """Return the whole page."""
    return "\n".join([HEAD, *_sections(app, "holdfast")])


def _sections(group: typer.Typer, name: str) -> list[str]:
    lines = []
    for command in group.registered_commands:
        lines += _section(command.callback, f"{name} {command.name or command.callback.__name__}")
    for inner in group.registered_groups:
        lines += _sections(inner.typer_instance, f"{name} {inner.name}")
    return lines


def _section(command: Any, name: str) -> list[str]:
    hints = get_type_hints(command, include_extras=True)
    rows = []
    for parameter in inspect.signature(command).parameters.values():
        kind, info = get_args(hints[parameter.name])
        if isinstance(info, typer.models.ArgumentInfo):
            shown = info.metavar or parameter.name.upper()
            name += f" {shown}"
        else:
            shown = _option(parameter.name, info)
        rows.append(
            f"| `{shown}` | {_values(kind, info)} | {_default(parameter.default, info)} | {info.help} |"
        )
    table = ["| argument or option | value | default | description |", "|---|---|---|---|", *rows, ""]
    return [f"## `{name}`", "", " ".join(inspect.getdoc(command).split()), "", *(table if rows else [])]


def _option(name: str, info: Any) -> str:
    """Return the first name of an option. Inside Annotated, typer stores a given name as the default."""
    given = [one for one in (info.default, *(info.param_decls or ())) if isinstance(one, str)]
    return given[0] if given else f"--{name.replace('_', '-')}"


def _values(kind: Any, info: Any) -> str:
    if get_origin(kind) in (Union, types.UnionType):
        kind = next(one for one in get_args(kind) if one is not type(None))
    if kind is bool:
        return "flag"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if get_origin(kind) is tuple:
        return " ".join(KINDS[one] for one in get_args(kind))
    if get_origin(kind) is list:
        kind = get_args(kind)[0]
    bounds = [f"≥ {info.min}"] if info.min is not None else []
    bounds += [f"≤ {info.max}"] if info.max is not None else []
    return " ".join([KINDS[kind], *bounds])


def _default(default: Any, info: Any) -> str:
    if default is inspect.Parameter.empty:
        return "required"
    if isinstance(info.show_default, str):
        return info.show_default
    return "" if default is None or default is False or default in ("", []) else f"`{default}`"


if __name__ == "__main__":
    PAGE.write_text(page())

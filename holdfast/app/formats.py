"""The option --format json, which every command has: its answer as one JSON document.

A command returns its answer as a value. `add_format` adds the option: with `json`, the value is printed on
stdout and what people read goes to stderr. The exit code is the same in both formats. A command that runs
until it is stopped prints its answer itself and returns None.
"""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, get_type_hints

import typer

from holdfast.app.terminal import console
from holdfast.fields import Json, to_json

TextOrJson = Annotated[
    Literal["text", "json"],
    typer.Option(help="Output format; with `json`, stdout holds one document and stderr the rest."),
]


class Unmet(typer.Exit):
    """The end of a command whose answer is not what was demanded, with exit code 1."""

    def __init__(self, answer: Json) -> None:
        super().__init__(1)
        self.answer = answer


def add_format(command: Callable[..., Any]) -> Callable[..., None]:
    """Return a command with the option --format, unless it has one of its own with more formats."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    own = "format" in signature.parameters

    @functools.wraps(command)
    def answered(**values: Any) -> None:
        as_json = values["format"] == "json"
        if not own:
            del values["format"]
        before, console.stderr = console.stderr, as_json
        try:
            answer = command(**values)
        except Unmet as unmet:
            if as_json:
                write(unmet.answer)
            raise
        finally:
            console.stderr = before
        if as_json and answer is not None:
            write(answer)

    added = inspect.Parameter(
        "format", inspect.Parameter.POSITIONAL_OR_KEYWORD, default="text", annotation=TextOrJson
    )
    parameters = [one.replace(annotation=hints[one.name]) for one in signature.parameters.values()]
    every = parameters if own else [*parameters, added]
    answered.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    answered.__annotations__ = {one.name: one.annotation for one in every} | {"return": hints["return"]}
    return answered


def add_format_to_all(app: typer.Typer) -> None:
    """Give every command of an app the option --format."""
    for command in app.registered_commands:
        assert command.callback is not None
        command.callback = add_format(command.callback)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        add_format_to_all(group.typer_instance)


def write(answer: Json) -> None:
    """Print an answer as JSON."""
    typer.echo(json.dumps(plain(answer), ensure_ascii=False, indent=2, allow_nan=False))


def plain(value: Any) -> Json:
    """Return a value as JSON, with paths as text."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return [plain(one) for one in value]
    return str(value) if isinstance(value, Path) else to_json(value)

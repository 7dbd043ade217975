"""The commands that correct a learner's directory: rows, labels, and two states taught apart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.app.options import Encoder, Keep, LabelColumn, State, TextColumn, Threads
from holdfast.app.terminal import console, say, start_torch
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.data.readers import Row
    from holdfast.everyday.correct import Corrected

Wrong = Annotated[
    str | None,
    typer.Argument(
        help="File of rows with the labels under which they were learnt; or give --text and --label.",
        metavar="FILE",
    ),
]
OneText = Annotated[str | None, typer.Option(help="One sentence, instead of FILE.")]
OneLabel = Annotated[str | None, typer.Option(help="The label under which --text was learnt.")]
Again = Annotated[bool, typer.Option("--again", help="Also if the same rows were corrected before.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    commands: dict[str, Callable[..., Any]] = {
        "remove": remove,
        "relabel": relabel,
        "rename-label": rename_label,
        "merge-labels": merge_labels,
        "merge": merge,
    }
    for name, command in commands.items():
        app.command(name)(command)


def remove(
    state: State,
    file: Wrong = None,
    text: OneText = None,
    label: OneLabel = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    again: Again = False,
    keep: Keep = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Take rows out of STATE again, as if they had never been learnt."""
    rows = _rows(file, text, label, text_column, label_column)
    start_torch(threads)
    from holdfast.everyday import correct

    done = correct.remove_rows(state, rows, again=again, generations=keep, model=model, progress=_progress())
    return _corrected(state, done)


def relabel(
    state: State,
    to: Annotated[str, typer.Option(help="The right label, known or new.")],
    file: Wrong = None,
    text: OneText = None,
    label: OneLabel = None,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    again: Again = False,
    keep: Keep = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Give rows of STATE another label, as if they had always had it."""
    rows = _rows(file, text, label, text_column, label_column)
    start_torch(threads)
    from holdfast.everyday import correct

    done = correct.relabel_rows(
        state, rows, to, again=again, generations=keep, model=model, progress=_progress()
    )
    return _corrected(state, done)


def rename_label(
    state: State,
    old: Annotated[str, typer.Argument(help="The label as it is called now.")],
    new: Annotated[str, typer.Argument(help="Its new name.")],
    keep: Keep = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Rename a label of STATE."""
    start_torch(threads)
    from holdfast.everyday import correct

    done = correct.rename_label(state, old, new, generations=keep, model=model)
    return _corrected(state, done, renamed=True)


def merge_labels(
    state: State,
    labels: Annotated[list[str], typer.Argument(help="The labels to unite.", metavar="LABELS")],
    into: Annotated[str, typer.Option(help="Their common name: one of them, another label, or a new one.")],
    keep: Keep = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Unite labels of STATE, as if all their rows had been taught under one name."""
    start_torch(threads)
    from holdfast.everyday import correct

    return _corrected(state, correct.merge_labels(state, labels, into, generations=keep, model=model))


def merge(
    state: State,
    other: Annotated[Path, typer.Argument(help="Directory of the other learner, which is only read.")],
    again: Annotated[
        bool, typer.Option("--again", help="Also if both have learnt some of the same, which counts twice.")
    ] = False,
    keep: Keep = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Add to STATE what OTHER was taught, as if one learner had learnt both."""
    start_torch(threads)
    from holdfast.everyday import correct

    return _corrected(state, correct.merge_states(state, other, again=again, generations=keep, model=model))


def _rows(
    file: str | None, text: str | None, label: str | None, text_column: str, label_column: str
) -> list[Row | tuple[str, str]]:
    """Return the rows of a file, or the one that is given by its text and label."""
    if (file is None) == (text is None) or (text is None) != (label is None):
        raise HoldfastError("give a FILE of rows, or one row as --text TEXT --label LABEL")
    if file is None:
        return [(text or "", label or "")]
    from holdfast.data.readers import read_pairs

    return [*read_pairs(file, text_column=text_column, label_column=label_column)]


def _progress() -> Any:
    from holdfast.app.display import Display, LearnerProgress

    return LearnerProgress(Display(console))


def _corrected(state: Path, done: Corrected, *, renamed: bool = False) -> dict[str, Any]:
    """Say what was corrected, and whether it is exact."""
    found = done.correction
    if done.done_before:
        say(f"done before (generation {done.generation}): {found.what}; --again would do it once more")
    elif renamed:
        say(f"{found.what}; nothing else changes")
    else:
        say(found.what)
        if found.gone:
            say(f"no longer a label: {', '.join(map(repr, found.gone))}")
        say(
            "exact: the sums are those of a learner taught right from the start"
            if found.exact
            else "not exact: what was trained keeps traces"
        )
        if found.note:
            say(done.note)
    from holdfast.storage.generations import Store

    older = len(Store(state).generations) - 1
    kept = f"; {older} older kept, which rollback restores and --keep 1 deletes" if older else ""
    say(f"{state}: generation {done.generation}{kept}")
    return {"state": state, **done.answer(), "older_generations": older}

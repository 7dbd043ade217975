"""The commands that ask a learner what to label next and what has changed."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from holdfast.app.options import Encoder, State, TextColumn, Threads
from holdfast.app.terminal import start_torch
from holdfast.data.tasks import printable, whole
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.everyday.drift import Drift
    from holdfast.everyday.suggest import Suggestion

Lines = Annotated[
    str,
    typer.Argument(
        help="Unlabelled texts: a .txt file with one on each line, any file with a text column, or - for "
        "stdin.",
        metavar="FILE",
    ),
]
Layout = Annotated[Literal["text", "json", "csv"], typer.Option(help="Output format.")]
Out = Annotated[Path | None, typer.Option(help="Output file, instead of stdout.")]
COLUMNS = ("text", "label", "group", "size", "nearest", "margin", "unknown", "score")


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    app.command("suggest")(suggest)
    app.command("drift")(drift)


def suggest(
    state: State,
    file: Lines,
    n: Annotated[int, typer.Option("--number", "-n", min=1, help="Number of suggestions.")] = 50,
    text_column: TextColumn = "text",
    format: Layout = "text",
    out: Out = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Suggest which unlabelled texts of FILE to label next: proposed new labels first, then doubtful lines.

    csv has an empty column `label`: fill it in, delete the other rows, and `holdfast learn` reads it. A
    spreadsheet evaluates texts that begin with =: import that column as text.
    """
    start_torch(threads)
    from holdfast.everyday.suggest import suggest as suggested
    from holdfast.learning.learner import Learner

    texts = _texts(file, text_column)
    found = suggested(Learner.load(state, model=model), texts, n)
    answer = {"suggestions": [_record(one) for one in found]}
    _write({"text": _as_text, "csv": _as_csv}, format, found, answer, out)
    return answer


def drift(
    state: State,
    file: Lines,
    text_column: TextColumn = "text",
    format: Layout = "text",
    out: Out = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Compare the texts of FILE with what STATE was taught: features, share of unknown texts, mix of labels.

    Only sums are compared; no text is kept.
    """
    start_torch(threads)
    from holdfast.everyday.drift import drift as drifted
    from holdfast.learning.learner import Learner

    texts = _texts(file, text_column)
    found = drifted(Learner.load(state, model=model), texts)
    answer = _drift_record(found)
    _write({"text": _drift_as_text, "csv": _drift_as_csv}, format, found, answer, out)
    return answer


def _texts(file: str, column: str) -> list[str]:
    """Return the texts of a file or of stdin."""
    from holdfast.data.readers import read_texts
    from holdfast.runtime.answers import incoming

    if file != "-":
        return read_texts(file, text_column=column)
    lines = (line.strip() for lines in incoming(sys.stdin.buffer) for line in lines)
    texts = [line for line in lines if line]
    for number, text in enumerate(texts, start=1):
        if not whole(text):
            raise HoldfastError(f"text {number} of stdin is not UTF-8; convert it first")
    return texts


def _write(
    styles: dict[str, Callable[[Any], Iterator[str]]],
    style: str,
    found: Any,
    answer: dict[str, Any],
    out: Path | None,
) -> None:
    """Write what was found to a file, or to stdout; `add_format` prints JSON on stdout."""
    from holdfast.storage.files import rewriting

    if style == "json" and not out:
        return
    lines = (
        iter([json.dumps(answer, ensure_ascii=False, indent=2)]) if style == "json" else styles[style](found)
    )
    with rewriting(out) if out else nullcontext(sys.stdout) as sink:
        for line in lines:
            print(line, file=sink)


def _record(one: Suggestion) -> dict[str, Any]:
    return {
        "text": one.text,
        "line": one.place + 1,
        "group": one.group,
        "size": one.size,
        "nearest": one.label,
        "margin": round(one.margin, 6),
        "unknown": round(one.unknown, 6),
        "score": round(one.score, 6),
    }


def _as_csv(found: Sequence[Suggestion]) -> Iterator[str]:
    """Yield a table whose column `label` is to be filled in; its texts, to be taught, stay as they are."""
    from holdfast.runtime.answers import cell, csv_line

    yield csv_line(COLUMNS)
    for one in found:
        record = _record(one) | {"label": "", "nearest": cell(one.label)}
        yield csv_line([record[name] for name in COLUMNS])


def _as_text(found: Sequence[Suggestion]) -> Iterator[str]:
    """Yield the suggestions group by group, with the nearest known label of each line."""
    groups: dict[int | None, list[Suggestion]] = {}
    for one in found:
        groups.setdefault(one.group, []).append(one)
    for number, own in groups.items():
        if number is None:
            yield f"between two known labels: {len(own)} of these lines"
        else:
            yield f"new {number}: " + (
                "a line" if own[0].size == 1 else f"{own[0].size} lines that are alike"
            )
        for one in own:
            text = printable(" ".join(one.text.split()))
            yield f"  {text}\t{printable(one.label)}?\tmargin {one.margin:.2f}\tunknown {one.unknown:.2f}"
    if not found:
        yield "nothing to suggest"


DRIFT_COLUMNS = ("label", "taught", "texts", "taught_share", "share", "shift", "p", "changed")


def _drift_rows(found: Drift) -> list[dict[str, Any]]:
    """Return the labels, those whose features have changed most first."""
    labels = sorted(found.labels, key=lambda one: (not one.changed, -(one.shift or 0.0), one.label))
    rows = [{name: getattr(one, name) for name in DRIFT_COLUMNS} for one in labels]
    return [{name: _rounded(value) for name, value in row.items()} for row in rows]


def _rounded(value: Any) -> Any:
    """Return a number as JSON can hold it; an infinite one, beside sentences that are all equal, is None."""
    return (round(value, 6) if math.isfinite(value) else None) if isinstance(value, float) else value


def _drift_record(found: Drift) -> dict[str, Any]:
    """Return the whole, then the labels."""
    names = (
        "texts",
        "shift",
        "p",
        "notable",
        "unknown",
        "unknown_expected",
        "unknown_p",
        "mix",
        "mix_chance",
    )
    record = {name: _rounded(getattr(found, name)) for name in names}
    return record | {"changed": found.changed, "labels": _drift_rows(found)}


def _drift_as_csv(found: Drift) -> Iterator[str]:
    """Yield the table of labels."""
    from holdfast.runtime.answers import cell, csv_line

    yield csv_line(DRIFT_COLUMNS)
    for row in _drift_rows(found):
        yield csv_line([*(row | {"label": cell(row["label"])}).values()])


def _drift_as_text(found: Drift) -> Iterator[str]:
    """Yield what has changed, for people."""
    texts = "1 text" if found.texts == 1 else f"{found.texts:,} texts"
    yield f"{texts}: " + ("something has changed" if found.changed else "nothing has changed notably")
    mark = "changed" if found.moved else "as taught"
    yield f"features: {found.shift:.2f} standard deviations from what was taught, p {found.p:.2g}: {mark}"
    if found.unknown is None:
        yield "unknown: this learner cannot tell (see predict --reject)"
    else:
        mark = "changed" if found.stranger else "as expected"
        share, usual = 100 * found.unknown, 100 * found.unknown_expected
        yield f"unknown: {share:.1f} % where {usual:.0f} % are expected, p {found.unknown_p:.2g}: {mark}"
    yield f"mix of labels: {found.mix:.2f} from what was taught; {found.mix_chance:.2f} by chance alone"
    changed = [one for one in found.labels if one.changed]
    for one in sorted(changed, key=lambda one: -(one.shift or 0.0)):
        of = f"{one.texts:.0f} of the texts"
        yield f"  {printable(one.label)}: {one.shift:.2f} standard deviations from what was taught, {of}"

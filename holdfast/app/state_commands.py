"""The everyday commands, on a directory that holds a learner."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.app.options import CORES, Threads
from holdfast.app.terminal import console, say_error, start_torch
from holdfast.errors import HoldfastError

State = Annotated[Path, typer.Argument(help="Directory of a learner.", metavar="STATE")]
File = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV or JSONL file, saved Hugging Face dataset, or hf:owner/name.", metavar="FILE"
    ),
]
TextColumn = Annotated[str, typer.Option(help="Column with the sentence.")]
LabelColumn = Annotated[str, typer.Option(help="Column with the label.")]


def add_to(app: typer.Typer) -> None:
    """Make the commands part of the command line."""
    commands: dict[str, Callable[..., None]] = {
        "learn": learn,
        "predict": predict,
        "eval": evaluate,
        "inspect": inspect,
        "rollback": rollback,
        "forget-label": forget_label,
    }
    for name, command in commands.items():
        app.command(name)(command)


def learn(
    state: State,
    file: File,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    method: Annotated[
        str | None, typer.Option(help="Any of `holdfast methods` but mtl; auto if not given.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="minilm if not given; a folder or hub id.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Seconds that auto may train; 60 if not given, 0: none.")
    ] = None,
    keep: Annotated[int | None, typer.Option(min=1, help="Generations that stay; 5 if not given.")] = None,
    set: Annotated[list[str], typer.Option(help="name=value of the method, for a new STATE.")] = [],  # noqa: B006
    threads: Threads = CORES,
) -> None:
    """Teach STATE the sentences of FILE: new labels, more of old ones, or both. Makes STATE if need be."""
    start_torch(threads)
    from holdfast.app.display import display
    from holdfast.everyday import jobs as everyday
    from holdfast.fields import fields_of, parse_setting
    from holdfast.methods import METHODS
    from holdfast.settings import TrainingSettings
    from holdfast.storage.generations import Store

    before = Store(state).current
    everyday.only_for_new(state, set)  # before they are read as those of another method
    chosen = METHODS.get(method or "auto")
    values: dict[str, Any] = (
        dict(parse_setting(item, chosen, TrainingSettings) for item in set) if chosen else {}
    )
    settings = {name: values.pop(name) for name in list(values) if name in fields_of(TrainingSettings)}
    try:
        with display(console, title=f"learning {file}") as progress:
            learnt = everyday.learn(
                state,
                file,
                method=method,
                model=model,
                text_column=text_column,
                label_column=label_column,
                generations=keep,
                seconds=budget,
                progress=progress,
                hyper_parameters=values,
                settings=settings,
            )
    except KeyboardInterrupt:
        if Store(state).current == before:
            say_error(
                f"stopped; {escape(str(state))} is as it was; the same command goes on where this one was"
            )
        else:
            say_error(
                f"stopped, but the lesson is learnt already: see `holdfast inspect {escape(str(state))}`"
            )
        raise typer.Exit(130) from None
    _say_learnt(state, learnt)


def _say_learnt(state: Path, learnt: Any) -> None:
    entry, learner = learnt.learner.history[-1], learnt.learner
    parts = [f"{len(learnt.new)} new labels"] if learnt.new else []
    parts += [f"more of {len(learnt.more)} known ones"] if learnt.more else []
    _say(
        f"learnt {entry['sentences']} sentences: {' and '.join(parts)}; {len(learner.classes_)} labels known"
    )
    if entry["score"] is not None:
        _say(f"validation macro-F1 of this file: {100 * entry['score']:.1f}")
    before, after = learnt.lesson.known
    if before is not None and after is not None:
        _say(f"  of labels it knew: {100 * before:.1f} before, {100 * after:.1f} after")
    if entry.get("drift") is not None:
        moved = (
            f"by {100 * entry['drift']:.1f} %"
            if entry["drift"]
            else "not at all: nothing learnt before changed"
        )
        _say(f"features moved {moved}")
    if "chose" in entry:
        _say(f"auto chose {entry['chose']}: {entry['why']}")
    _say(f"{state}: generation {learnt.generation}")


def predict(
    state: State,
    text: Annotated[str | None, typer.Argument(help="A sentence, or - for lines from stdin.")] = None,
    file: Annotated[
        str | None, typer.Option(help="File with a text column, or .txt with a line each.")
    ] = None,
    text_column: TextColumn = "text",
    top: Annotated[int, typer.Option(min=1, help="How many labels to name.")] = 1,
    reject: Annotated[
        float | None,
        typer.Option(help="Call unknown what lies further out than this share of known inputs: 0.5 to 0.99."),
    ] = None,
    format: Annotated[str, typer.Option(help="text, jsonl or csv.")] = "text",
    out: Annotated[Path | None, typer.Option(help="Write there instead of to the terminal.")] = None,
    threads: Threads = CORES,
) -> None:
    """Say which label a sentence has, and how likely it is."""
    if format not in ("text", "jsonl", "csv"):
        raise HoldfastError(f"unknown format {format!r}; use text, jsonl or csv")
    if (text is None) == (file is None):
        raise HoldfastError("give a sentence, - for lines from stdin, or --file FILE")
    start_torch(threads)
    from holdfast.data.readers import read_texts
    from holdfast.everyday import jobs as everyday
    from holdfast.learning.learner import Learner

    if file is not None:
        pieces = everyday.chunks(read_texts(file, text_column=text_column))
    elif text == "-":
        pieces = everyday.incoming(sys.stdin)
    elif not (text or "").strip():
        raise HoldfastError("the sentence is empty; give one, - for lines from stdin, or --file FILE")
    else:
        pieces = iter([[text or ""]])
    learner = Learner.load(state)
    with ExitStack() as stack:
        try:
            sink = stack.enter_context(out.open("w", encoding="utf-8")) if out else sys.stdout
        except OSError as error:
            raise HoldfastError(f"cannot write {out}: {error.strerror}") from error
        for number, texts in enumerate(pieces):
            found = everyday.answers(learner, texts, top=top, reject=reject)
            for line in everyday.written(found, format, header=not number):  # type: ignore[arg-type]
                print(line, file=sink)
            sink.flush()


def evaluate(
    state: State,
    file: File,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    picture: Annotated[Path, typer.Option(help="Where the confusion matrix goes.")] = Path("confusion.svg"),
    threads: Threads = CORES,
) -> None:
    """Test STATE on FILE: macro-F1, every label, and a picture of who is taken for whom."""
    start_torch(threads)
    from holdfast.data.readers import read_pairs
    from holdfast.data.tasks import Split
    from holdfast.everyday import jobs as everyday
    from holdfast.learning.learner import Learner
    from holdfast.report.pictures import confusion
    from holdfast.storage.files import write_bytes

    rows = read_pairs(file, text_column=text_column, label_column=label_column)
    if rows[0].split is not None:
        rows = [row for row in rows if row.split == "test"]
        if not rows:
            raise HoldfastError(f"{file}: no 'test' rows in the split column; mark some, or drop the column")
    learner = Learner.load(state)
    found = everyday.evaluated(learner, Split.of([row[:2] for row in rows]))
    table = Table("label", box=None)
    for column in ("precision", "recall", "F1", "sentences"):
        table.add_column(column, justify="right")
    for label, precision, recall, f1, n in found.rows:
        table.add_row(escape(label), *(f"{100 * value:.1f}" for value in (precision, recall, f1)), str(n))
    console.print(table)
    if strange := sorted({label for label, *_ in found.rows} - {*learner.classes_}):
        _say(f"note: {len(strange)} labels of the file were never learnt, such as {strange[0]!r}")
    _say(f"macro-F1 {100 * found.score:.2f}")
    write_bytes(picture, confusion(found.labels, found.confusion).encode())
    _say(f"confusion matrix: {picture}")


def inspect(
    state: State,
    picture: Annotated[Path | None, typer.Option(help="Draw what each layer holds fast to, as SVG.")] = None,
) -> None:
    """Show what STATE knows: labels, lessons, sizes, generations, and what its weights hold fast to."""
    start_torch(1)
    from holdfast.app.state_view import held_fast, print_state
    from holdfast.report.pictures import layers
    from holdfast.storage.files import write_bytes

    held = held_fast(state)
    print_state(console, state, held)
    if picture is not None:
        write_bytes(picture, layers(held).encode())
        _say(f"picture: {picture}")


def rollback(
    state: State, generation: Annotated[int, typer.Argument(help="See `holdfast inspect`.")]
) -> None:
    """Go back to an earlier generation of STATE. Nothing is deleted."""
    start_torch(1)
    from holdfast.learning.directory import working_in
    from holdfast.storage.generations import Store

    with working_in(state, new=False):
        Store(state).rollback(generation)
    _say(f"{state}: generation {generation} is current")


def forget_label(
    state: State,
    label: Annotated[str, typer.Argument(help="The label to take out.")],
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Generations that stay: with 1 none is left that still knows the label."),
    ] = None,
    threads: Threads = CORES,
) -> None:
    """Take a label out of STATE; where anything keeps traces of it, it says what."""
    start_torch(threads)
    from holdfast.everyday import jobs as everyday
    from holdfast.storage.generations import Store

    generation, traces = everyday.forget_label(state, label, generations=keep)
    if traces:
        _say(f"{label!r} is forgotten; traces of it stay in {traces}")
    else:
        _say(f"{label!r} is forgotten, as if it had never been learnt")
    older = len(Store(state).generations) - 1
    knows = f"; {older} older ones still know it until they are dropped (--keep 1)" if older else ""
    _say(f"{state}: generation {generation}{knows}")


def _say(text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)

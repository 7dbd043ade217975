"""The everyday commands, which work on a learner's directory."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.app.options import Threads
from holdfast.app.terminal import console, say, say_error, start_torch
from holdfast.errors import HoldfastError

State = Annotated[Path, typer.Argument(help="Directory of the learner.", metavar="STATE")]
File = Annotated[
    str,
    typer.Argument(
        help="CSV, TSV or JSONL file, saved Hugging Face dataset, or hf:owner/name.", metavar="FILE"
    ),
]
TextColumn = Annotated[str, typer.Option(help="Column of the sentences.")]
LabelColumn = Annotated[str, typer.Option(help="Column of the labels.")]
Encoder = Annotated[
    str | None,
    typer.Option("--model", help="Folder or name of the encoder, if it is no longer where it was."),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    commands: dict[str, Callable[..., None]] = {
        "learn": learn,
        "predict": predict,
        "eval": evaluate,
        "inspect": inspect,
        "verify": verify,
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
        str | None,
        typer.Option(
            show_default="auto",
            help="A method listed by `holdfast methods`, except mtl; only for a new STATE.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            show_default="minilm",
            help="A model listed by `holdfast models list`, a folder or a hub id. For an existing STATE: "
            "where its encoder is now.",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=0,
            show_default="12000",
            help="Sentences that trainings of `auto` may read, over all epochs; 0: never train.",
        ),
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, show_default="5", help="Number of generations to keep.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Count rows again that were learnt before.")] = False,
    set: Annotated[
        list[str], typer.Option(help="Setting as name=value; only for a new STATE. Repeatable.")
    ] = [],  # noqa: B006
    threads: Threads = None,
) -> None:
    """Teach STATE the sentences of FILE: new labels, more examples of known labels, or both."""
    start_torch(threads)
    from holdfast.app.display import learning
    from holdfast.everyday import jobs as everyday
    from holdfast.fields import fields_of, parse_setting
    from holdfast.methods import METHODS
    from holdfast.settings import TrainingSettings
    from holdfast.storage.generations import Store

    before = Store(state).current
    everyday.only_for_new(state, set)  # before they are parsed as settings of another method
    chosen = METHODS.get(method or "auto")
    values: dict[str, Any] = (
        dict(parse_setting(item, chosen, TrainingSettings) for item in set) if chosen else {}
    )
    settings = {name: values.pop(name) for name in list(values) if name in fields_of(TrainingSettings)}
    try:
        with learning(console, title=f"learning {file}") as progress:
            learnt = everyday.learn(
                state,
                file,
                method=method,
                model=model,
                text_column=text_column,
                label_column=label_column,
                generations=keep,
                budget=budget,
                again=again,
                progress=progress,
                hyper_parameters=values,
                settings=settings,
            )
    except KeyboardInterrupt:
        if Store(state).current == before:
            say_error(f"stopped; {escape(str(state))} is unchanged; run the same command again to resume")
        else:
            say_error(
                f"stopped, but the lesson was already saved: see `holdfast inspect {escape(str(state))}`"
            )
        raise typer.Exit(130) from None
    _say_learnt(state, learnt)


TELLING = 20  # validation sentences from which a score is printed


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _say_learnt(state: Path, learnt: Any) -> None:
    if learnt.lesson is None:
        say(
            f"already learnt (generation {learnt.generation}); nothing was counted twice; --again would do so"
        )
        return
    entry, learner = learnt.learner.history[-1], learnt.learner
    parts = [_count(len(learnt.new), "new label")] if learnt.new else []
    parts += [f"more examples of {_count(len(learnt.more), 'known label')}"] if learnt.more else []
    seen, known = _count(entry["sentences"], "sentence"), _count(len(learner.classes_), "label")
    say(f"learnt {seen}: {' and '.join(parts)}; {known} known")
    telling = learnt.lesson.held_out >= TELLING  # the score of fewer sentences would be noise
    if entry["score"] is not None and telling:
        say(f"validation macro-F1 of this file: {100 * entry['score']:.1f}")
    before, after = learnt.lesson.known
    if before is not None and after is not None and telling:
        say(f"  of known labels: {100 * before:.1f} before, {100 * after:.1f} after")
    if entry.get("drift") is not None:
        drift = f"features moved by {100 * entry['drift']:.1f} %" if entry["drift"] else "unchanged"
        say(f"encoder: {drift}")
    if "chose" in entry:
        say(f"auto chose {entry['chose']}: {entry['why']}")
    say(f"{state}: generation {learnt.generation}")


def predict(
    state: State,
    text: Annotated[str | None, typer.Argument(help="A sentence, or - to read them from stdin.")] = None,
    file: Annotated[
        str | None, typer.Option(help="File with a text column, or a .txt file with one sentence per line.")
    ] = None,
    text_column: TextColumn = "text",
    top: Annotated[int, typer.Option(min=1, help="Labels per sentence; CSV has only the first.")] = 1,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Answer (unknown) for inputs that lie farther out than this share of the validation "
            "sentences, 0.5 to 0.99."
        ),
    ] = None,
    min_probability: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Answer (unknown) where the best label is less probable."),
    ] = None,
    cover: Annotated[
        float | None,
        typer.Option(
            "--set",
            help="Also give a set of labels that holds the right one for this share of sentences, "
            "0.5 to 0.99.",
        ),
    ] = None,
    format: Annotated[Literal["text", "jsonl", "csv"], typer.Option(help="Output format.")] = "text",
    out: Annotated[Path | None, typer.Option(help="Output file, instead of stdout.")] = None,
    model: Encoder = None,
    threads: Threads = None,
) -> None:
    """Predict the labels of sentences, with their probabilities."""
    if (text is None) == (file is None):
        raise HoldfastError("give a sentence, - for lines from stdin, or --file FILE")
    start_torch(threads)
    from holdfast.data.readers import read_texts
    from holdfast.everyday import jobs as everyday
    from holdfast.learning.learner import Learner
    from holdfast.storage.files import rewriting

    if file is not None:
        pieces = everyday.chunks(read_texts(file, text_column=text_column))
    elif text == "-":
        pieces = everyday.incoming(sys.stdin.buffer)
    elif not (text or "").strip():
        raise HoldfastError("the sentence is empty; give one, - for lines from stdin, or --file FILE")
    else:
        pieces = iter([[text or ""]])
    learner = Learner.load(state, model=model)
    asked = everyday.Asked(top, reject, min_probability, cover)
    answers = everyday.answers_to_lines if text == "-" else everyday.answers
    with rewriting(out) if out else nullcontext(sys.stdout) as sink:
        for number, texts in enumerate(pieces):
            found = answers(learner, texts, asked)
            for line in everyday.written(found, format, header=not number):
                print(line, file=sink)
            sink.flush()


def evaluate(
    state: State,
    file: File,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    page: Annotated[Path | None, typer.Option(help="HTML page to write, with the confusion matrix.")] = None,
    model: Encoder = None,
    threads: Threads = None,
) -> None:
    """Test STATE on FILE, or on its test rows if it has splits: macro-F1, and scores of each label."""
    start_torch(threads)
    from holdfast.data.readers import read_pairs
    from holdfast.data.tasks import Split, printable
    from holdfast.everyday import jobs as everyday
    from holdfast.learning.learner import Learner

    rows = read_pairs(file, text_column=text_column, label_column=label_column)
    if rows[0].split is not None:
        rows = [row for row in rows if row.split == "test"]
        if not rows:
            raise HoldfastError(f"{file}: no 'test' rows in the split column; mark some, or drop the column")
    learner = Learner.load(state, model=model)
    found = everyday.evaluated(learner, Split.of([row[:2] for row in rows]))
    table = Table("label", box=None)
    for column in ("precision", "recall", "F1", "sentences"):
        table.add_column(column, justify="right")
    for label, precision, recall, f1, n in found.rows:
        table.add_row(
            escape(printable(label)), *(f"{100 * value:.1f}" for value in (precision, recall, f1)), str(n)
        )
    console.print(table)
    if strange := sorted({label for label, *_ in found.rows} - {*learner.classes_}):
        were = "was" if len(strange) == 1 else "were"
        say(f"note: {_count(len(strange), 'label')} of the file {were} never learnt, such as {strange[0]!r}")
    say(f"macro-F1 {100 * found.score:.2f}")
    if page is not None:
        from holdfast.report.evaluation import write_evaluation

        write_evaluation(page, found, about=f"{state} tested on {file}, {len(rows)} sentences")
        say(f"page: {page}")


def inspect(state: State) -> None:
    """Show the labels, lessons, sizes and generations of STATE, and the importance of its layers."""
    start_torch(1)
    from holdfast.app.state_view import held_fast, print_state

    print_state(console, state, held_fast(state))


def verify(state: State) -> None:
    """Check every generation of STATE against its checksums."""
    start_torch(1)
    from holdfast.storage.generations import Store

    store = Store(state)
    if store.current is None:
        raise HoldfastError(f"{state} holds no Holdfast state; check the path")
    found = store.verify()
    for number, wrong in found.items():
        unchecked = (
            " (format 1, without checksums)" if not wrong and store.sections(number).format == 1 else ""
        )
        say(f"generation {number}: {wrong or 'whole'}{unchecked}")
    whole = [number for number, wrong in found.items() if not wrong]
    if store.current not in whole:
        way = f"go back: holdfast rollback {state} {whole[-1]}" if whole else "restore it from a copy"
        raise HoldfastError(f"the current generation {store.current} of {state} is damaged; {way}")


def rollback(
    state: State, generation: Annotated[int, typer.Argument(help="Number of the generation.")]
) -> None:
    """Make another generation of STATE current. No generation is deleted."""
    start_torch(1)
    from holdfast.learning.directory import roll_back

    roll_back(state, generation)
    say(f"{state}: generation {generation} is current")


def forget_label(
    state: State,
    label: Annotated[str, typer.Argument(help="The label to remove.")],
    keep: Annotated[
        int | None,
        typer.Option(min=1, help="Number of generations to keep; 1 deletes all older ones."),
    ] = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Also delete older generations and every other trace that can be deleted."
        ),
    ] = False,
    model: Encoder = None,
    threads: Threads = None,
) -> None:
    """Remove a label from STATE, and print where traces of it remain."""
    start_torch(threads)
    from holdfast.app.display import Display, LearnerProgress
    from holdfast.data.tasks import printable
    from holdfast.everyday import jobs as everyday
    from holdfast.storage.generations import Store

    progress = LearnerProgress(Display(console))
    done = everyday.forget_label(state, label, generations=keep, purge=purge, model=model, progress=progress)
    name = repr(printable(label))
    if not done.known and not done.dropped and not done.names:
        say(f"no generation of {state} knows {name}; there is nothing to remove")
        return
    if done.traces:
        say(f"{name} is forgotten; traces of it remain in {done.traces}")
    elif done.known:
        say(f"{name} is forgotten, as if it had never been learnt")
    elif not done.dropped:
        say(f"no generation of {state} knows {name}")
    if done.dropped:
        say(f"deleted: {_count(len(done.dropped), 'older generation')}")
    if done.names:
        say("the ids of lessons are deleted too: a file that is taught again counts again")
    older = len(Store(state).generations) - 1
    kept = _count(older, "older generation")
    one = ("is", "it") if older == 1 else ("are", "them")
    what, how = ("have the ids", "--keep 1") if purge else ("know it", "--purge")
    knows = f"; {kept} {one[0]} kept and may still {what}; {how} deletes {one[1]}" if older else ""
    say(f"{state}: generation {done.generation}{knows}")

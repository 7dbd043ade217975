"""The everyday commands, which work on a learner's directory."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape
from rich.table import Table

from holdfast.app.export_commands import answering, artefact_at
from holdfast.app.formats import Unmet, plain
from holdfast.app.options import (
    Encoder,
    File,
    Keep,
    LabelColumn,
    State,
    StateOrArtefact,
    TextColumn,
    Threads,
)
from holdfast.app.terminal import console, limit_threads, say, say_error, start_torch
from holdfast.data.tasks import printable
from holdfast.errors import HoldfastError


def add_to(app: typer.Typer) -> None:
    """Add the commands to an app."""
    commands: dict[str, Callable[..., Any]] = {
        "learn": learn,
        "predict": predict,
        "eval": evaluate,
        "compare": compare,
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
        int | None,
        typer.Option(
            min=1,
            show_default="5",
            help="Number of generations to keep; older ones are deleted. Kept in STATE for later commands.",
        ),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Count rows again that were learnt before.")] = False,
    set: Annotated[
        list[str], typer.Option(help="Setting as name=value; only for a new STATE. Repeatable.")
    ] = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would change; write nothing, load no encoder.")
    ] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Refuse labels that look alike and texts with several labels."),
    ] = False,
    threads: Threads = None,
) -> dict[str, Any]:
    """Teach STATE the sentences of FILE: new labels, more examples of known labels, or both."""
    start_torch(threads)
    from holdfast.app.display import learning
    from holdfast.everyday import teach
    from holdfast.fields import fields_of, parse_setting
    from holdfast.methods import METHODS
    from holdfast.settings import TrainingSettings
    from holdfast.storage.generations import Store

    before = Store(state).current
    teach.only_for_new(state, set)  # before they are parsed as settings of another method
    chosen = METHODS.get(method or "auto")
    values: dict[str, Any] = (
        dict(parse_setting(item, chosen, TrainingSettings) for item in set) if chosen else {}
    )
    settings = {name: values.pop(name) for name in list(values) if name in fields_of(TrainingSettings)}
    if dry_run:
        plan = teach.planned(
            state,
            file,
            method=method,
            text_column=text_column,
            label_column=label_column,
            budget=budget,
            again=again,
            strict=strict,
            hyper_parameters=values,
            settings=settings,
        )
        return _planned(state, plan)
    try:
        with learning(console, title=f"learning {file}") as progress:
            learnt = teach.learn(
                state,
                file,
                method=method,
                model=model,
                text_column=text_column,
                label_column=label_column,
                generations=keep,
                budget=budget,
                again=again,
                strict=strict,
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
    return _learnt(state, learnt)


TELLING = 20  # validation sentences from which a score is printed


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _planned(state: Path, plan: Any) -> dict[str, Any]:
    for note in plan.notes:
        say(f"note: {note}")
    if plan.learnt_before:
        say(f"already learnt (generation {plan.learnt_before}); nothing would be counted twice")
    table = Table("label", "rows", "now", box=None)
    for label, rows in plan.labels.items():
        now = "new" if label not in plan.known else str(plan.known[label] or "known")
        table.add_row(escape(printable(label)), f"+{rows}", now)
    if plan.labels:
        console.print(table)
    sentences, new = sum(plan.labels.values()), plan.new
    many = f"{_count(sentences, 'sentence')}: {_count(len(new), 'new label')}"
    known = len({*plan.known, *new})
    if plan.creates:
        say(f"would learn {many}; {state} would be created with {_count(known, 'label')}")
    else:
        say(f"would learn {many}; {known} known then; {state} is unchanged")
    return {
        "state": state,
        "dry_run": True,
        "creates": plan.creates,
        "already_learnt": plan.learnt_before or None,
        "sentences": sentences,
        "new": {label: plan.labels[label] for label in new},
        "more": {label: n for label, n in plan.labels.items() if label in plan.known},
        "known": plan.known,
        "notes": plan.notes,
    }


def _learnt(state: Path, learnt: Any) -> dict[str, Any]:
    answer: dict[str, Any] = {"state": state, "generation": learnt.generation}
    if learnt.lesson is None:
        say(
            f"already learnt (generation {learnt.generation}); nothing was counted twice; --again would do so"
        )
        return answer | {"already_learnt": True, "sentences": 0}
    entry, learner = learnt.learner.history[-1], learnt.learner
    parts = [_count(len(learnt.new), "new label")] if learnt.new else []
    parts += [f"more examples of {_count(len(learnt.more), 'known label')}"] if learnt.more else []
    seen, known = _count(entry["sentences"], "sentence"), _count(len(learner.classes_), "label")
    say(f"learnt {seen}: {' and '.join(parts)}; {known} known")
    telling = learnt.lesson.held_out >= TELLING  # the score of fewer sentences would be noise
    if entry["score"] is not None and telling:
        held = _count(learnt.lesson.held_out, "left-out sentence")
        say(f"validation macro-F1 of this file: {100 * entry['score']:.1f} ({held})")
    elif entry["score"] is not None and learnt.lesson.held_out:
        say(f"left out for validation: {_count(learnt.lesson.held_out, 'sentence')}, too few for a score")
    before, after = learnt.lesson.known
    if before is not None and after is not None and telling:
        say(f"  of known labels: {100 * before:.1f} before, {100 * after:.1f} after")
    if "chose" in entry:
        done = "left the encoder unchanged" if entry["chose"] == "frozen" else "trained the encoder"
        say(f"auto {done}: {entry['why']}")
    if entry.get("drift"):
        say(f"encoder: features moved by {100 * entry['drift']:.1f} %")
    elif entry.get("drift") == 0 and "chose" not in entry:
        say("encoder: unchanged")
    if learnt.dropped:
        which = "generation" if len(learnt.dropped) == 1 else "generations"
        say(f"{which} {', '.join(map(str, learnt.dropped))} deleted")
    say(f"{state}: generation {learnt.generation}")
    told = {name: entry[name] for name in ("sentences", "score", "drift", "chose", "why") if name in entry}
    return answer | {
        "already_learnt": False,
        "new": learnt.new,
        "more": learnt.more,
        "known": len(learner.classes_),
        "held_out": learnt.lesson.held_out,
        "known_labels_before": before,
        "known_labels_after": after,
        "notes": learnt.notes,
        "dropped": learnt.dropped,
        **told,
    }


def predict(
    state: StateOrArtefact,
    text: Annotated[list[str] | None, typer.Argument(help="Sentences, or - to read them from stdin.")] = None,
    file: Annotated[
        str | None, typer.Option(help="File with a text column, or a .txt file with one sentence per line.")
    ] = None,
    text_column: TextColumn = "text",
    top: Annotated[int, typer.Option(min=1, help="Labels per sentence; CSV has only the first.")] = 1,
    reject: Annotated[
        float | None,
        typer.Option(
            help="Answer (unknown) for inputs that lie farther out than this share of known sentences "
            "(left-out sentences of the lessons), 0.5 to 0.99."
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
    format: Annotated[
        Literal["text", "jsonl", "csv", "json"],
        typer.Option(help="Output format; `json` is one document, at the end."),
    ] = "text",
    out: Annotated[Path | None, typer.Option(help="Output file, instead of stdout.")] = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any] | None:
    """Predict the labels of sentences, with their probabilities."""
    if (not text) == (file is None):
        raise HoldfastError("give sentences, - for lines from stdin, or --file FILE")
    from holdfast.data.readers import read_texts
    from holdfast.runtime.answers import Asked, chunks, incoming, line_by_line, written
    from holdfast.storage.files import rewriting

    if file is not None:
        pieces = chunks(read_texts(file, text_column=text_column))
    elif text == ["-"]:
        pieces = incoming(sys.stdin.buffer)
    elif not text or not all(one.strip() for one in text):
        raise HoldfastError("the sentence is empty; give one, - for lines from stdin, or --file FILE")
    else:
        pieces = iter([text])
    answers = answering(state, model, threads)
    answers = line_by_line(answers) if text == ["-"] else answers
    asked = Asked(top, reject, min_probability, cover)
    if format == "json":
        lines = [line for texts in pieces for line in written(answers(texts, asked), "jsonl")]
        every = [json.loads(line) for line in lines]
        if out is None:
            return {"state": state, "answers": every}
        with rewriting(out) as sink:
            json.dump(every, sink, ensure_ascii=False, indent=2)
        return {"state": state, "answers": len(every), "out": out}
    with rewriting(out) if out else nullcontext(sys.stdout) as sink:
        for number, texts in enumerate(pieces):
            found = answers(texts, asked)
            for line in written(found, format, header=not number):
                print(line, file=sink)
            sink.flush()
    return None


MOST_CONFUSIONS = 10  # printed; JSON has all


def evaluate(
    state: StateOrArtefact,
    file: File,
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    generation: Annotated[
        int | None, typer.Option(show_default="the current one", help="Number of the generation to test.")
    ] = None,
    fail_under: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Exit with code 1 if macro-F1 is below, such as 0.9."),
    ] = None,
    page: Annotated[Path | None, typer.Option(help="HTML page to write, with the confusion matrix.")] = None,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Test STATE on FILE, or on its test rows if it has splits: confusions, and scores of each label."""
    start_torch(threads)
    from holdfast.everyday.evaluate import evaluated, rows_to_test
    from holdfast.learning.learner import Learner
    from holdfast.runtime.artefact import is_artefact

    split = rows_to_test(file, text_column=text_column, label_column=label_column)
    if is_artefact(state):
        if generation is not None:
            raise HoldfastError(
                f"{state} is an exported artefact, which has one generation only; leave --generation out"
            )
        learner: Any = artefact_at(state, model, threads)
    else:
        learner = Learner.load(state, generation, model=model)
    found = evaluated(learner, split)
    if wrong := found.confusions(MOST_CONFUSIONS):
        table = Table("label", "predicted", box=None)
        table.add_column("sentences", justify="right")
        for gold, guess, n in wrong:
            table.add_row(escape(printable(gold)), escape(printable(guess)), str(n))
        console.print(table, "")
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

        write_evaluation(page, found, about=f"{state} tested on {file}, {len(split)} sentences")
        say(f"page: {page}")
    passed = fail_under is None or found.score >= fail_under
    answer = {
        "state": state,
        "generation": learner.generation,
        "sentences": len(split),
        "macro_f1": found.score,
        "fail_under": fail_under,
        "passed": passed,
        "confusions": [
            {"label": gold, "predicted": guess, "sentences": n} for gold, guess, n in found.confusions()
        ],
        "labels": [
            dict(zip(("label", "precision", "recall", "f1", "sentences"), row, strict=True))
            for row in found.rows
        ],
        "never_learnt": strange,
        "page": page,
    }
    if not passed:
        say_error(f"macro-F1 {found.score:.4f} is below --fail-under {fail_under}")
        raise Unmet(plain(answer))
    return answer


def compare(
    state: State,
    generations: Annotated[
        tuple[int, int], typer.Option(help="Numbers of the two generations, the earlier first.")
    ],
    file: Annotated[str, typer.Option(help="File of labelled sentences; of its test rows if it has splits.")],
    text_column: TextColumn = "text",
    label_column: LabelColumn = "label",
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Compare two generations of STATE on FILE: macro-F1 with a paired interval, confusions, labels."""
    start_torch(threads)
    from holdfast.everyday.evaluate import compared, rows_to_test
    from holdfast.learning.learner import Learner

    split = rows_to_test(file, text_column=text_column, label_column=label_column)
    first, second = (Learner.load(state, number, model=model) for number in generations)
    found = compared(first, second, split)
    before, after = map(str, generations)
    if wrong := found.confusions(MOST_CONFUSIONS):
        table = Table("label", "predicted", box=None)
        for column in (before, after):
            table.add_column(column, justify="right")
        for gold, guess, old, new in wrong:
            table.add_row(escape(printable(gold)), escape(printable(guess)), str(old), str(new))
        console.print(table, "")
    table = Table("label", box=None)
    for column in (f"F1 {before}", f"F1 {after}", "change", "sentences"):
        table.add_column(column, justify="right")
    changed = [one for one in found.changes() if one[1] != one[2]]
    for label, was, now, n in changed:
        values = f"{100 * was:.1f}", f"{100 * now:.1f}", f"{100 * (now - was):+.1f}", str(n)
        table.add_row(escape(printable(label)), *values)
    if changed:
        console.print(table)
    same = len(found.changes()) - len(changed)
    say(f"{_count(same, 'label')} with the same F1; {found.better} sentences better, {found.worse} worse")
    for one in found.missing[:MOST_CONFUSIONS]:
        say(f"note: {one}")
    if (more := len(found.missing) - MOST_CONFUSIONS) > 0:
        say(f"note: only one of the two knows {more} more")
    gap = found.difference
    low, high = (f"{100 * value:+.2f}" for value in (gap.low, gap.high))
    say(
        f"macro-F1 {100 * found.first.score:.2f} -> {100 * found.second.score:.2f}: {100 * gap.mean:+.2f}, "
        f"95 % interval {low} to {high} (paired bootstrap over {_count(len(split), 'sentence')})"
    )
    return {"state": state, "generations": generations, **found.answer()}


def inspect(state: State) -> dict[str, Any]:
    """Show the labels, lessons, sizes and generations of STATE, and the importance of its layers."""
    start_torch(1)
    from holdfast.app.state_view import contents, print_state

    found = contents(state)
    print_state(console, found)
    return found


def verify(state: State) -> dict[str, Any]:
    """Check every generation of STATE against its checksums."""
    limit_threads(1)
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
    return {
        "state": state,
        "current": store.current,
        "generations": [
            {"generation": number, "whole": not wrong, "problem": wrong or None}
            for number, wrong in found.items()
        ],
    }


def rollback(
    state: State, generation: Annotated[int, typer.Argument(help="Number of the generation.")]
) -> dict[str, Any]:
    """Make another generation of STATE current. No generation is deleted."""
    from holdfast.storage.generations import roll_back  # without torch

    roll_back(state, generation)
    say(f"{state}: generation {generation} is current")
    return {"state": state, "generation": generation}


def forget_label(
    state: State,
    label: Annotated[str, typer.Argument(help="The label to remove.")],
    keep: Keep = None,
    purge: Annotated[
        bool,
        typer.Option(
            "--purge", help="Also delete older generations and every other trace that can be deleted."
        ),
    ] = False,
    model: Encoder = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Remove a label from STATE, and print where traces of it remain."""
    start_torch(threads)
    from holdfast.app.display import Display, LearnerProgress
    from holdfast.everyday import correct
    from holdfast.storage.generations import Store

    progress = LearnerProgress(Display(console))
    done = correct.forget_label(state, label, generations=keep, purge=purge, model=model, progress=progress)
    name = repr(printable(label))
    told = ("generation", "known", "traces", "dropped", "names")
    answer = {"state": state, "label": label, **{one: getattr(done, one) for one in told}}
    if not done.known and not done.dropped and not done.names:
        say(f"no generation of {state} knows {name}; there is nothing to remove")
        return answer
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
    return answer

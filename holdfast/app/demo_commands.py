"""`holdfast demo`: the first minute."""

from __future__ import annotations

import shlex
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from holdfast.app.terminal import console, say, say_error, start_torch

if TYPE_CHECKING:
    from holdfast.everyday.demo import Week


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("demo")(demo)


def demo(
    out: Annotated[
        Path | None,
        typer.Option(show_default="a temporary folder", help="New folder that keeps the files of the demo."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="A model listed by `holdfast models list`, a folder or a hub id.")
    ] = "minilm",
) -> dict[str, Any]:
    """Teach two weeks of intents, correct an answer, and count what plain fine-tuning would have kept."""
    start_torch(1)  # so few sentences gain nothing from more, and lose much on a busy machine
    from holdfast.everyday.demo import unpack
    from holdfast.models.sources import MODELS, resolve
    from holdfast.storage.cache import cache_dir

    if model in MODELS and not (cache_dir() / "models" / model).is_dir():
        say(f"fetching the encoder {model}, {MODELS[model].size / 1e6:.0f} MB, once")
    try:
        resolve(model)
        with _folder(out) as folder:
            unpack(folder)
            answer = _show(folder, model)
    except KeyboardInterrupt:
        say_error("stopped")
        raise typer.Exit(130) from None
    say("")
    if out is not None:
        say(f'Ask it:  holdfast predict {shlex.quote(str(out / "intents"))} "what shall I wear outside"')
    say("Your own sentences, in a CSV file with the columns text and label:")
    say("  holdfast learn mine FILE.csv")
    say('  holdfast predict mine "a sentence of yours"')
    return {"folder": out, **answer}


@contextmanager
def _folder(out: Path | None) -> Iterator[Path]:
    if out is not None:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as place:
        yield Path(place)


def _show(folder: Path, model: str) -> dict[str, Any]:
    from holdfast.app.display import Display, LearnerProgress
    from holdfast.everyday import demo as first

    began = time.monotonic()
    with Display(console, lines=False) as display:
        bars = LearnerProgress(display)
        holdfast: list[Week] = []
        for week in first.WEEKS:
            _command(f"holdfast learn intents week{week}.csv")
            holdfast.append(first.teach_week(folder, week, model=model, progress=bars))
            entry = holdfast[-1].learner.history[-1]
            known = len(holdfast[-1].learner.classes_)
            say(f"  {entry['sentences']} sentences with {entry['new']} new labels; {known} labels known")
            for asked in holdfast[-1].asked:
                say(f"  {asked.right} of {asked.number} new sentences of week {asked.week} answered right")
        for text, label, answer in holdfast[-1].wrong[:1]:
            _command(f'holdfast predict intents "{text}"')
            say(f"  {answer}: wrong, it should be {label!r}")
            _command(f'holdfast learn intents correction.csv     # one row: "{text}", {label}')
            holdfast[-1] = first.correct(folder, text, label, progress=bars)
            _command(f'holdfast predict intents "{text}"')
            say(f"  {holdfast[-1].learner.predict([text])[0]}")
        say("\nThe same two weeks, by plain fine-tuning of the same encoder")
        plain = [
            first.teach_week(folder, week, method="seq", model=model, progress=bars) for week in first.WEEKS
        ]
    number = plain[0].asked[0].number
    say(f"\nRight answers to {number} new sentences of week 1   after week 1   after week 2")
    for name, weeks in (("Holdfast", holdfast), ("plain fine-tuning", plain)):
        before, after = (week.asked[0].right for week in weeks)
        say(f"  {name:<40} {before:>12} {after:>14}")
    say(f"\n{time.monotonic() - began:.0f} seconds. Holdfast kept no sentence, only sums of numbers.")
    return {
        name: [[vars(asked) for asked in week.asked] for week in weeks]
        for name, weeks in (("holdfast", holdfast), ("fine_tuning", plain))
    }


def _command(line: str) -> None:
    console.print(f"\n[bold]$ {escape(line)}[/bold]", soft_wrap=True, highlight=False)

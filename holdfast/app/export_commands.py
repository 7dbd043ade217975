"""The command that exports a learner, and how `predict` finds what answers."""

from __future__ import annotations

import dataclasses
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from holdfast.app.options import State, Threads
from holdfast.app.terminal import console, default_threads, plain, say, say_error, start_torch
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.everyday.exported import TorchClassifier
    from holdfast.runtime.answers import Answers
    from holdfast.runtime.classifier import Classifier


def add_to(app: typer.Typer) -> None:
    """Add the command to an app."""
    app.command("export")(export)


def export(
    state: State,
    directory: Annotated[
        Path | None,
        typer.Argument(
            help="Directory of the artefact. With --onnx it can be left out: `predict STATE` then answers "
            "from the artefact, as long as its generation is the current one.",
            metavar="DIR",
            show_default=False,
        ),
    ] = None,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Write an ONNX graph and a tokenizer, which need no torch.")
    ] = False,
    int8: Annotated[
        bool,
        typer.Option("--int8", help="Round the encoder's weights to 8 bits: smaller, faster, less exact."),
    ] = False,
    share: Annotated[
        bool,
        typer.Option("--share", help="Keep the encoder beside DIR, in .encoders, for all artefacts there."),
    ] = False,
    sentence_transformers: Annotated[
        bool,
        typer.Option(
            "--sentence-transformers",
            help="Write modules for SentenceTransformer(DIR), which then encodes a text as its logits; for "
            "linear heads only.",
        ),
    ] = False,
    generation: Annotated[
        int | None, typer.Option(min=1, show_default="the current one", help="The generation to export.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the artefact in DIR.")] = False,
    model: Annotated[
        str | None,
        typer.Option(help="Folder or name of the encoder, if it is no longer where it was."),
    ] = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Write what prediction needs of STATE to DIR: no sums, no history, no names of lessons.

    `holdfast predict DIR` reads it, and with --onnx so does holdfast.runtime.Classifier, without torch.
    """
    if (int8 or share) and not onnx:
        raise HoldfastError(f"--{'int8' if int8 else 'share'} is about ONNX graphs; add --onnx")
    if sentence_transformers:
        if onnx or force or directory is None:
            raise HoldfastError("--sentence-transformers needs a new DIR, and neither --onnx nor --force")
        return _modules(state, directory, generation, model, threads)
    if directory is None and (not onnx or int8 or share):
        raise HoldfastError("name DIR; only an artefact with --onnx, exact and not shared, is kept in STATE")
    start_torch(threads)
    from holdfast.app.display import Display, LearnerProgress
    from holdfast.everyday.export import export as exported

    done = exported(
        state,
        directory,
        generation=generation,
        onnx=onnx,
        int8=int8,
        share=share,
        force=force,
        model=model,
        progress=LearnerProgress(Display(console)),
    )
    beside = f", and {_megabytes(done.shared)} shared beside it" if done.shared else ""
    labels = "1 label" if done.labels == 1 else f"{done.labels} labels"
    say(f"{done.directory}: {labels} of generation {done.generation}, {_megabytes(done.bytes)}{beside}")
    return dataclasses.asdict(done)


def _modules(
    state: Path, directory: Path, generation: int | None, model: str | None, threads: int | None
) -> dict[str, Any]:
    start_torch(threads)
    from holdfast.everyday.sentence_modules import LABELS, export_modules

    exported, labels = export_modules(state, directory, generation=generation, model=model)
    say(f"{directory}: {labels} labels of generation {exported}, in the order of {LABELS}")
    return {"directory": directory, "generation": exported, "labels": labels}


def artefact_at(path: Path, model: str | None, threads: int | None) -> Classifier | TorchClassifier:
    """Return the classifier of an artefact. ONNX graphs need no torch."""
    from holdfast.runtime.artefact import Artefact

    if not Artefact(path).runs_without_torch:
        start_torch(threads)
        from holdfast.everyday.exported import TorchClassifier

        return TorchClassifier(path, model=model)
    if model is not None:
        raise HoldfastError(f"{path} holds its encoder; leave out --model")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from holdfast.runtime.classifier import Classifier

    return Classifier(path, threads=threads or default_threads())


def answering(path: Path, model: str | None, threads: int | None) -> Answers:
    """Return what answers texts: an artefact, which a state may hold itself, or the learner of a state."""
    from holdfast.runtime.artefact import is_artefact
    from holdfast.runtime.kept import kept_artefact

    if is_artefact(path):
        return artefact_at(path, model, threads).answers
    if model is None and (kept := kept_artefact(path)) is not None:
        try:
            return artefact_at(kept, model, threads).answers
        except HoldfastError as error:  # damaged, or without onnxruntime
            say_error(f"answering from the state: {escape(plain(str(error)))}")
    start_torch(threads)
    from holdfast.everyday.predict import answers
    from holdfast.learning.learner import Learner

    return partial(answers, Learner.load(path, model=model))


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"

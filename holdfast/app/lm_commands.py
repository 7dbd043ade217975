"""The commands for language models: measure importance, fine-tune, evaluate, run the study."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from holdfast.app.options import DataDir, SpecThreads, Threads
from holdfast.app.terminal import STOPPED, console, say, say_error, start_torch
from holdfast.errors import HoldfastError
from holdfast.storage.cache import data_home

lm_app = typer.Typer(help="Protect a language model while it learns something new.", no_args_is_help=True)

Model = Annotated[str, typer.Option(help="`smollm2`, a folder, or a hub id.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Maximum sequence length; the rest is truncated.")]
Dtype = Annotated[Literal["float32", "bfloat16"], typer.Option(help="Type of the weights.")]


@lm_app.command("importance")
def importance(
    out: Annotated[Path, typer.Option(help="Folder for the importance.")],
    data: Annotated[
        str, typer.Option(help="JSONL file of prompts and answers, or `code`, `gsm8k`, `mbpp`.")
    ] = "code",
    model: Model = "smollm2",
    kind: Annotated[Literal["mas", "fisher"], typer.Option(help="Estimator; the paper uses `mas`.")] = "mas",
    squared: Annotated[bool, typer.Option(help="With `mas`: use the squared norm of the logits.")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Use only the first COUNT examples.")] = None,
    max_tokens: MaxTokens = 512,
    dtype: Dtype = "float32",
    data_dir: DataDir = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Measure how important each weight is for an ability. If stopped, the same command resumes."""
    start_torch(threads)
    from holdfast.app.display import counting
    from holdfast.lm.artefact import is_finished, measure

    network, tokenizer = _load(model, dtype)
    sequences = _sequences(data, "train", tokenizer, _room(network, max_tokens), data_dir).first(count)
    there = is_finished(out)  # then `measure` loads it, or refuses to replace it
    try:
        with counting(console, "measuring", "sequences") as show:
            found = measure(
                network,
                sequences,
                name=model,
                data=data,
                kind=kind,
                squared=squared,
                directory=out,
                on_sequence=show,
            )
    except KeyboardInterrupt:
        say_error(STOPPED)
        raise typer.Exit(130) from None
    done = "nothing to do, it already contains this " if there else ""
    say(f"{out}: {done}importance from {found.card.sequences} sequences")
    return {"out": out, "model": model, "data": data, "sequences": found.card.sequences}


@lm_app.command("finetune")
def finetune(
    out: Annotated[Path, typer.Option(help="Folder for the model and its checkpoints.")],
    data: Annotated[
        str,
        typer.Option(
            help="JSONL file of prompts and answers, or `arithmetic`, `gsm8k`, `metamathqa`, `hf:owner/name`."
        ),
    ] = "arithmetic",
    model: Model = "smollm2",
    protect: Annotated[
        Path | None, typer.Option(help="Folder of an importance; without it, nothing is protected.")
    ] = None,
    lam: Annotated[float | None, typer.Option(min=0, help="Strength of the protection.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Instead of --lam: the target value of ½ Σ a (θ - θ*)².")
    ] = None,
    mode: Annotated[
        Literal["proximal", "loss"], typer.Option(help="Form of the penalty; the paper uses `loss`.")
    ] = "proximal",
    normalise: Annotated[
        Literal["global", "tensor", "none"],
        typer.Option(help="Mean to divide the importance by; with `none` and `fisher`, a budget is in nats."),
    ] = "global",
    lr: Annotated[float, typer.Option(min=0, max=1000, help="Learning rate of AdamW.")] = 2e-5,
    epochs: Annotated[float, typer.Option(min=0, max=10**6, help="Epochs.")] = 2.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Optimiser steps, instead of --epochs.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 4,
    accumulation: Annotated[int, typer.Option(min=1, help="Batches per optimiser step.")] = 1,
    clip: Annotated[float, typer.Option(min=0, help="Maximum gradient norm; 0 turns clipping off.")] = 1.0,
    save_every: Annotated[int, typer.Option(min=1, help="Optimiser steps between checkpoints.")] = 100,
    max_tokens: MaxTokens = 512,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    dtype: Dtype = "float32",
    data_dir: DataDir = None,
    threads: Threads = None,
) -> dict[str, Any]:
    """Fine-tune a model, with protection if --protect is given. Run it again to resume after a stop."""
    if (lam is not None or budget is not None) and protect is None:
        raise HoldfastError("--lam and --budget need --protect, the folder of an importance")
    if protect is not None and (lam is None) == (budget is None):
        raise HoldfastError("--protect needs a strength: --lam, or --budget")
    if budget == 0:
        raise HoldfastError("--budget must be above 0; to change no protected weight, use --lam inf")
    start_torch(threads)
    from holdfast.app.display import counting
    from holdfast.lm.artefact import Importance, finished
    from holdfast.lm.finetune import Recipe
    from holdfast.lm.finetune import finetune as train
    from holdfast.lm.protect import Protect

    if protect is not None:
        finished(protect)  # fail before the model is loaded
    network, tokenizer = _load(model, dtype, move=False)  # the Trainer moves it
    shield = None
    if protect is not None:  # no reference to the raw importance is kept, to free its memory
        how: dict[str, Any] = {"budget": budget, "mode": mode, "normalise": normalise}
        how |= {"cap": None} if normalise == "none" else {}
        shield = Protect(network, Importance.load(protect), lam, **how)
    sequences = _sequences(data, "train", tokenizer, _room(network, max_tokens), data_dir)
    recipe = Recipe(lr, epochs, steps, batch, accumulation, clip, seed, save_every)
    try:
        with counting(console, "training", "steps") as show:
            train(
                network, sequences, tokenizer.pad_token_id, recipe, out,
                protect=shield, on_step=show, save_to=out / "model",
            )  # fmt: skip
    except KeyboardInterrupt:
        say_error(STOPPED)
        raise typer.Exit(130) from None
    if int(os.environ.get("RANK", "0")) == 0:  # only the first process of `accelerate launch`
        tokenizer.save_pretrained(out / "model")
        say(f"model: {out / 'model'}")
    return {"model": out / "model"}


@lm_app.command("eval")
def evaluate(
    model: Model = "smollm2",
    task: Annotated[
        Literal["perplexity", "gsm8k", "mbpp"], typer.Option(help="What to measure.")
    ] = "perplexity",
    data: Annotated[
        str, typer.Option(help="Data for perplexity: JSONL file, `code`, `arithmetic`, `gsm8k` or `mbpp`.")
    ] = "code",
    part: Annotated[
        Literal["test", "valid"], typer.Option(help="Part of the data; files have none.")
    ] = "test",
    shots: Annotated[
        int | None,
        typer.Option(min=0, show_default="5 for gsm8k, 3 for mbpp", help="Solved examples in the prompt."),
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Use only the first COUNT items.")] = None,
    max_tokens: MaxTokens = 512,
    dtype: Dtype = "float32",
    data_dir: DataDir = None,
    threads: Threads = None,
    unsafe_run_code: Annotated[
        bool,
        typer.Option(
            "--unsafe-run-code",
            help="If the sandbox does not work, run MBPP's programs without it: they can use your files.",
        ),
    ] = False,
) -> dict[str, Any]:
    """Evaluate a model: perplexity, exact match on GSM8K, or the share of MBPP tasks solved."""
    start_torch(threads)
    from holdfast.app.display import counting
    from holdfast.lm import evaluate as judge
    from holdfast.lm import sandbox, tasks

    if task == "mbpp":  # fail before the model is loaded
        sandbox.check(unsafe=unsafe_run_code)
        if sandbox.problem():
            say_error("warning: the sandbox does not work here; the programs run unprotected")
    network, tokenizer = _load(model, dtype)
    place = data_home(data_dir)
    with counting(console, "testing", "items") as show:
        if task == "gsm8k":
            examples = _first(tasks.gsm8k(place, "shots"), 5 if shots is None else shots)
            items = tasks.gsm8k(place, part)[:count]
            result = judge.gsm8k_exact(network, tokenizer, items, examples, show)
        elif task == "mbpp":
            known = tasks.programs(place, "shots")
            solved = _first(
                [*known[1:], known[0]], 3 if shots is None else shots
            )  # first tasks 2 to 4, as in lm-eval
            programs = tasks.programs(place, part)[:count]
            result = judge.mbpp_pass(network, tokenizer, programs, solved, show, unsafe=unsafe_run_code)
        else:
            room = _room(network, max_tokens)
            sequences = _sequences(data, part, tokenizer, room, data_dir).first(count)
            found = judge.output_loss(network, sequences, tokenizer.pad_token_id, told=show)
            result = {"loss": found.loss, "perplexity": math.exp(found.loss)}
            result |= {"token accuracy": found.accuracy, "tokens": found.tokens}
    for name, value in result.items():
        say(f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}")
    return {"model": model, "task": task, **result}


@lm_app.command("study")
def study(
    out: Annotated[Path, typer.Option(help="Folder for the records. Only missing ones are made.")],
    model: Model = "smollm2",
    old: Annotated[str, typer.Option(help="Ability to keep: `code`, `mbpp`, or a JSONL file.")] = "code",
    new: Annotated[
        str, typer.Option(help="Ability to learn: `arithmetic`, `gsm8k`, or a JSONL file.")
    ] = "arithmetic",
    steps: Annotated[int, typer.Option(min=1, help="Optimiser steps of each training run.")] = 60,
    items: Annotated[int, typer.Option(min=1, help="Maximum items for each loss and each importance.")] = 60,
    max_tokens: MaxTokens = 160,
    data_dir: DataDir = None,
    threads: SpecThreads = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Parallel training runs, each in its own process.")] = 1,
) -> dict[str, Any]:
    """Compare protection strengths and learning rates on an old and a new ability. Takes hours; resumable."""
    start_torch(threads)
    from holdfast.app.display import SuiteDisplay
    from holdfast.bench.engine import Local
    from holdfast.studies import lm_plan, lm_study
    from holdfast.studies.lm_report import write_study

    size = lm_study.Size(steps, max_tokens=max_tokens, items=items)
    work = lm_study.named_study(model, old, new, out, size, data_dir)
    for one in (work.old, work.new):
        _say_cut(one.train, max_tokens)
    try:
        work.run(
            lm_plan.study(),
            Local(jobs),
            lambda total, at_once: SuiteDisplay(console, total, at_once, lm_study.outcome),
        )
    except KeyboardInterrupt:
        say_error(STOPPED)
        raise typer.Exit(130) from None
    finally:
        page = write_study(out, about=work.about) if any(out.glob("*.json")) else None
        if page is not None:
            say(f"report: {page}")
    return {"out": out, "report": page}


def _first(items: list[Any], count: int) -> list[Any]:
    if count > len(items):
        raise HoldfastError(f"--shots {count}: only {len(items)} solved examples exist; lower it")
    return items[:count]


def _load(model: str, dtype: str, *, move: bool = True) -> tuple[Any, Any]:
    """Load a model and its tokenizer; with `move`, use a GPU if there is one."""
    import torch

    from holdfast.models.sources import load_lm

    network, tokenizer = load_lm(model, getattr(torch, dtype))
    return (network.to("cuda") if move and torch.cuda.is_available() else network), tokenizer  # type: ignore[arg-type]


def _room(network: Any, max_tokens: int) -> int:
    """Return the smaller of `max_tokens` and the model's context; say so if it is the latter."""
    from holdfast.lm.evaluate import context_of

    limit = context_of(network) or max_tokens
    if limit < max_tokens:
        say(f"the model's context is {limit} tokens; longer sequences are truncated")
    return min(limit, max_tokens)


def _sequences(data: str, part: Any, tokenizer: Any, max_tokens: int, data_dir: Path | None) -> Any:
    """Encode pairs of prompts and answers; report how many were truncated or left out."""
    from holdfast.lm.abilities import sequences_of

    found = sequences_of(data, part, tokenizer, max_tokens, data_dir)
    _say_cut(found, max_tokens)
    return found


def _say_cut(found: Any, max_tokens: int) -> None:
    if found.cut or found.dropped:
        say(
            f"{len(found) + found.dropped} examples; truncated to {max_tokens} tokens: {found.cut}; "
            f"left out because the prompt leaves no room for an answer: {found.dropped}"
        )

"""The commands about language models: measure what matters, fine-tune protected, test."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.app.display import counted
from holdfast.app.options import CORES, DataDir, Threads
from holdfast.app.terminal import console, say_error, start_torch
from holdfast.errors import HoldfastError
from holdfast.fields import unknown
from holdfast.settings import MOST_THREADS
from holdfast.storage.cache import data_home

lm_app = typer.Typer(help="Language models that learn without forgetting.", no_args_is_help=True)

Model = Annotated[str, typer.Option(help="smollm2, a folder, or a hub id.")]
MaxTokens = Annotated[int, typer.Option(min=2, help="Longer sequences are cut.")]
Dtype = Annotated[str, typer.Option(help="float32 or bfloat16.")]


@lm_app.command("importance")
def importance(
    out: Annotated[Path, typer.Option(help="Folder for the importance; stopped, the same command goes on.")],
    data: Annotated[str, typer.Option(help="JSONL of prompts and answers, or code, gsm8k, mbpp.")] = "code",
    model: Model = "smollm2",
    kind: Annotated[str, typer.Option(help="mas (the paper) or fisher.")] = "mas",
    squared: Annotated[bool, typer.Option(help="The squared norm of the logits.")] = False,
    count: Annotated[int | None, typer.Option(min=1, help="Only the first so many examples.")] = None,
    max_tokens: MaxTokens = 512,
    dtype: Dtype = "float32",
    data_dir: DataDir = None,
    threads: Threads = CORES,
) -> None:
    """Measure how much each weight of a model matters for what it can do, as a folder to keep and share."""
    if kind not in ("mas", "fisher"):
        raise HoldfastError(unknown(kind, ["mas", "fisher"], "kind"))
    start_torch(threads)
    from holdfast.lm.artefact import measure

    network, tokenizer = _load(model, dtype)
    sequences = _sequences(data, "train", tokenizer, _room(network, max_tokens), data_dir).first(count)
    with counted(console, "measuring", "sequences") as told:
        found = measure(
            network,
            sequences,
            name=model,
            data=data,
            kind=kind,  # type: ignore[arg-type]
            squared=squared,
            directory=out,
            on_sequence=told,
        )
    console.print(f"{out}: importance of {found.card.sequences} sequences", soft_wrap=True, highlight=False)


@lm_app.command("finetune")
def finetune(
    out: Annotated[Path, typer.Option(help="Folder for the model and its checkpoints.")],
    data: Annotated[
        str,
        typer.Option(help="JSONL of prompts and answers, arithmetic, gsm8k, metamathqa, or hf:owner/name."),
    ] = "arithmetic",
    model: Model = "smollm2",
    protect: Annotated[Path | None, typer.Option(help="Folder of an importance; without it, naive.")] = None,
    lam: Annotated[float | None, typer.Option(min=0, help="Strength of the protection.")] = None,
    budget: Annotated[
        float | None, typer.Option(min=0, help="Instead: ½ Σ a (θ - θ*)² to stay within.")
    ] = None,
    mode: Annotated[str, typer.Option(help="proximal, or loss (the paper's form).")] = "proximal",
    normalise: Annotated[
        str,
        typer.Option(help="Importance by its mean: global, tensor, or none (a budget in nats, with fisher)."),
    ] = "global",
    lr: Annotated[float, typer.Option(min=0, max=1000, help="Learning rate of AdamW.")] = 2e-5,
    epochs: Annotated[float, typer.Option(min=0, max=10**6, help="Passes over the data.")] = 2.0,
    steps: Annotated[int | None, typer.Option(min=1, help="Instead of epochs.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences at a time.")] = 4,
    accumulation: Annotated[int, typer.Option(min=1, help="Batches per step.")] = 1,
    clip: Annotated[float, typer.Option(min=0, help="Largest norm of a gradient; 0 for none.")] = 1.0,
    save_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 100,
    max_tokens: MaxTokens = 512,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    dtype: Dtype = "float32",
    data_dir: DataDir = None,
    threads: Threads = CORES,
) -> None:
    """Fine-tune a model, protected by an importance. Stopped, the same command goes on from a checkpoint."""
    if (lam is not None or budget is not None) and protect is None:
        raise HoldfastError("--lam and --budget need --protect, the folder of an importance")
    if protect is not None and (lam is None) == (budget is None):
        raise HoldfastError("--protect needs a strength: --lam, or --budget")
    if mode not in ("proximal", "loss"):
        raise HoldfastError(unknown(mode, ["proximal", "loss"], "mode"))
    if normalise not in ("global", "tensor", "none"):
        raise HoldfastError(unknown(normalise, ["global", "tensor", "none"], "normalise"))
    start_torch(threads)
    from holdfast.lm.artefact import Importance, finished
    from holdfast.lm.finetune import Recipe
    from holdfast.lm.finetune import finetune as train
    from holdfast.lm.protect import Protect

    if protect is not None:
        finished(protect)  # before a model is fetched for nothing
    network, tokenizer = _load(model, dtype, move=False)  # Trainer does
    shield = None
    if protect is not None:  # the raw importance is not kept beside what Protect makes of it
        how: dict[str, Any] = {"budget": budget, "mode": mode, "normalise": normalise}
        how |= {"cap": None} if normalise == "none" else {}
        shield = Protect(network, Importance.load(protect), lam, **how)
    sequences = _sequences(data, "train", tokenizer, _room(network, max_tokens), data_dir)
    recipe = Recipe(lr, epochs, steps, batch, accumulation, clip, seed, save_every)
    try:
        with counted(console, "training", "steps") as told:
            train(
                network, sequences, tokenizer.pad_token_id, recipe, out,
                protect=shield, on_step=told, save_to=out / "model",
            )  # fmt: skip
    except KeyboardInterrupt:
        say_error("stopped; the same command goes on from the last checkpoint")
        raise typer.Exit(130) from None
    if int(os.environ.get("RANK", "0")) == 0:  # `accelerate launch` runs this several times at once
        tokenizer.save_pretrained(out / "model")
        console.print(f"model: {out / 'model'}", soft_wrap=True, highlight=False)


@lm_app.command("eval")
def evaluate(
    model: Model = "smollm2",
    task: Annotated[str, typer.Option(help="perplexity, gsm8k or mbpp.")] = "perplexity",
    data: Annotated[
        str, typer.Option(help="For perplexity: JSONL, or code, arithmetic, gsm8k, mbpp.")
    ] = "code",
    part: Annotated[str, typer.Option(help="test or valid.")] = "test",
    shots: Annotated[
        int | None, typer.Option(min=0, help="Solved examples first: 5 for gsm8k, 3 for mbpp.")
    ] = None,
    count: Annotated[int | None, typer.Option(min=1, help="Only the first so many items.")] = None,
    max_tokens: MaxTokens = 512,
    dtype: Dtype = "float32",
    data_dir: DataDir = None,
    threads: Threads = CORES,
) -> None:
    """Test a model: loss and token accuracy of outputs, GSM8K's final numbers, MBPP's programs really run."""
    if task not in ("perplexity", "gsm8k", "mbpp"):
        raise HoldfastError(unknown(task, ["perplexity", "gsm8k", "mbpp"], "task"))
    if part not in ("test", "valid"):
        raise HoldfastError(unknown(part, ["test", "valid"], "part"))
    start_torch(threads)
    from holdfast.lm import evaluate as judge
    from holdfast.lm import tasks

    network, tokenizer = _load(model, dtype)
    place = data_home(data_dir)
    with counted(console, "testing", "items") as told:
        if task == "gsm8k":
            examples = _first(tasks.gsm8k(place, "shots"), 5 if shots is None else shots)
            items = tasks.gsm8k(place, part)[:count]  # type: ignore[arg-type]
            result = judge.gsm8k_exact(network, tokenizer, items, examples, told)
        elif task == "mbpp":
            known = tasks.programs(place, "shots")
            solved = _first([*known[1:], known[0]], 3 if shots is None else shots)  # tasks 2 to 4, as lm-eval
            programs = tasks.programs(place, part)[:count]  # type: ignore[arg-type]
            result = judge.mbpp_pass(network, tokenizer, programs, solved, told)
        else:
            room = _room(network, max_tokens)
            sequences = _sequences(data, part, tokenizer, room, data_dir).first(count)
            found = judge.output_loss(network, sequences, tokenizer.pad_token_id, told=told)
            result = {"loss": found.loss, "perplexity": math.exp(found.loss)}
            result |= {"token accuracy": found.accuracy, "tokens": found.tokens}
    for name, value in result.items():
        console.print(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}", highlight=False
        )


@lm_app.command("study")
def study(
    out: Annotated[Path, typer.Option(help="Folder for the records; only what is missing is run.")],
    model: Model = "smollm2",
    old: Annotated[str, typer.Option(help="The ability to keep: code, mbpp, or a JSONL file.")] = "code",
    new: Annotated[
        str, typer.Option(help="The ability to learn: arithmetic, gsm8k, or a JSONL.")
    ] = "arithmetic",
    steps: Annotated[int, typer.Option(min=1, help="Steps of every training.")] = 60,
    items: Annotated[int, typer.Option(min=1, help="Items of each ability for its loss.")] = 60,
    max_tokens: MaxTokens = 160,
    data_dir: DataDir = None,
    threads: Annotated[int, typer.Option(min=1, max=MOST_THREADS, help="Part of every record's spec.")] = 1,
    jobs: Annotated[int, typer.Option(min=1, help="Trainings at a time, each in its own process.")] = 1,
) -> None:
    """Does protection keep the old ability, at every strength? Rates, sweeps, seeds: hours, resumable."""
    start_torch(threads)
    from holdfast.app.board import Board, LiveBoard
    from holdfast.bench.engine import Local
    from holdfast.studies import lm_plan, lm_study
    from holdfast.studies.lm_report import write_study

    size = lm_study.Size(steps, max_tokens=max_tokens, items=items)
    work = lm_study.named_study(model, old, new, out, size, data_dir)
    for one in (work.old, work.new):
        _say_cut(one.train, max_tokens)
    kind = LiveBoard if console.is_terminal else Board
    try:
        work.run(
            lm_plan.study(),
            Local(jobs),
            lambda total, at_once: kind(console, total, at_once, lm_study.outcome),
        )
    except KeyboardInterrupt:
        say_error("stopped; the same command goes on where this one was")
        raise typer.Exit(130) from None
    finally:
        if any(out.glob("*.json")):
            console.print(f"report: {write_study(out, about=work.about)}", soft_wrap=True, highlight=False)


def _first(items: list[Any], count: int) -> list[Any]:
    if count > len(items):
        raise HoldfastError(f"--shots {count}: there are {len(items)} solved examples")
    return items[:count]


def _load(model: str, dtype: str, *, move: bool = True) -> tuple[Any, Any]:
    """A model and its tokenizer, on a GPU if there is one."""
    import torch

    from holdfast.models.sources import load_lm

    known = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    if dtype not in known:
        raise HoldfastError(unknown(dtype, list(known), "dtype"))
    network, tokenizer = load_lm(model, known[dtype])
    return (network.to("cuda") if move and torch.cuda.is_available() else network), tokenizer  # type: ignore[arg-type]


def _room(network: Any, max_tokens: int) -> int:
    """The tokens a sequence may have: what was asked for, or what the model was made for."""
    from holdfast.lm.evaluate import context_of

    made_for = context_of(network) or max_tokens
    if made_for < max_tokens:
        console.print(f"the model has room for {made_for} tokens, not {max_tokens}", highlight=False)
    return min(made_for, max_tokens)


def _sequences(data: str, part: Any, tokenizer: Any, max_tokens: int, data_dir: Path | None) -> Any:
    """Encoded pairs of an ability by name, or of a file; what had to be cut is said."""
    from holdfast.lm.abilities import sequences_of

    found = sequences_of(data, part, tokenizer, max_tokens, data_dir)
    _say_cut(found, max_tokens)
    return found


def _say_cut(found: Any, max_tokens: int) -> None:
    if found.cut or found.dropped:
        console.print(
            f"of {len(found) + found.dropped} examples {found.cut} were cut to {max_tokens} tokens, and "
            f"{found.dropped} were left out whose prompt alone is longer",
            soft_wrap=True,
            highlight=False,
        )

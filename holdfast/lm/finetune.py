"""Resumable fine-tuning with the Hugging Face Trainer, with optional protection."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.lm.half import quick_half
from holdfast.lm.protect import FOLDER, Protect
from holdfast.lm.text import Sequences, collate
from holdfast.maths.losses import IGNORED
from holdfast.storage.files import drop_leftovers, read_json, write_json

SETTINGS = "finetune.json"


@dataclass(frozen=True)
class Recipe:
    """Training settings; the default number of epochs and batch size are the paper's."""

    lr: float = 2e-5
    epochs: float = 2.0
    steps: int | None = None
    """Number of optimiser steps; if set, it replaces `epochs`."""
    batch: int = 4
    accumulation: int = 1
    clip: float = 1.0
    """Maximum gradient norm; 0 disables clipping."""
    seed: int = 0
    save_every: int | None = None
    """Steps between checkpoints; None disables them."""


class Collapsed(HoldfastError):
    """The training loss became NaN or infinite."""


class Tuned(Dataset[dict[str, Tensor]]):
    """A dataset of sequences with optional sample weights."""

    def __init__(self, sequences: Sequences, weights: Sequence[float] | None = None) -> None:
        self.sequences = sequences
        self.weights = weights

    def __len__(self) -> int:
        return len(self.sequences)

    @override
    def __getitem__(self, number: int) -> dict[str, Tensor]:
        row = self.sequences[number]
        if self.weights is not None:
            row["weight"] = torch.tensor(self.weights[number])
        return row


class Tuner(Trainer):
    """A Trainer that supports sample weights and raises Collapsed if the loss is NaN or infinite."""

    @override
    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if "weight" not in inputs:
            return super().compute_loss(model, inputs, *args, **kwargs)
        inputs = dict(inputs)
        weights, labels = inputs.pop("weight"), inputs.pop("labels")
        losses = weights[:, None] * token_losses(model(**inputs).logits, labels)
        tokens = kwargs.get("num_items_in_batch")  # of the whole step, not only of this micro-batch
        if tokens is None:
            loss = losses.sum() / (labels[:, 1:] != IGNORED).sum().clamp(min=1)
        else:
            together = self.args.world_size if self.args.average_tokens_across_devices else 1
            loss = losses.sum() / tokens * together
        return (loss, None) if kwargs.get("return_outputs") else loss

    @override
    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss: Tensor = super().training_step(*args, **kwargs)
        if not math.isfinite(float(loss)):
            saved = last_checkpoint(Path(self.args.output_dir or "."))
            kept = f"; the last checkpoint is {saved}" if saved else ""
            raise Collapsed(
                f"the loss is NaN or infinite at step {self.state.global_step + 1}: start again with a lower "
                f"learning rate in another folder{kept}"
            )
        return loss


def finetune(
    model: nn.Module,
    train: Sequences,
    pad: int,
    recipe: Recipe,
    out: Path,
    *,
    protect: Protect | None = None,
    weights: Sequence[float] | None = None,
    on_step: Callable[[int, int, float], None] | None = None,
    save_to: Path | None = None,
) -> float:
    """Train the model in place; return the mean training loss.

    With `recipe.save_every`, an interrupted training run resumes from its last checkpoint; the mean is then
    over the steps since. If the run was already complete, its weights are loaded, and the mean is over all
    steps. The model is saved to `save_to`, unsharded.
    """
    arguments = TrainingArguments(
        output_dir=str(out),
        learning_rate=recipe.lr,
        num_train_epochs=recipe.epochs,
        max_steps=recipe.steps or -1,
        per_device_train_batch_size=recipe.batch,
        gradient_accumulation_steps=recipe.accumulation,
        max_grad_norm=recipe.clip,
        weight_decay=0.0,
        lr_scheduler_type="constant",
        seed=recipe.seed,
        save_strategy="steps" if recipe.save_every else "no",
        save_steps=recipe.save_every or 500,
        save_total_limit=2,
        logging_strategy="steps",
        logging_steps=1,
        report_to=[],
        disable_tqdm=True,
        remove_unused_columns=False,
        use_cpu=not torch.cuda.is_available(),
    )
    callbacks: list[TrainerCallback] = [OnStep(on_step)] if on_step else []
    trainer = Tuner(
        model,
        arguments,
        data_collator=partial(collate, pad=pad),
        train_dataset=Tuned(train, weights),
        callbacks=[*callbacks, *([protect] if protect else [])],
    )
    trainer.remove_callback(PrinterCallback)
    for place in (out, out / FOLDER):
        drop_leftovers(place)
    last = last_checkpoint(out) if recipe.save_every else None
    if last is not None:
        _same_settings(out, recipe, train, protect)
    elif recipe.save_every:
        write_json(out / SETTINGS, _settings(recipe, train, protect))
    if last is not None and (ended := _ended(Path(last))) is not None:
        trainer._load_from_checkpoint(last)  # the run is already complete
    else:
        try:
            with quick_half(model):
                ended = float(trainer.train(resume_from_checkpoint=last).training_loss)
        finally:
            if protect is not None:
                protect.detach()
    if save_to is not None:
        if trainer.is_fsdp_enabled:  # save the full model instead of shards
            trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        trainer.save_model(str(save_to))
    return ended


def _ended(checkpoint: Path) -> float | None:
    """Return the mean loss of a training run if this checkpoint is of its last step, otherwise None."""
    state = read_json(checkpoint / "trainer_state.json")
    if state["global_step"] < state["max_steps"]:
        return None
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]
    return float(sum(losses) / len(losses)) if losses else 0.0


def _settings(recipe: Recipe, train: Sequences, protect: Protect | None) -> dict[str, Any]:
    """Return the settings that must be the same when a training run resumes."""
    held = None if protect is None else protect.settings()
    return {"recipe": asdict(recipe), "data": train.digest(), "protect": held}


def _same_settings(out: Path, recipe: Recipe, train: Sequences, protect: Protect | None) -> None:
    path, own = out / SETTINGS, _settings(recipe, train, protect)
    if path.exists() and (begun := read_json(path)) != own:
        other = next(name for name in own if begun.get(name) != own[name])
        raise HoldfastError(
            f"{out} contains a training run with different settings ({other}); choose another folder, or "
            "delete this one"
        )


class OnStep(TrainerCallback):
    """Call `on_step` with the step, the number of steps and the loss whenever the Trainer logs a loss."""

    def __init__(self, on_step: Callable[[int, int, float], None]) -> None:
        self.on_step = on_step

    @override
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.on_step(state.global_step, state.max_steps, float(logs["loss"]))


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the loss of every token except the first; 0 for tokens outside the output."""
    return nn.functional.cross_entropy(
        logits[:, :-1].float().transpose(1, 2), labels[:, 1:], ignore_index=IGNORED, reduction="none"
    )


def sequence_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the mean loss over the output tokens of each sequence."""
    counted = (labels[:, 1:] != IGNORED).sum(1)
    return token_losses(logits, labels).sum(1) / counted.clamp(min=1)


def last_checkpoint(out: Path) -> str | None:
    """Return the latest complete checkpoint, or None; a complete one has a trainer state, written last."""
    found = [path for path in out.glob("checkpoint-*") if (path / "trainer_state.json").exists()]
    return str(max(found, key=lambda path: int(path.name.rpartition("-")[2]))) if found else None

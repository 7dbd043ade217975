"""Trainings to protect: a quadratic loss, explicit steps, the Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from helpers.tiny import sequences
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from holdfast.lm import Importance
from holdfast.lm.artefact import Card
from holdfast.lm.text import collate


class Bowl(nn.Module):
    """The loss ½ Σ h (θ - b)². With the anchor at 0, its penalised optimum is h b / (h + λ a)."""

    def __init__(self, h: list[float], b: list[float]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros(len(h)))
        self.h, self.b = torch.tensor(h), torch.tensor(b)

    def forward(self) -> torch.Tensor:
        return (self.h * (self.theta - self.b).square()).sum() / 2


def equal(model: nn.Module, values: list[float]) -> Importance:
    return Importance({"theta": torch.tensor(values)}, Card("bowl", "none", 1))


def steps(
    model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5, clip: float | None = None
) -> None:
    model.train()
    data = sequences(4 * count)
    for number in range(count):
        batch = collate([data[4 * number + i] for i in range(4)], pad=2)
        model(**batch).loss.backward()
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()


def trainer(model: nn.Module, out: Path, *callbacks: Any, **rest: Any) -> Trainer:
    settings = {
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.01,
        "save_strategy": "no",
    }
    arguments = TrainingArguments(
        output_dir=str(out),
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        **settings | rest,
    )
    data = list(sequences(40))
    return Trainer(
        model,
        arguments,
        train_dataset=data,
        data_collator=lambda rows: collate(rows, 2),
        callbacks=list(callbacks),
    )


class StopAt(TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step >= self.step

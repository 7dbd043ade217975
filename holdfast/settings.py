"""Settings of a run that belong to no method, and their presets."""

from __future__ import annotations

import math
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from holdfast.fields import check_all, check_word, setting

MOST_THREADS = 4096  # a larger number is a typo, and torch would try to start that many
PresetName = Literal["full", "small", "quick"]
PlanName = Literal["paper", "stable"]
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of training and search, in studies and in everyday use."""

    def __post_init__(self) -> None:
        check_all(self)

    plan: PlanName = setting(
        "paper", "search: Algorithm 1 (paper), or the most stable training that keeps thr of gold (stable)"
    )
    adapter: Literal["houlsby", "lacl"] = setting(
        "houlsby", "adapter: Houlsby's bottleneck or the authors' wide one"
    )
    adapt_layers: int | None = setting(
        None, "number of top layers with adapters; those below are computed once per sentence", least=1
    )
    vector: Literal["mean", "cls", "pooler"] = setting("mean", "sentence vector")
    max_length: int = setting(128, "maximum number of tokens read per sentence", least=3)
    class_weights: Literal["task", "paper", "none"] = setting("task", "domain-incremental class weights")
    relaxation: float = setting(
        1.0, "prior of an earlier label in the balanced softmax, where one of the task has its count", above=0
    )
    batch_size: int = setting(32, "sentences per optimiser step", least=1)
    epochs: int = setting(50, "maximum number of epochs per training", least=1)
    patience: int = setting(5, "epochs without a gain above min_delta before training stops", least=1)
    min_delta: float = setting(0.002, "gain in validation loss above which patience is reset", least=0)
    optimizer: Literal["adamw", "sgd"] = setting("adamw", "optimiser of every method without one of its own")
    momentum: float = setting(0.0, "momentum of optimizer=sgd", least=0, below=1)
    rates: tuple[float, ...] = setting(
        (3e-5, 3e-4, 3e-3, 3e-2), "learning rates tried on each task", least=0, below=math.inf
    )
    sgd_rates: tuple[float, ...] = setting(
        (3e-5, 3e-4, 3e-3, 3e-2),
        "the same with optimizer=sgd, and for methods whose own steps are of the SGD type",
        least=0,
        below=math.inf,
    )
    engine: Literal["bisect", "linear"] = setting("bisect", "how the lambda grid is searched")
    lam_decay: float = setting(0.9, "step of the lambda grid: start * lam_decay^j", above=0, below=1)
    lam_steps: int = setting(175, "steps of the lambda grid below its start", least=1)
    lam_trials: int | None = setting(None, "maximum number of trainings on the lambda grid", least=1)
    loosening: Literal["paper", "short"] = setting("paper", "trials of lambda_down and lambda_up")
    lam_a_growth: float = setting(1.1, "step of the lambda_a grid: 0.01 * lam_a_growth^j", above=1)
    lam_a_steps: int = setting(50, "points of the lambda_a grid", least=1)
    grids: Literal["product", "after"] = setting("product", "grids of rp2f, adabop: at each rate or the best")


@dataclass(frozen=True)
class Settings(TrainingSettings):
    """All settings of a run, the same for every method: training, search, head and stream.

    >>> Settings(epochs=3, batch_size=8).epochs
    3
    """

    head: Literal["growing", "preallocated"] = setting(
        "growing", "head rows appear with their labels, or all at the start"
    )
    logits: Literal["seen", "all"] = setting("seen", "head rows used by importance and argmax")
    text_column: str = setting("text", "column with the sentence, for a stream of your own files")
    label_column: str = setting("label", "column with the label, for a stream of your own files")
    train_per_class: int | None = setting(None, "maximum training sentences per class", least=1)
    valid_per_class: int | None = setting(None, "maximum validation sentences per class", least=1)


_SMALL: dict[str, Any] = {
    "train_per_class": 40,
    "valid_per_class": 20,
    "epochs": 10,
    "patience": 3,
    "rates": (3e-4, 3e-3),
    "sgd_rates": (3e-3, 3e-2),
    "lam_decay": 0.1,
    "lam_steps": 7,
    "lam_trials": 5,
    "loosening": "short",
    "lam_a_growth": 4.0,
    "lam_a_steps": 4,
    "grids": "after",
}
PRESETS: dict[PresetName, dict[str, Any]] = {
    "full": {},
    "small": _SMALL,
    "quick": _SMALL
    | {
        "train_per_class": 16,
        "valid_per_class": 8,
        "batch_size": 16,
        "epochs": 6,
        "patience": 2,
        "rates": (3e-3,),
        "sgd_rates": (3e-2,),
    },
}
STABLE: dict[PresetName, dict[str, Any]] = {
    "full": {"epochs": 200},
    "small": {"epochs": 60},
    "quick": {"epochs": 30},
}
"""What plan=stable changes in a preset: early stopping ends a training, not the number of epochs."""


def preset(name: str, plan: str = Settings.plan) -> Settings:
    """Return the settings of a preset under a plan.

    >>> preset("small").train_per_class
    40
    """
    check_word(name, PresetName, "preset")
    check_word(plan, PlanName, "plan")
    chosen = cast(PresetName, name)
    changes = STABLE[chosen] if plan == "stable" else {}
    return Settings(**{"plan": plan} | PRESETS[chosen] | changes)


def usable_cpus() -> int:
    """Return how many CPUs this process may use, by its affinity and its container's limit."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, math.ceil(min(allowed, _container_limit())))


def _container_limit() -> float:
    """Return the CPU limit of the control group (version 2, else 1), infinity if there is none."""
    with suppress(OSError, ValueError):
        quota, period = (CGROUP / "cpu.max").read_text().split()
        return math.inf if quota == "max" else int(quota) / int(period)
    with suppress(OSError, ValueError):
        quota, period = ((CGROUP / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return int(quota) / int(period) if int(quota) > 0 else math.inf
    return math.inf

"""Measure an epoch with adapters in the top layers only, against one with adapters in all layers.

The same sentences, batches and method (`seq`: task loss only) in one run, one thread. Repeats are
interleaved, and each figure is a ratio of medians of CPU seconds, so that a busy machine affects all alike.

epoch        once the frozen layers' outputs of the task's sentences are kept
first        the first epoch of a task, which computes them
unkept       an epoch that computes the frozen layers each time

    python benchmarks/prefix.py --model mpnet --layers 4
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from holdfast import METHODS, build_classifier
from holdfast.data import load_stream
from holdfast.data.tasks import Task
from holdfast.errors import HoldfastError
from holdfast.learning.fit import fit
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.settings import Settings

BAR = 0.45
SETTINGS = Settings(batch_size=32, epochs=1, rates=(3e-4,))


def task_of(sentences: int, data_dir: Path | None) -> Task:
    """Return the first task of hwu64, or of `home` where hwu64 is absent, cut to about so many sentences."""
    try:
        task = load_stream("hwu64", order="Split0", data_dir=data_dir).tasks[0]
    except HoldfastError:
        task = load_stream("home", order="home-1").tasks[0]
    return task.capped(train=max(1, sentences // len(task.labels)), valid=1)


class Setup:
    """A learner that has begun the task."""

    def __init__(self, model: str, layers: int | None, task: Task) -> None:
        settings = dataclasses.replace(SETTINGS, adapt_layers=layers)
        method = METHODS["seq"](lr=3e-4)
        self.task = task
        self.learner = Learner(build_classifier(model, settings, method=method), method, settings=settings)
        self.hand = self.learner.begin(task)
        self.start = P.snapshot(self.learner.model)
        self.texts = [*task.train.texts, *task.valid.texts]

    def epoch(self) -> float:
        """Return the CPU seconds of one epoch from the task's start."""
        learner = self.learner
        P.restore(learner.model, self.start)
        began = time.process_time()
        fit(
            learner.model,
            learner.method.prepare(self.hand, self.task),
            self.hand.train,
            self.hand.valid,
            learner.settings,
            seed=0,
            accelerator=learner.accelerator,
        )
        return time.process_time() - began


def measure(model: str, layers: int, task: Task, repeats: int) -> dict[str, float]:
    """Return the ratios and the size of what is kept."""
    every, top = Setup(model, None, task), Setup(model, layers, task)
    seconds: dict[str, list[float]] = {"all": [], "first": [], "epoch": [], "unkept": []}
    size = 0
    every.epoch()  # warm up
    for _ in range(repeats):
        seconds["all"].append(every.epoch())
        top.learner.model.unremember()
        seconds["unkept"].append(top.epoch())
        top.learner.model.remember(top.texts)
        seconds["first"].append(top.epoch())
        seconds["epoch"].append(top.epoch())
        assert top.learner.model.prefix is not None
        size = top.learner.model.prefix.bytes
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    ratios = {name: middle[name] / middle["all"] for name in ("epoch", "first", "unkept")}
    return ratios | {"seconds_all": middle["all"], "kept_mb": size / 1e6, "sentences": len(top.texts)}


def main() -> None:
    """Print the ratios and whether the bar is held."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--model", default="mpnet")
    arguments.add_argument("--layers", type=int, default=4, help="number of top layers with adapters")
    arguments.add_argument("--sentences", type=int, default=320)
    arguments.add_argument("--repeats", type=int, default=5)
    arguments.add_argument("--data-dir", type=Path)
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    task = task_of(chosen.sentences, chosen.data_dir)
    found = measure(chosen.model, chosen.layers, task, chosen.repeats)
    if chosen.json:
        print(json.dumps(found))
        return
    print(f"{chosen.model}, top {chosen.layers} layers adapted, {task.name}, {found['sentences']} sentences")
    print(f"epoch / epoch with all layers adapted: {found['epoch']:.3f} (<= {BAR})")
    print(f"first epoch of a task: {found['first']:.3f}; frozen layers each time: {found['unkept']:.3f}")
    print(
        f"kept: {found['kept_mb']:.1f} MB; an epoch with all layers: {found['seconds_all']:.1f} CPU seconds"
    )


if __name__ == "__main__":
    main()

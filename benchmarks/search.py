"""Measure the search for Look-Ahead's hyper-parameters: Algorithm 1 as printed, and the plans of Holdfast.

Two tasks with the preset's data. `--epochs 10` gives all searches the preset's epochs; by default
plan=stable has its own. `printed` walks its grids point by point, reuses no training and runs on
transformers' Trainer. It stops after `--most` trainings; its time is then a lower bound. With `--bisect` it
finds the end of its walk down λ by bisection instead, and `seconds` is the mean time of a training times the
number of trainings that the walk would have made. Times are CPU seconds of one thread. The scores are those
of the new and of the old task's validation sentences.

    python benchmarks/search.py --data-dir DATA --epochs 10 --bisect
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainingArguments

from holdfast import importance
from holdfast.data import load_stream
from holdfast.data.tasks import Stream, Task
from holdfast.importance.relative import modified, relative
from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.equations import Params, pool, quadratic_penalty
from holdfast.methods import METHODS
from holdfast.methods.search import slope
from holdfast.models import build_classifier
from holdfast.settings import Settings, preset

DROP, THR, BUDGET, EPSILON = 0.1, 0.9, 40, 0.003
HIGHEST = 1e8  # λ_init · lr · max α
DEAD = 0.02  # highest score without plasticity
WALK = 400  # steps of the walk down λ at which bisection gives up
Row = dict[str, Any]


def make_learner(model: str, stream: Stream, settings: Settings) -> Learner:
    """Return a learner that has learnt nothing."""
    method = METHODS["la"]()
    classifier = build_classifier(model, settings, seed=0, labels=stream.labels, method=method)
    return Learner(classifier, method, stream.scenario, settings)


def planned(model: str, stream: Stream, settings: Settings) -> Row:
    """Learn two tasks with a plan of Holdfast."""
    learner, began = make_learner(model, stream, settings), time.process_time()
    lessons = [learner.learn(task) for task in stream]
    return {
        "seconds": time.process_time() - began,
        "trainings": sum(len(lesson.trials) for lesson in lessons),
        "new": lessons[-1].trial.score,
        "old": learner.score(stream.tasks[0].valid),
        "lam": lessons[-1].trial.choice["lam"],
    }


class Rows(nn.Module):
    """A classifier that takes the numbers of its sentences, so that Trainer can batch them."""

    def __init__(self, hand: AtHand, pull: tuple[Params, Params, float] | None) -> None:
        super().__init__()
        self.model, self.data, self.pull = hand.model, hand.train, pull

    def forward(self, rows: Tensor) -> dict[str, Tensor]:
        loss = self.model(self.data.collate(rows.tolist())).loss
        if self.pull is not None:
            anchor, weights, lam = self.pull
            loss = loss + quadratic_penalty(dict(P.trainable(self.model)), anchor, weights, lam)
        return {"loss": loss}


def first(holds: Callable[[int], bool], last: int) -> int:
    """Return the first number up to the last from which `holds` is true, by bisection; else the last."""
    low, high = 0, last
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low


class Printed:
    """Algorithm 1 of the paper, line by line."""

    def __init__(self, learner: Learner, most: int, bisects: bool) -> None:
        self.learner, self.left, self.bisects = learner, most, bisects
        self.hand: AtHand
        """The task that is being learnt."""
        self.made = 0
        self.skipped = 0
        """Trainings of the walk down λ that bisection did not need."""
        self.lam = 0.0
        self.alpha: Params = {}

    def train(self, lr: float, pull: tuple[Params, Params, float] | None = None) -> float:
        """Train from the task's start; return the validation score. The weights stay in the model."""
        hand, settings = self.hand, self.learner.settings
        P.restore(hand.model, hand.start)
        self.made, self.left = self.made + 1, self.left - 1
        with tempfile.TemporaryDirectory() as scratch:
            arguments = TrainingArguments(
                output_dir=scratch,
                num_train_epochs=settings.epochs,
                per_device_train_batch_size=settings.batch_size,
                learning_rate=lr,
                lr_scheduler_type="constant",
                max_grad_norm=0.0,
                save_strategy="no",
                report_to=[],
                disable_tqdm=True,
                logging_strategy="no",
                remove_unused_columns=False,
                use_cpu=True,
            )
            collate = lambda rows: {"rows": torch.tensor(rows)}  # noqa: E731
            numbers: Any = list(range(len(hand.train)))
            model = Rows(hand, pull)
            trainer = Trainer(model, arguments, data_collator=collate, train_dataset=numbers)
            trainer.remove_callback(PrinterCallback)  # standard output is for the result
            trainer.train()
        hand.model.eval()
        return self.learner.score(hand.task.valid)

    def learn(self, task: Task) -> tuple[float, float]:
        """Learn a task; return the score on it and λ."""
        learner = self.learner
        hand = self.hand = learner.begin(task)
        scores = {lr: self.train(lr) for lr in learner.settings.rates}
        lr = max(scores, key=lambda one: scores[one])
        if not learner.tasks_seen:
            score = self.train(lr)
        else:
            past = {n: P.zeros({n: w})[n] for n, w in hand.start.items()}
            for name, value in self.alpha.items():  # rows of new labels have no past
                past[name][tuple(slice(size) for size in value.shape)] = value
            self.alpha = past
            largest = max(float(value.max()) for value in past.values())
            self.lam = self.lam or HIGHEST / (lr * largest)
            score, highest = self.strengths(lr, THR * scores[lr])
            score = self.loosened(lr, score, highest)
        own = importance.mas(learner.model, hand.train, batch_size=learner.settings.batch_size)
        self.alpha = pool(self.alpha, own, learner.tasks_seen) if self.alpha else own
        learner.tasks_seen += 1
        return score, self.lam

    def strengths(self, lr: float, least: float) -> tuple[float, float]:
        """Shrink λ until the score reaches thr of the best; return it and λ_max."""
        highest = self.lam
        if self.bisects:
            return self.bisected(lr, least)
        while True:
            score = self.train(lr, (self.hand.start, self.alpha, self.lam))
            if score <= DEAD:
                highest = self.lam
            if score >= least or not self.left:
                return score, highest
            self.lam *= 1 - DROP

    def bisected(self, lr: float, least: float) -> tuple[float, float]:
        """Find the same two λ by bisection, and count the trainings that walking to them takes."""
        start, past = self.lam, (self.hand.start, self.alpha)
        seen: dict[int, float] = {}

        def score(j: int) -> float:
            if j not in seen:
                seen[j] = self.train(lr, (*past, start * (1 - DROP) ** j))
            return seen[j]

        j = first(lambda j: score(j) >= least, WALK)
        dead = first(lambda i: score(i) > DEAD, j)  # the walk's last point without plasticity is before it
        self.skipped += j + 1 - len(seen)
        self.lam = start * (1 - DROP) ** j
        self.left = max(self.left, 1)  # loosening trains the weights that stay
        return score(j), start * (1 - DROP) ** max(dead - 1, 0)

    def loosened(self, lr: float, plain: float, highest: float) -> float:
        """Look ahead, then loosen λ_down and λ_up until the score is that of the plain λ."""
        if not self.left:
            return plain
        self.train(lr)
        ahead = importance.mas(self.hand.model, self.hand.train)
        trunk = {name: value for name, value in self.alpha.items() if not name.startswith("head.")}
        among = relative(trunk, ahead)
        down = m = 1.0
        scores: list[float] = []
        for _ in range(BUDGET):
            weights = modified(self.alpha, among, lam=self.lam, lam_max=highest, up=m, down=down)
            scores.append(self.train(lr, (self.hand.start, weights, self.lam)))
            if scores[-1] >= plain or not self.left:
                break
            if len(scores) > 1 and slope(scores) < EPSILON:
                m *= 1 - DROP
            else:
                down *= 1 - DROP
        return scores[-1]


def printed(model: str, stream: Stream, settings: Settings, most: int, bisects: bool) -> Row:
    """Learn two tasks by Algorithm 1 as printed."""
    algorithm = Printed(make_learner(model, stream, settings), most, bisects)
    began = time.process_time()
    for task in stream:
        new, lam = algorithm.learn(task)
    needed = algorithm.made + algorithm.skipped
    return {
        "seconds": (time.process_time() - began) * needed / algorithm.made,
        "trainings": needed,
        "trained": algorithm.made,
        "new": new,
        "old": algorithm.learner.score(stream.tasks[0].valid),
        "lam": lam,
        "ended": algorithm.left > 0,
    }


def rows(
    model: str, stream: Stream, changes: dict[str, Any], most: int, bisects: bool
) -> Iterator[tuple[str, Row]]:
    """Yield the measurements, the quick ones first."""
    usual = dataclasses.replace(preset("small"), **changes)
    stable = dataclasses.replace(preset("small", "stable"), **changes)
    yield "stable", planned(model, stream, stable)
    for engine in ("bisect", "linear"):
        settings = dataclasses.replace(usual, engine=engine, lam_trials=None)
        yield f"paper, {engine}", planned(model, stream, settings)
    yield "printed", printed(model, stream, usual, most, bisects)


def main() -> None:
    """Print seconds, trainings and validation scores of each search."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
    arguments.add_argument("--stream", default="hwu64")
    arguments.add_argument("--order", default="Split3,Split0", help="two tasks")
    arguments.add_argument("--model", default="minilm")
    arguments.add_argument("--epochs", type=int, help="default: the preset's")
    arguments.add_argument("--most", type=int, default=250, help="most trainings of the printed algorithm")
    arguments.add_argument("--bisect", action="store_true", help="estimate the time of the printed walk")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    settings = preset("small")
    stream = load_stream(chosen.stream, order=chosen.order, data_dir=chosen.data_dir)
    stream = stream.capped(train=settings.train_per_class, valid=settings.valid_per_class)
    stream = dataclasses.replace(stream, tasks=stream.tasks[:2])
    changes = {} if chosen.epochs is None else {"epochs": chosen.epochs}
    found: dict[str, Row] = {}
    for name, row in rows(chosen.model, stream, changes, chosen.most, chosen.bisect):
        found[name] = row
        if not chosen.json:
            print(name, "  ".join(f"{key} {value:.4g}" for key, value in row.items()), flush=True)
    ratio = found["printed"]["seconds"] / found["stable"]["seconds"]
    print(json.dumps({**found, "times_stable": ratio}) if chosen.json else f"printed / stable: {ratio:.1f}")


if __name__ == "__main__":
    main()

"""Measure speed and memory as ratios to a stated reference in the same run.

    python benchmarks/speed.py [--json] [--data-dir DIR] [--sentences N] [--repeats N] [--model M]

Compares samples per second of `fit` with a bare loop on the same batches, with the Hugging Face Trainer
(grouping by length, and plain dynamic padding), and with padding everything to 128 tokens. Also measures the
cost of the penalty per step, per-sample importance against one training epoch, and peak memory of `la`
against `seq`. Repeats are interleaved and ratios are of medians, so that a busy machine affects all alike.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch import nn
from transformers import DataCollatorWithPadding, PrinterCallback, Trainer, TrainingArguments

from holdfast import METHODS, build_classifier, importance
from holdfast.data import load_stream
from holdfast.data.batches import Batch
from holdfast.errors import HoldfastError
from holdfast.learning.at_hand import AtHand
from holdfast.learning.fit import fit
from holdfast.learning.learner import Learner
from holdfast.maths import params as P
from holdfast.maths.equations import quadratic_penalty
from holdfast.settings import Settings

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
BATCH = 32
SETTINGS = Settings(batch_size=BATCH, epochs=1)
BARS = {
    "fit_vs_bare": (">=", 0.90),
    "fit_vs_trainer": (">=", 1.0),
    "fit_vs_trainer_plain": (">=", 1.4),
    "fit_vs_pad128": (">=", 10),
    "penalty_overhead": ("<=", 0.05),
    "importance_vs_epoch": ("<=", 2),
    "memory_la_vs_seq": ("<=", 1.5),
}


class Plain(nn.Module):
    """The same model in the form that a Trainer expects: one forward per batch, loss from labels."""

    def __init__(self, hand: AtHand) -> None:
        super().__init__()
        self.model = hand.model
        self.objective = hand.train.objective

    def forward(self, input_ids, attention_mask, labels):
        features = self.model.vectors(Batch(input_ids, attention_mask, labels))
        logits = self.model.head(self.model.dropout(features))
        return {"loss": self.objective(logits, labels), "logits": logits}


class Contest:
    def __init__(self, sentences: int, data_dir: Path | None, model: str) -> None:
        try:
            task = load_stream("hwu64", order="Split0", data_dir=data_dir).tasks[0]
        except HoldfastError:
            task = load_stream("home", order="home-1").tasks[0]
        self.name = task.name
        per_class = max(1, sentences // len(task.labels))
        task = task.capped(train=per_class, valid=1)
        self.learner = Learner(build_classifier(model), METHODS["mas"](), settings=SETTINGS)
        self.hand = self.learner.begin(task)
        self.training = self.learner.method.prepare(self.hand, task)
        self.start = P.snapshot(self.learner.model)
        self.model, self.train, self.valid = self.learner.model, self.hand.train, self.hand.valid

    def fresh(self) -> None:
        P.restore(self.model, self.start)
        self.model.train()

    def fit(self) -> float:
        result = fit(
            self.model,
            self.training,
            self.train,
            self.valid,
            SETTINGS,
            seed=0,
            accelerator=self.learner.accelerator,
        )
        return result.samples / result.seconds

    def loop(self, batches: list[Batch], features) -> float:
        weights = P.trainable(self.model)
        optimizer = self.training.make_optimizer(weights, self.learner.settings)
        started = time.perf_counter()
        for batch in batches:
            logits = self.model.head(self.model.dropout(features(batch)))
            loss = self.train.objective(logits, batch.labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return sum(map(len, batches)) / (time.perf_counter() - started)

    def bare(self) -> float:
        batches = list(self.train.batches(BATCH, torch.Generator().manual_seed(0)))
        return self.loop(batches, self.model.features)

    def pad128(self) -> float:
        some = list(self.train.batches(BATCH, torch.Generator().manual_seed(0)))[:3]
        return self.loop([padded(batch, 128, self.train.pad) for batch in some], self.model.vectors)

    def trainer(self, strategy: str) -> float:
        rows = [
            {"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": label}
            for tokens, label in zip(self.train.tokens, self.train.labels, strict=True)
        ]
        with tempfile.TemporaryDirectory() as out:
            arguments = TrainingArguments(
                out,
                per_device_train_batch_size=BATCH,
                num_train_epochs=1,
                learning_rate=3e-4,
                train_sampling_strategy=strategy,
                save_strategy="no",
                logging_strategy="no",
                report_to=[],
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            )
            collator = DataCollatorWithPadding(self.model.tokenizer)
            trainer = Trainer(Plain(self.hand), arguments, data_collator=collator, train_dataset=rows)
            trainer.remove_callback(PrinterCallback)  # it writes to stdout, which is reserved for the JSON
            done = trainer.train()
        return len(rows) / done.metrics["train_runtime"]

    def importance(self) -> float:
        started = time.perf_counter()
        importance.mas(self.model, self.train, batch_size=BATCH)
        return len(self.train) / (time.perf_counter() - started)

    def penalty(self) -> float:
        """Return penalties per second: forward, backward and accumulation into existing gradients."""
        live, anchor = P.trainable(self.model), P.snapshot(self.model)
        weights = {name: torch.rand_like(value) for name, value in anchor.items()}
        quadratic_penalty(dict(live), anchor, weights, 1.0).backward()
        started = time.perf_counter()
        for _ in range(20):
            quadratic_penalty(dict(live), anchor, weights, 1.0).backward()
        took = time.perf_counter() - started
        self.model.zero_grad(set_to_none=True)
        return 20 / took


def padded(batch: Batch, length: int, pad: int) -> Batch:
    missing = (0, length - batch.input_ids.shape[1])
    ids = nn.functional.pad(batch.input_ids, missing, value=pad)
    return Batch(ids, nn.functional.pad(batch.attention_mask, missing), batch.labels, batch.objective)


def peak_memory(model: str, method: str, *extra: str) -> int:
    """Return the peak memory of a process that learns two tasks."""
    words = f"run --method {method} --stream home --order home-1,home-2 --preset quick --set epochs=1"
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "holdfast", *words.split(), "--set", "lr=3e-3", "--model", model]
        subprocess.run([*command, "--out", out, *extra], check=True, capture_output=True)
        return json.loads(next(Path(out).glob("*.json")).read_text())["peak_memory"]


def measure(sentences: int, repeats: int, data_dir: Path | None, model: str) -> dict[str, float]:
    contest = Contest(sentences, data_dir, model)
    contenders = {
        "fit": contest.fit,
        "bare": contest.bare,
        "trainer": lambda: contest.trainer("group_by_length"),
        "trainer_plain": lambda: contest.trainer("random"),
        "pad128": contest.pad128,
        "importance": contest.importance,
        "penalty": contest.penalty,
    }
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for repeat in range(repeats):
        for name, run in contenders.items():
            contest.fresh()
            rates[name].append(run())
            print(
                f"repeat {repeat + 1}/{repeats} {name}: {rates[name][-1]:.1f}/s", file=sys.stderr, flush=True
            )
    rate = {name: statistics.median(values) for name, values in rates.items()}
    held = ("--set", "lam=1", "--set", "down=1", "--set", "up=1")
    return {
        "fit_vs_bare": rate["fit"] / rate["bare"],
        "fit_vs_trainer": rate["fit"] / rate["trainer"],
        "fit_vs_trainer_plain": rate["fit"] / rate["trainer_plain"],
        "fit_vs_pad128": rate["fit"] / rate["pad128"],
        "penalty_overhead": rate["fit"] / BATCH / rate["penalty"],
        "importance_vs_epoch": rate["fit"] / rate["importance"],
        "memory_la_vs_seq": peak_memory(model, "la", *held) / peak_memory(model, "seq"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print the ratios as one JSON object")
    parser.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
    parser.add_argument("--sentences", type=int, default=960)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--model", default="minilm")
    options = parser.parse_args()
    ratios = measure(options.sentences, options.repeats, options.data_dir, options.model)
    if options.json:
        print(json.dumps(ratios))
        return
    for name, value in ratios.items():
        sign, bar = BARS[name]
        fine = value >= bar if sign == ">=" else value <= bar
        print(f"{name:22} {value:7.3f}   target {sign} {bar}   {'ok' if fine else 'MISSED'}")


if __name__ == "__main__":
    main()

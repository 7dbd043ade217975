"""Measure the cost of the everyday tool relative to the bare encoder.

learn_vs_embedding: time to learn 2,000 utterances with a frozen-encoder learner in a directory (sums, choice
of the shrinkage, cross-validation, a committed generation) / time to embed them with the bare encoder.
predict_vs_encoder: predictions per second / sentences per second of the bare encoder loop.
few_seconds: time that a lesson of 50 sentences takes beyond embedding them.
--labels deals the sentences out to so many labels, to see what predicting costs with many of them.
Each time is the best of three turns, which alternate so that a busy machine slows both sides.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--sentences", type=int, default=2000)
parser.add_argument("--model", default="minilm")
parser.add_argument("--method", default="auto")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--labels", type=int, default=0, help="deal the sentences out to so many labels")
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)

import torch  # noqa: E402

from holdfast.data import load_stream  # noqa: E402
from holdfast.learning.learner import Learner  # noqa: E402
from holdfast.models.sources import load_encoder  # noqa: E402

torch.set_num_threads(options.threads)
encoder, tokenizer = load_encoder(options.model)
encoder.eval()


@torch.no_grad()
def bare(texts: list[str]) -> None:
    """Embed texts in a plain loop: sort by length, pad each batch to its longest, average the tokens."""
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), 64):
        rows = [texts[i] for i in order[start : start + 64]]
        batch = tokenizer(rows, padding=True, truncation=True, max_length=128, return_tensors="pt")
        tokens = encoder(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        (tokens * mask).sum(1) / mask.sum(1)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


tasks = load_stream("home").tasks
pairs = [pair for task in tasks for pair in zip(task.train.texts, task.train.labels, strict=True)]
pairs = (pairs * (1 + options.sentences // len(pairs)))[: options.sentences]
texts, labels = [text for text, _ in pairs], [label for _, label in pairs]
if options.labels:
    labels = [f"label {place % options.labels}" for place in range(len(texts))]

with tempfile.TemporaryDirectory() as place:
    known = [pair for task in tasks for pair in zip(task.valid.texts, task.valid.labels, strict=True)]

    def learn(turn: int) -> float:
        learner = Learner.create(options.model, options.method)
        learner.learn([text for text, _ in known], [label for _, label in known])
        learner.save(Path(place) / str(turn))
        learner = Learner.load(Path(place) / str(turn))

        def lesson() -> None:
            learner.learn(texts, labels)
            learner.save(Path(place) / str(turn))

        return seconds(lesson)

    def few(turn: int) -> float:
        """Return the seconds of a small lesson beyond embedding it."""
        learner = Learner.load(Path(place) / str(turn))

        def lesson() -> None:
            learner.learn(texts[:50], labels[:50], name="few")
            learner.save(Path(place) / str(turn))

        return seconds(lesson) - seconds(lambda: bare(texts[:50]))

    learner = Learner.create(options.model, options.method)
    learner.learn(texts, labels)
    bare(texts[:200])  # warm-up
    turns = [
        (seconds(lambda: bare(texts)), learn(turn), seconds(lambda: learner.predict_proba(texts)), few(turn))
        for turn in range(options.turns)
    ]

embedding, learning, predicting, small = (min(column) for column in zip(*turns, strict=True))
found = {
    "sentences": len(texts),
    "method": options.method,
    "labels": len(learner.classes_),
    "embedding_per_second": round(len(texts) / embedding, 1),
    "learn_vs_embedding": round(learning / embedding, 3),
    "predict_vs_encoder": round(embedding / predicting, 3),
    "few_seconds": round(small, 3),
}
print(json.dumps(found, indent=1) if options.json else "\n".join(f"{k}: {v}" for k, v in found.items()))

"""Measure what the sums of a state give away about the sentences behind them.

membership: from a class's S = Σ z zᵀ alone, decide whether a sentence was taught. A vector that was summed
lies in the column space of S, so its residual outside that space is 0. The AUC is over taught sentences and
others of the same stream; 0.5 is guessing. difference: two generations one sentence apart; cosine between
the difference of their sums and the vector of that sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import random

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--model", default="minilm")
parser.add_argument("--stream", default="home")
parser.add_argument("--sizes", type=int, nargs="+", default=[1, 10, 100, 300, 380, 390, 500, 1000])
parser.add_argument("--others", type=int, default=200)
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from holdfast.data import load_stream  # noqa: E402
from holdfast.heads.sums import ClassSums  # noqa: E402
from holdfast.models import build_classifier  # noqa: E402

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))


def residual(square: Tensor, vectors: Tensor) -> Tensor:
    """Return the share of each vector that lies outside the column space of a matrix."""
    values, directions = torch.linalg.eigh(square)
    kept = directions[:, values > 1e-9 * values.max()]
    return (vectors - vectors @ kept @ kept.T).norm(dim=1) / vectors.norm(dim=1)


def auc(taught: Tensor, others: Tensor) -> float:
    """Return the probability that a taught sentence has the smaller residual; ties count half."""
    smaller = (taught[:, None] < others[None]).double() + 0.5 * (taught[:, None] == others[None]).double()
    return float(smaller.mean())


def summed(vectors: Tensor) -> ClassSums:
    """Return the sums of one class."""
    sums = ClassSums(vectors.shape[1])
    sums.grow(1)
    sums.add(vectors, torch.zeros(len(vectors), dtype=torch.long))
    return sums


stream = load_stream(options.stream)
texts = sorted({text for task in stream for part in (task.train, task.valid) for text in part.texts})
random.Random(0).shuffle(texts)
most = min(max(options.sizes), len(texts) - options.others)
model = build_classifier(options.model)
vectors = model.embed(texts[: most + options.others]).double()
others, width = vectors[most:], vectors.shape[1]
found: dict[str, float] = {}
for size in sorted({min(size, most) for size in options.sizes}):
    square = summed(vectors[:size]).moments()
    # Rounding leaves residuals of about 1e-8; below 1e-5 they count as 0.
    inside, outside = (residual(square, part).clamp(min=1e-5) for part in (vectors[:size], others))
    found[str(size)] = round(auc(inside, outside), 3)
before, after = summed(vectors[:50]), summed(vectors[:51])
difference = (after.sums - before.sums)[0]
cosine = float(torch.nn.functional.cosine_similarity(difference, vectors[50], dim=0))
if options.json:
    print(json.dumps({"width": width, "membership": found, "difference": round(cosine, 6)}))
else:
    print(f"| sentences of the class (d = {width}) | AUC of membership |\n|---:|---:|")
    for size_, value in found.items():
        print(f"| {size_} | {value:.3f} |")
    print(f"cosine of the difference of two generations and the sentence between them: {cosine:.6f}")

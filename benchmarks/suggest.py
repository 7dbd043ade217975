"""Measure whether `suggest` finds intents that were never taught, on CLINC150.

Ten intents are hidden: the learner is taught the others and sees the validation sentences of all 150, with
the 100 out-of-scope ones, as unlabelled traffic. Recorded for each seed, a choice of hidden intents:

covered    hidden intents among the first 50 suggestions
read       suggestions, in their order, until ten lines of every hidden intent have been read
few        macro-F1 of the hidden intents on the test sentences of all, taught those ten lines of each
all        the same with all their training sentences
ratio      few / all
random     `few` with ten random lines of the traffic for each hidden intent

The rule was chosen with --development: intents of the other half, taught 40 sentences and tested on the last
ten training sentences. The seeds of the two halves share no hidden intent.

    python benchmarks/suggest.py --data-dir DATA --out results/suggest
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch

from holdfast.data import load_stream
from holdfast.data.clinc import out_of_scope
from holdfast.data.tasks import Split
from holdfast.everyday.suggest import suggest
from holdfast.learning.learner import Learner
from holdfast.maths.metrics import label_scores
from holdfast.storage.cache import data_home
from holdfast.storage.files import write_json

torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
Pairs = list[tuple[str, str]]
BARS = {"covered": 9, "ratio": 0.85}  # at least
OUTSIDE = "(out of scope)"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
parser.add_argument("--model", default="minilm")
parser.add_argument("--seeds", type=int, default=10)
parser.add_argument("--hidden", type=int, default=10, help="intents that are hidden")
parser.add_argument("--first", type=int, default=50, help="suggestions in which they are looked for")
parser.add_argument("--lines", type=int, default=10, help="lines of each that are labelled")
parser.add_argument(
    "--development", action="store_true", help="the intents and sentences that chose the rule"
)
parser.add_argument("--out", type=Path, default=Path("runs/suggest"))
parser.add_argument("--json", action="store_true")
options = parser.parse_args()


class Memo:
    """Sentence vectors of an encoder that does not change, computed once."""

    def __init__(self, embed: Callable[..., torch.Tensor]) -> None:
        self.embed, self.known = embed, dict[str, torch.Tensor]()

    def __call__(self, texts: Sequence[str], *_: Any, **__: Any) -> torch.Tensor:
        new = [text for text in dict.fromkeys(texts) if text not in self.known]
        if new:
            self.known.update(zip(new, self.embed(new), strict=True))
        return torch.stack([self.known[text] for text in texts]) if len(texts) else self.embed(texts)


def pairs_of(split: Split) -> Pairs:
    return list(zip(split.texts, split.labels, strict=True))


def world() -> tuple[list[str], Pairs, Pairs, Pairs]:
    """Return the intents to hide some of, and the rows to teach, to see as traffic and to test on."""
    stream = load_stream("clinc150", data_dir=options.data_dir)
    labels = sorted(stream.labels)
    Random("intents").shuffle(labels)
    middle = len(labels) // 2
    train, valid, test = (
        sorted(pair for task in stream for pair in pairs_of(getattr(task, part)))
        for part in ("train", "valid", "test")
    )
    if options.development:
        Random("rows").shuffle(train)
        counts: dict[str, int] = {}
        numbered = []
        for text, label in train:
            counts[label] = counts.get(label, 0) + 1
            numbered.append((counts[label], (text, label)))
        most = max(counts.values()) * 4 // 5
        train, test = ([row for n, row in numbered if (n <= most) == keep] for keep in (True, False))
    outside = out_of_scope(data_home(options.data_dir))["valid"]
    traffic = valid + [(text, OUTSIDE) for text in outside]
    return labels[:middle] if options.development else labels[middle:], train, traffic, test


def hidden_f1(learner: Learner, lesson: Pairs, hidden: Sequence[str], test: Pairs, state: Any) -> float:
    """Teach a lesson, return the mean F1 of the hidden intents, and go back."""
    learner.learn([text for text, _ in lesson], [label for _, label in lesson])
    predicted = learner.probabilities(learner.model.embed([text for text, _ in test])).argmax(1)
    named = [learner.classes_[row] for row in predicted.tolist()]
    scores = label_scores([label for _, label in test], named)
    learner.load_state(*state)
    return sum(scores[label][2] for label in hidden) / len(hidden)


def measured(seed: int, intents: list[str], train: Pairs, traffic: Pairs, test: Pairs, memo: Any) -> Any:
    hidden = sorted(Random(f"hidden {seed}").sample(intents, options.hidden))
    learner = Learner.create(options.model, sentences=0, seed=seed)
    memo = memo or Memo(learner.model.embed)
    learner.model.embed = memo  # type: ignore[method-assign]
    known = [row for row in train if row[1] not in hidden]
    learner.learn([text for text, _ in known], [label for _, label in known])
    assert not learner.model.adapted, "the encoder has changed, and the memo is out of date"
    lines = list(traffic)
    Random(seed).shuffle(lines)
    gold = dict(lines)
    began = time.perf_counter()
    every = suggest(learner, [text for text, _ in lines], n=len(lines))
    seconds = time.perf_counter() - began
    first = suggest(learner, [text for text, _ in lines], n=options.first)
    covered = {gold[one.text] for one in first} & {*hidden}
    chosen: dict[str, list[str]] = {label: [] for label in hidden}
    read = 0
    for number, one in enumerate(every, start=1):
        own = chosen.get(gold[one.text])
        if own is not None and len(own) < options.lines:
            own.append(one.text)
            read = number
    state = learner.state()
    lesson = [(text, label) for label in hidden for text in chosen[label]]
    own = {label: [text for text, its in lines if its == label] for label in hidden}
    drawn = Random(seed)
    random = [
        (t, label) for label in hidden for t in drawn.sample(own[label], min(options.lines, len(own[label])))
    ]
    whole = [row for row in train if row[1] in hidden]
    few, some, full = (hidden_f1(learner, rows, hidden, test, state) for rows in (lesson, random, whole))
    found = {
        "seed": seed, "hidden": hidden, "covered": len(covered), "missed": sorted({*hidden} - covered),
        "lines": min(map(len, chosen.values())), "read": read, "traffic": len(lines),
        "few": round(few, 4), "random": round(some, 4), "all": round(full, 4),
        "ratio": round(few / max(full, 1e-9), 4), "seconds": round(seconds, 2),
    }  # fmt: skip
    return found, memo


def main() -> None:
    intents, train, traffic, test = world()
    found, memo = [], None
    for seed in range(options.seeds):
        one, memo = measured(seed, intents, train, traffic, test, memo)
        found.append(one)
        print({k: v for k, v in one.items() if k != "hidden"}, file=sys.stderr, flush=True)
        result = record(found)
        write_json(options.out / ("development.json" if options.development else "clinc150.json"), result)
    print(json.dumps(result, indent=1) if options.json else table(found))


def record(found: list[dict[str, Any]]) -> dict[str, Any]:
    bars = {}
    for name, bar in BARS.items():
        values = [one[name] for one in found]
        mean = round(sum(values) / len(values), 4)
        bars[name] = {"bar": bar, "mean": mean, "worst": min(values), "met_by": sum(v >= bar for v in values)}
    return {
        "what": __doc__.partition("\n")[0], "stream": "clinc150", "model": options.model,
        "intents": "development" if options.development else "reported", "first": options.first,
        "bars": bars, "seeds": found,
    }  # fmt: skip


def table(found: list[dict[str, Any]]) -> str:
    columns = ("covered", "read", "few", "random", "all", "ratio")
    lines = ["| seed | " + " | ".join(columns) + " |", "|---|" + "---:|" * len(columns)]
    for one in found:
        lines.append(f"| {one['seed']} | " + " | ".join(str(one[name]) for name in columns) + " |")
    means = [f"{sum(one[name] for one in found) / len(found):.3g}" for name in columns]
    return "\n".join([*lines, "| mean | " + " | ".join(means) + " |"])


main()

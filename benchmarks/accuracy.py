"""Compare the everyday default with its peers on a stream of fine-grained intents: one table, one encoder.

default       Learner.create(model), one lesson per task, saved after each
exact         the same with scatter=per-class: labels can be removed exactly
slda          the same with the method `slda`
nearest-mean  nearest class mean
sgd           scikit-learn's SGDClassifier(loss="log_loss").partial_fit, one pass over each lesson, told all
              labels in advance
adaptive      the package adaptive-classifier with its own settings, in torch, if it is installed (version
              0.3.1 runs offline on the encoder's folder); it keeps the sentences it has learnt
logistic      joint logistic regression, C from 0.1, 1, 10, 100 by macro-F1 on the validation sentences
logistic-own  the same on the vectors that the default reads, where they are others
setfit        SetFit's recipe with a small budget: --pairs pairs of training sentences, half of them of one
              label, squared error of their cosine, one pass of AdamW (2e-5, batches of 16, a tenth of
              warm-up), then `logistic` on the tuned encoder

The last three are joint: they learn all tasks at once, and only their last score exists. Only they see
validation sentences, all of them at every number of shots. nearest-mean, sgd and logistic read the mean of
the last layer's tokens, L2-normalised. The score is macro-F1 on the test sentences of all tasks so far.

seconds       learning, with embedding the training sentences and saving
state         what is kept to learn the next lesson: one generation; for joint methods also the sentences
directory     a learner's whole directory, with the generations it keeps

For the default and exact also: the area under the ROC curve between test sentences in and out of scope
(clinc150 only), the share of test sentences in scope that `is_unknown` rejects, the share whose label is in
the set of `predict_set`, and the expected calibration error of `predict_proba` (15 bins of equal width).

--kept reads the default's sentence vectors from a file, which the first run writes; everything after the
encoder is the product's own. Seconds then lack embedding. --orders 10 teaches the default the stream in
orders 1 to 10, from kept vectors, and shows how much macro-F1 depends on the order.

Each result is written to a file under --out and reused; --again measures the chosen ones again.

    python benchmarks/accuracy.py --stream clinc150 --data-dir DATA
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

LEVELS = (0.80, 0.90, 0.95, 0.99)
CS = (0.1, 1.0, 10.0, 100.0)
BINS = 15
ORDER = ("default", "exact", "slda", "nearest-mean", "sgd", "adaptive", "logistic", "logistic-own", "setfit")


def shots(word: str) -> str:
    """Return a number of sentences a label, or "all"."""
    if word != "all" and int(word) < 1:
        raise ValueError
    return word


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--stream", default="clinc150", help="clinc150, hwu64 or any other")
parser.add_argument("--order", default="1")
parser.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
parser.add_argument("--model", default="minilm")
parser.add_argument(
    "--shots", nargs="+", type=shots, default=["1", "5", "10", "all"], help="training sentences a label"
)
parser.add_argument("--methods", nargs="+", choices=ORDER, default=list(ORDER))
parser.add_argument("--pairs", type=int, default=4000)
parser.add_argument("--seed", type=int, default=0, help="of the chosen shots and of every method")
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--out", type=Path, default=Path("runs/accuracy"))
parser.add_argument("--again", action="store_true")
parser.add_argument("--kept", action="store_true", help="read the default's vectors from a file")
parser.add_argument("--orders", type=int, default=0, help="measure the default in so many orders instead")
parser.add_argument("--json", action="store_true")
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = str(options.threads)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.linear_model import LogisticRegression, SGDClassifier  # noqa: E402
from sklearn.metrics import roc_auc_score  # noqa: E402

from holdfast.data import STREAMS, Split, Stream, Task, digest, load_stream  # noqa: E402
from holdfast.data.clinc import out_of_scope  # noqa: E402
from holdfast.errors import HoldfastError  # noqa: E402
from holdfast.learning.learner import Learner  # noqa: E402
from holdfast.maths.metrics import macro_f1  # noqa: E402
from holdfast.models.sources import folder_digest, is_own, load_encoder, resolve  # noqa: E402
from holdfast.storage.cache import data_home  # noqa: E402
from holdfast.storage.files import read_json, write_json  # noqa: E402

torch.set_num_threads(options.threads)
warnings.filterwarnings("ignore", "The number of unique classes is greater than 50%")  # one shot
Result = dict[str, Any]


# ---- sentences and vectors --------------------------------------------------------------------------------


def few(split: Split, count: str) -> Split:
    """Return a seeded choice of so many sentences of each label, in their order; "all" keeps them all."""
    if count == "all":
        return split
    places: dict[str, list[int]] = {}
    for place, label in enumerate(split.labels):
        places.setdefault(label, []).append(place)
    kept: set[int] = set()
    for label, own in places.items():
        kept.update(random.Random(f"{options.seed}/{label}").sample(own, min(int(count), len(own))))
    return Split.of([(split.texts[i], split.labels[i]) for i in sorted(kept)])


def joined(splits: Sequence[Split]) -> Split:
    return Split.of([pair for one in splits for pair in zip(one.texts, one.labels, strict=True)])


def normalised(vectors: np.ndarray) -> np.ndarray:
    """Return rows of length one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def last_layer(encoder: Any, tokenizer: Any, texts: Sequence[str]) -> torch.Tensor:
    """Return the mean of the last layer over the tokens of each text."""
    batch = tokenizer(list(texts), padding=True, truncation=True, max_length=128, return_tensors="pt")
    tokens = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"].unsqueeze(-1)
    mean: torch.Tensor = (tokens * mask).sum(1) / mask.sum(1)
    return mean


@torch.no_grad()
def embedded(encoder: Any, tokenizer: Any, texts: Sequence[str]) -> np.ndarray:
    """Return the normalised vectors of texts, computed in batches of similar length."""
    encoder.eval()
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    found = torch.empty(len(texts), encoder.config.hidden_size)
    for start in range(0, len(order), 64):
        places = order[start : start + 64]
        found[places] = last_layer(encoder, tokenizer, [texts[i] for i in places])
    return normalised(found.numpy())


class Vectors:
    """Normalised vectors of all sentences, computed once and kept in a file."""

    def __init__(self, embed: Callable[[Sequence[str]], np.ndarray], texts: Sequence[str]) -> None:
        texts = sorted(set(texts))
        self.rows = {text: row for row, text in enumerate(texts)}
        self.probe = embed(texts[:8])
        # The vectors themselves name the file: another encoder, or a later way of reading it, has another.
        name = hashlib.sha256(json.dumps(texts).encode() + self.probe.tobytes()).hexdigest()[:16]
        path = options.out / f"vectors-{name}.npz"
        if not path.is_file():
            began = time.perf_counter()
            values = embed(texts)
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_suffix(f".{os.getpid()}.npz")
            np.savez(partial, values=values, seconds=(time.perf_counter() - began) / len(texts))
            os.replace(partial, path)
        with np.load(path) as kept:
            self.values, self.seconds = kept["values"], float(kept["seconds"])

    def of(self, texts: Sequence[str]) -> np.ndarray:
        found: np.ndarray = self.values[[self.rows[text] for text in texts]]
        return found

    def same(self, other: Vectors) -> bool:
        return self.probe.shape == other.probe.shape and np.allclose(self.probe, other.probe, atol=1e-5)


@dataclass
class Data:
    """The stream, the sentences out of scope, and the vectors of all of them."""

    stream: Stream
    outside: tuple[str, ...]

    @property
    def texts(self) -> list[str]:
        parts = [part for task in self.stream for part in (task.train, task.valid, task.test)]
        return [text for part in parts for text in part.texts]

    @cached_property
    def last(self) -> Vectors:
        encoder, tokenizer = load_encoder(options.model)
        return Vectors(lambda texts: embedded(encoder, tokenizer, texts), self.texts)

    @cached_property
    def own(self) -> Vectors:
        """The vectors that the default reads, divided by their length."""
        model = Learner.create(options.model).model
        return Vectors(lambda texts: normalised(model.embed(texts).numpy()), self.texts)

    @cached_property
    def read(self) -> Vectors:
        """The vectors that the default reads."""
        model = Learner.create(options.model).model
        return Vectors(lambda texts: model.embed(texts).numpy(), [*self.texts, *self.outside])


# ---- the methods ------------------------------------------------------------------------------------------


class Peer(Protocol):
    """A classifier that learns lessons."""

    joint: bool

    def learn(self, task: Task) -> None:
        """Learn one lesson; a joint one is taught everything in a single lesson."""

    def predict(self, texts: Sequence[str]) -> list[str]:
        """Return the label of each text."""

    def state(self) -> Result:
        """Return the bytes that are kept."""


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@dataclass
class Ours:
    """A learner in a directory."""

    method: str
    folder: Path
    kept: Vectors | None = None
    """Vectors that are read from a file instead of computed."""
    wishes: dict[str, Any] = field(default_factory=dict)
    joint = False

    def __post_init__(self) -> None:
        self.learner = Learner.create(options.model, self.method, seed=options.seed, **self.wishes)
        if kept := self.kept:

            def embed(texts: Sequence[str], *_: Any, **__: Any) -> torch.Tensor:
                return torch.from_numpy(kept.of(texts))

            self.learner.model.embed = embed  # type: ignore[method-assign]
        self.memo: dict[str, torch.Tensor] = {}
        self.probe: torch.Tensor | None = None

    def learn(self, task: Task) -> None:
        self.learner.learn(task.train.texts, task.train.labels)
        self.learner.save(self.folder)
        if self.kept and self.learner.model.adapted:
            raise SystemExit("the encoder has moved, kept vectors are stale; measure without --kept")

    def vectors(self, texts: Sequence[str]) -> torch.Tensor:
        """Return the vectors of texts; they are computed once while the encoder is unchanged."""
        probe = self.learner.model.embed(texts[:8])
        if self.probe is None or not torch.equal(probe, self.probe):
            self.memo.clear()
        self.probe = probe
        new = [text for text in dict.fromkeys(texts) if text not in self.memo]
        self.memo.update(zip(new, self.learner.model.embed(new), strict=True))
        return torch.stack([self.memo[text] for text in texts])

    def predict(self, texts: Sequence[str]) -> list[str]:
        rows = self.learner.probabilities(self.vectors(texts)).argmax(1)
        return [self.learner.classes_[row] for row in rows]

    def state(self) -> Result:
        generation = self.folder / f"generation-{self.learner.generation:06}"
        return {"state": size_of(generation), "directory": size_of(self.folder)}


@dataclass
class OnVectors:
    """A peer that reads fixed vectors."""

    vectors: Vectors
    joint = False
    spent: float = field(default=0.0, init=False)
    """Seconds of embedding: the vectors are computed once for all peers."""

    def embed(self, task: Task) -> np.ndarray:
        self.spent += self.vectors.seconds * len(task.train)
        return self.vectors.of(task.train.texts)


class NearestMean(OnVectors):
    def __init__(self, vectors: Vectors) -> None:
        super().__init__(vectors)
        self.sums: dict[str, np.ndarray] = {}
        self.counts: dict[str, int] = {}

    def learn(self, task: Task) -> None:
        for vector, label in zip(self.embed(task), task.train.labels, strict=True):
            self.sums[label] = self.sums.get(label, 0.0) + vector.astype(np.float64)
            self.counts[label] = self.counts.get(label, 0) + 1

    def predict(self, texts: Sequence[str]) -> list[str]:
        labels = list(self.sums)
        means = np.stack([self.sums[label] / self.counts[label] for label in labels])
        nearest = (self.vectors.of(texts) @ means.T - 0.5 * (means**2).sum(1)).argmax(1)
        return [labels[i] for i in nearest]

    def state(self) -> Result:
        return {"state": sum(one.nbytes + 8 for one in self.sums.values())}


class SGD(OnVectors):
    def __init__(self, vectors: Vectors, labels: Sequence[str]) -> None:
        super().__init__(vectors)
        self.labels = sorted(labels)
        self.model = SGDClassifier(loss="log_loss", random_state=options.seed)

    def learn(self, task: Task) -> None:
        self.model.partial_fit(self.embed(task), task.train.labels, classes=self.labels)

    def predict(self, texts: Sequence[str]) -> list[str]:
        return [str(label) for label in self.model.predict(self.vectors.of(texts))]

    def state(self) -> Result:
        return {"state": self.model.coef_.nbytes + self.model.intercept_.nbytes}


def logistic(
    train: np.ndarray, labels: Sequence[str], valid: np.ndarray, gold: Sequence[str]
) -> tuple[Any, float]:
    """Return the logistic regression with the best C on validation sentences, and this C."""
    found = []
    for c in CS:
        model = LogisticRegression(C=c, max_iter=300).fit(train, labels)
        found.append((macro_f1(gold, [str(label) for label in model.predict(valid)]), -c, model))
    _, c, model = max(found, key=lambda one: one[:2])
    return model, -c


def kept(model: Any, split: Split) -> int:
    """Return the bytes of a linear model and of the sentences that a joint method must keep."""
    texts = sum(len(text.encode()) for text in (*split.texts, *split.labels))
    return int(model.coef_.nbytes + model.intercept_.nbytes) + texts


class Logistic(OnVectors):
    joint = True

    def learn(self, task: Task) -> None:
        self.train = task.train
        valid = self.vectors.of(task.valid.texts)
        self.model, self.c = logistic(self.embed(task), task.train.labels, valid, task.valid.labels)

    def predict(self, texts: Sequence[str]) -> list[str]:
        return [str(label) for label in self.model.predict(self.vectors.of(texts))]

    def state(self) -> Result:
        return {"state": kept(self.model, self.train), "C": self.c}


class SetFit:
    """Contrastive fine-tuning of the encoder, then logistic regression."""

    joint = True

    def __init__(self) -> None:
        torch.manual_seed(options.seed)
        self.encoder, self.tokenizer = load_encoder(options.model)

    def pairs(self, split: Split) -> list[tuple[str, str, float]]:
        """Sample pairs, alternately of one label (perhaps one sentence with itself) and of two."""
        rng = random.Random(options.seed)
        groups: dict[str, list[str]] = {}
        for text, label in zip(split.texts, split.labels, strict=True):
            groups.setdefault(label, []).append(text)
        found = []
        for number in range(options.pairs):
            one, other = rng.sample(sorted(groups), 2)
            if number % 2:
                found.append((rng.choice(groups[one]), rng.choice(groups[other]), 0.0))
            else:
                found.append((rng.choice(groups[one]), rng.choice(groups[one]), 1.0))
        rng.shuffle(found)
        return found

    def learn(self, task: Task) -> None:
        self.train = task.train
        batches = [pairs[i : i + 16] for pairs in [self.pairs(task.train)] for i in range(0, len(pairs), 16)]
        optimiser = torch.optim.AdamW(self.encoder.parameters(), lr=2e-5, weight_decay=0.01)
        warm = max(1, len(batches) // 10)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser,
            lambda step: min((step + 1) / warm, (len(batches) - step) / max(1, len(batches) - warm)),
        )
        self.encoder.train()
        for batch in batches:
            left, right, wanted = zip(*batch, strict=True)
            vectors = last_layer(self.encoder, self.tokenizer, [*left, *right])
            cosine = torch.cosine_similarity(*vectors.split(len(batch)))
            optimiser.zero_grad()
            torch.nn.functional.mse_loss(cosine, torch.tensor(wanted)).backward()
            torch.nn.utils.clip_grad_norm_(self.encoder.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        train, valid = (self.embed(part.texts) for part in (task.train, task.valid))
        self.model, self.c = logistic(train, task.train.labels, valid, task.valid.labels)

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return embedded(self.encoder, self.tokenizer, texts)

    def predict(self, texts: Sequence[str]) -> list[str]:
        return [str(label) for label in self.model.predict(self.embed(texts))]

    def state(self) -> Result:
        weights = sum(one.numel() * one.element_size() for one in self.encoder.parameters())
        return {"state": kept(self.model, self.train) + weights, "C": self.c, "pairs": options.pairs}


class Adaptive:
    """The package adaptive-classifier; its `seed` and the order of the sentences decide its result."""

    joint = False

    def __init__(self, folder: Path) -> None:
        from adaptive_classifier import AdaptiveClassifier

        self.folder = folder
        np.random.seed(options.seed)
        # Its default, reading the kind of pooling from the hub, would give the mean too.
        config = {"max_length": 128, "pooling": "mean"}
        self.model = AdaptiveClassifier(
            resolve(options.model), config=config, seed=options.seed, use_onnx=False
        )

    def learn(self, task: Task) -> None:
        self.model.add_examples(list(task.train.texts), list(task.train.labels))
        self.model.save(str(self.folder), include_onnx=False)

    def predict(self, texts: Sequence[str]) -> list[str]:
        return [found[0][0] for found in self.model.predict_batch(list(texts), k=1)]

    def state(self) -> Result:
        return {"state": size_of(self.folder), "version": version("adaptive-classifier")}


def make(method: str, data: Data, folder: Path) -> Peer | None:
    """Return a new peer; None if it cannot be measured here."""
    if method in ("default", "exact"):
        wishes = {"scatter": "per-class"} if method == "exact" else {}
        return Ours("auto", folder / "learner", data.read if options.kept else None, wishes)
    if method == "slda":
        return Ours(method, folder / "learner")
    if method == "nearest-mean":
        return NearestMean(data.last)
    if method == "sgd":
        return SGD(data.last, data.stream.labels)
    if method == "logistic":
        return Logistic(data.last)
    if method == "logistic-own":
        if not data.own.same(data.last):
            return Logistic(data.own)
        say("logistic-own: the default reads the vectors of logistic")
        return None
    if method == "setfit":
        return SetFit()
    if find_spec("adaptive_classifier"):
        return Adaptive(folder / "adaptive")
    say("adaptive: the package adaptive-classifier is not installed; left out")
    return None


# ---- measuring --------------------------------------------------------------------------------------------


def measure(peer: Peer, data: Data, count: str) -> Result:
    """Teach the stream lesson by lesson and score after each."""
    tasks = [Task(task.name, few(task.train, count), task.valid, task.test) for task in data.stream]
    if peer.joint:
        train, valid, test = (joined([getattr(t, p) for t in tasks]) for p in ("train", "valid", "test"))
        tasks = [Task("all", train, valid, test)]
    seconds, after = 0.0, []
    for number, task in enumerate(tasks, start=1):
        began = time.perf_counter()
        peer.learn(task)
        seconds += time.perf_counter() - began
        seen = joined([one.test for one in tasks[:number]])
        after.append(round(100 * macro_f1(seen.labels, peer.predict(seen.texts)), 3))
    result = {"macro_f1": after[-1], "after": after, "seconds": seconds + getattr(peer, "spent", 0.0)}
    return result | peer.state()


def unknowns(peer: Ours, data: Data) -> Result:
    """Measure rejection and calibration of a learner that has learnt the whole stream."""
    inside, learner = joined([task.test for task in data.stream]), peer.learner
    found: Result = {"calibration_error": calibration_error(learner, inside)}
    near = peer.vectors(inside.texts)
    try:  # far_out is is_unknown on vectors
        found["rejected"] = {
            f"{level:.2f}": round(float(np.mean(learner.far_out(near, level))), 4) for level in LEVELS
        }
        found["covered"] = {f"{level:.2f}": covered(learner, inside, near, level) for level in LEVELS}
    except HoldfastError as error:  # too few sentences for validation
        return found | {"rejected": None, "reason": str(error)}
    if data.outside:
        scores = [farness(learner, vectors) for vectors in (near, learner.model.embed(data.outside))]
        gold = np.repeat([0, 1], [len(one) for one in scores])
        found["auroc"] = round(float(roc_auc_score(gold, np.concatenate(scores))), 4)
    return found


def covered(learner: Learner, split: Split, vectors: torch.Tensor, level: float) -> float:
    """Return the share of sentences whose label is in their prediction set."""
    sets = learner.sets(split.texts, learner.probabilities(vectors), level)
    return round(float(np.mean([gold in one for gold, one in zip(split.labels, sets, strict=True)])), 4)


def farness(learner: Learner, vectors: torch.Tensor) -> np.ndarray:
    """Return the distances that `is_unknown` compares with its threshold."""
    found: np.ndarray = learner.model.head.distances(vectors).numpy()
    return found


def calibration_error(learner: Learner, split: Split) -> float:
    """Return the mean gap between confidence and accuracy over bins of equal width, weighted by size."""
    probabilities = learner.predict_proba(split.texts)
    chosen, confidence = probabilities.argmax(1), probabilities.max(1)
    right = np.array([learner.classes_[i] for i in chosen]) == np.array(split.labels)
    bins = np.minimum((confidence * BINS).astype(int), BINS - 1)
    gaps = np.bincount(bins, weights=right - confidence, minlength=BINS)
    return round(float(np.abs(gaps).sum() / len(split)), 4)


def orders() -> None:
    """Teach the default the whole stream in several orders, from kept vectors; show the spread."""
    scores: dict[str, Result] = {}
    path = options.out / f"{options.stream}-orders-{options.model.replace('/', '--')}-seed{options.seed}.json"
    kept = None
    for order in map(str, range(1, options.orders + 1)):
        stream = load_stream(options.stream, order=order, data_dir=options.data_dir)
        data = Data(stream, ())
        kept = kept or data.read  # the sentences are the same in every order
        with tempfile.TemporaryDirectory() as folder:
            peer = Ours("auto", Path(folder) / "learner", kept)
            found = measure(peer, data, "all")
            found |= unknowns(peer, data)
        scores[order] = {key: value for key, value in found.items() if key not in ("seconds", "directory")}
        say(f"order {order}: {found['macro_f1']:.2f}")
        every = [one["macro_f1"] for one in scores.values()]
        spread = {"lowest": min(every), "highest": max(every), "mean": round(float(np.mean(every)), 3)}
        write_json(path, {**scores, "macro_f1": spread | {"range": round(max(every) - min(every), 3)}})
    print(json.dumps(read_json(path)["macro_f1"], indent=1))


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    if options.orders:
        return orders()
    place = data_home(options.data_dir)
    stream = load_stream(options.stream, order=options.order, data_dir=options.data_dir)
    outside = out_of_scope(place)["test"] if stream.name == "clinc150" else ()
    data = Data(stream, outside)
    model = folder_digest(options.model) if is_own(options.model) else options.model.replace("/", "--")
    words = "" if options.stream in STREAMS else f"-{digest(options.stream)}"
    path = options.out / f"{stream.name}{words}-order{options.order}-{model}-seed{options.seed}.json"
    results: dict[str, Result] = read_json(path) if path.is_file() else {}
    shown = []
    for method in (one for one in ORDER if one in options.methods):
        for count in options.shots:
            key = f"{method} {count}"
            stale = results.get(key, {}).get("pairs", options.pairs) != options.pairs
            if key not in results or stale or options.again:
                with tempfile.TemporaryDirectory() as folder:
                    peer = make(method, data, Path(folder))
                    if peer is None:
                        break
                    found = measure(peer, data, count)
                    if method in ("default", "exact") and isinstance(peer, Ours):
                        found |= unknowns(peer, data)
                    if options.kept:
                        found["kept"] = True
                # Another process may have written other results meanwhile.
                results = (read_json(path) if path.is_file() else {}) | {key: found}
                write_json(path, results)
                say(f"{key}: {found['macro_f1']:.1f}, {found['seconds']:.0f} s")
        else:
            shown.append(method)
    chosen = {f"{m} {c}": results[f"{m} {c}"] for m in shown for c in options.shots}
    print(json.dumps(chosen, indent=1) if options.json else table(shown, chosen))


def table(methods: Sequence[str], results: dict[str, Result]) -> str:
    """Return the scores at every number of shots, the cost at the last, and what concerns unknown inputs."""

    def megabytes(result: Result, name: str) -> str:
        return f"{result[name] / 1e6:.1f}" if name in result else "-"

    last = options.shots[-1]
    lines = [
        f"{options.stream}, order {options.order}, {options.model}, seed {options.seed}; cost at {last}",
        "",
        "| method | " + " | ".join(options.shots) + " | seconds | state, MB | directory, MB |",
        "|---|" + "---:|" * (len(options.shots) + 3),
    ]
    for method in methods:
        scores = [f"{results[f'{method} {count}']['macro_f1']:.1f}" for count in options.shots]
        own = results[f"{method} {last}"]
        cost = [f"{own['seconds']:.0f}", megabytes(own, "state"), megabytes(own, "directory")]
        lines.append(f"| {method} | " + " | ".join(scores + cost) + " |")
    for method in (one for one in ("default", "exact") if one in methods):
        asked = [f"{what} at {level:.2f}, %" for what in ("rejected", "covered") for level in LEVELS]
        lines += ["", f"| {method}, shots | AUROC | " + " | ".join(asked) + " | calibration error |"]
        lines.append("|---|" + "---:|" * (2 * len(LEVELS) + 2))
        for count in options.shots:
            own = results[f"{method} {count}"]
            cells = [f"{own['auroc']:.3f}" if "auroc" in own else "-"]
            for what in ("rejected", "covered"):
                shares = own.get(what) or {}
                cells += [f"{100 * shares[f'{level:.2f}']:.1f}" if shares else "-" for level in LEVELS]
            cells.append(f"{own['calibration_error']:.3f}")
            lines.append(f"| {count} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


main()

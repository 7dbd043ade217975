"""A tiny BERT with its own vocabulary and toy streams: whole runs in about a second, offline.

Other test files import the plain functions from here (`from conftest import ...`); scripts that tests start
in processes of their own do the same with this folder on their path.
"""

from __future__ import annotations

import gc
import os
import random
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# MKL rounds differently on each generation of CPUs, by more than tests/frozen allows, unless it is told one.
os.environ.setdefault("MKL_CBWR", "AVX2")

import accelerate.optimizer
import pytest
import torch
from transformers import BertConfig, BertModel, BertTokenizerFast
from transformers.utils.logging import disable_progress_bar

from holdfast.data.tasks import Split, Stream, Task
from holdfast.learning.learner import Learner
from holdfast.methods import METHODS
from holdfast.methods.base import Method
from holdfast.models import Classifier, build_classifier
from holdfast.settings import Settings

# Accelerate looks for an optional package at every step, along the whole path; it will not appear meanwhile.
accelerate.optimizer.is_lomo_available = cache(accelerate.optimizer.is_lomo_available)

# In the background of a shell Ctrl-C may be ignored, and children inherit that; some tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).parent
ROOT = TESTS.parent
FILLERS = ["the", "a", "of", "to", "and", "in"]
TOPICS = ["music", "light", "mail", "stock", "food", "train"]  # two labels for each of three tasks
KEYWORDS = {topic: [f"{topic}{i}" for i in range(3)] for topic in TOPICS}
SHARED = ["red", "blue"]  # words whose meaning turns round from one domain to the next
DOMAINS = ["north", "south", "west"]
MOODS = ["glad", "sad"]
DOMAIN_WORDS = {(d, m): [f"{d}{m}{i}" for i in range(3)] for d in DOMAINS for m in MOODS}


def vocabulary() -> list[str]:
    words = [*FILLERS, *SHARED]
    words += [word for group in (*KEYWORDS.values(), *DOMAIN_WORDS.values()) for word in group]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]


def save_tiny_bert(path: Path, dropout: float = 0.1, layers: int = 2) -> str:
    """A random BERT of few layers beside a WordPiece tokenizer that knows our words."""
    path.mkdir(parents=True, exist_ok=True)
    words = vocabulary()
    disable_progress_bar()
    BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(path)
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=32,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=160,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=0.2,
    )
    BertModel(config).save_pretrained(path)
    return str(path)


# ---- toy data -----------------------------------------------------------------------------------------


def sentences(rng: random.Random, words: list[str], n: int) -> list[str]:
    found = []
    for _ in range(n):
        sentence = [*rng.choices(words, k=4), *rng.choices(FILLERS, k=rng.randint(0, 2))]
        rng.shuffle(sentence)
        found.append(" ".join(sentence))
    return found


def toy_task(name: str, words: dict[str, list[str]], sizes: dict[str, int], seed: int = 0) -> Task:
    """A task whose labels differ in their words; `sizes` is sentences per label of each split."""
    splits = {}
    for part, n in sizes.items():
        rng = random.Random(f"{seed}/{name}/{part}")
        pairs = [(text, label) for label, known in words.items() for text in sentences(rng, known, n)]
        rng.shuffle(pairs)
        splits[part] = Split.of(pairs)
    return Task(name, **splits)


SIZES = {"train": 12, "valid": 6, "test": 8}


def class_stream(sizes: dict[str, int] = SIZES) -> Stream:
    """Class-incremental: three tasks of two labels, each label with words of its own."""
    tasks = [
        toy_task(f"task{k}", {topic: KEYWORDS[topic] for topic in TOPICS[2 * k : 2 * k + 2]}, sizes)
        for k in range(3)
    ]
    return Stream("toy-classes", tuple(tasks), "class-incremental")


def domain_stream(sizes: dict[str, int] = SIZES) -> Stream:
    """Domain-incremental, built to forget: words the domains share mean the opposite in the next one."""
    tasks = []
    for k, domain in enumerate(DOMAINS):
        shared = SHARED if k % 2 == 0 else SHARED[::-1]
        words = {mood: [*DOMAIN_WORDS[domain, mood], *[shared[i]] * 3] for i, mood in enumerate(MOODS)}
        tasks.append(toy_task(domain, words, sizes))
    return Stream("toy-domains", tuple(tasks), "domain-incremental")


def lopsided(stream: Stream) -> Stream:
    """The second task with fewer sentences of one label: its class weights differ."""
    task = stream.tasks[1]
    pairs = list(zip(task.train.texts, task.train.labels, strict=True))
    few = [pair for pair in pairs if pair[1] == task.labels[0]][:7]
    kept = Split.of([pair for pair in pairs if pair[1] != task.labels[0] or pair in few])
    return replace(stream, tasks=(stream.tasks[0], replace(task, train=kept), *stream.tasks[2:]))


def small(**changes: Any) -> Settings:
    """Few epochs, one rate, a short search."""
    values: dict[str, Any] = {
        "batch_size": 8,
        "epochs": 3,
        "patience": 2,
        "rates": (1e-2,),
        "lam_decay": 0.1,
        "lam_steps": 3,
        "lam_trials": 2,
        "loosening": "short",
        "sgd_rates": (0.1,),
        "lam_a_growth": 4.0,
        "lam_a_steps": 2,
        "grids": "after",
    }
    return Settings(**values | changes)


def make_method(name: str, **values: Any) -> Method:
    """A method, its random features few enough for a toy."""
    few = {"features": 48} if name in ("klda", "ranpac") else {}
    return METHODS[name](**few | values)


def make_learner(
    model: str,
    method: Method,
    stream: Stream,
    settings: Settings | None = None,
    *,
    fixed: set[str] = frozenset(),  # type: ignore[assignment]
    seed: int = 0,
    **rest: Any,
) -> Learner:
    settings = settings or small()
    classifier = build_classifier(model, settings, seed=seed, labels=stream.labels, method=method)
    scenario = method.curriculum(stream).scenario
    return Learner(classifier, method, scenario, settings, seed=seed, fixed=frozenset(fixed), **rest)


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in learner.model.state_dict().items()}


def assert_same_bits(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> None:
    assert left.keys() == right.keys()
    different = [name for name in left if not torch.equal(left[name], right[name])]
    assert not different, f"{len(different)} of {len(left)} tensors differ, the first is {different[0]}"


# ---- workers ------------------------------------------------------------------------------------------


def pytest_collection_finish() -> None:
    """Accelerate collects garbage after every training; what is there by now need not be looked through."""
    gc.collect()
    gc.freeze()


TOGETHER = re.compile(r"tests/(contract/|methods/test_cost\.py).*\[(?:classes-|domains-)?(.*)\]")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Tests of one method go to one worker, where it is taught once for all of them; others go anywhere."""
    from xdist.scheduler import LoadScopeScheduling

    class ByMethod(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            found = TOGETHER.match(nodeid)
            return "/".join(found.groups()) if found else nodeid

    return ByMethod(config, log)


# ---- fixtures -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The path of the tiny BERT."""
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_bert_dry(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same without dropout in the encoder."""
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "dry", dropout=0.0)


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A smaller one still, where nothing depends on two layers."""
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "one", layers=1)


@pytest.fixture
def classes() -> Stream:
    return class_stream()


@pytest.fixture
def domains() -> Stream:
    return domain_stream()


@pytest.fixture
def tiny(tiny_bert: str) -> Classifier:
    return build_classifier(tiny_bert, small())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bit-equal always means at equal threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""A tiny BERT with its own vocabulary, toy streams and small settings: a run takes about a second."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel, BertTokenizerFast
from transformers.utils.logging import disable_progress_bar

from holdfast.data.tasks import Split, Stream, Task
from holdfast.settings import Settings

FILLERS = ["the", "a", "of", "to", "and", "in"]
TOPICS = ["music", "light", "mail", "stock", "food", "train"]  # two labels for each of three tasks
KEYWORDS = {topic: [f"{topic}{i}" for i in range(3)] for topic in TOPICS}
SHARED = ["red", "blue"]  # words whose meaning is reversed from one domain to the next
DOMAINS = ["north", "south", "west"]
MOODS = ["glad", "sad"]
DOMAIN_WORDS = {(d, m): [f"{d}{m}{i}" for i in range(3)] for d in DOMAINS for m in MOODS}


def vocabulary() -> list[str]:
    words = [*FILLERS, *SHARED]
    words += [word for group in (*KEYWORDS.values(), *DOMAIN_WORDS.values()) for word in group]
    return ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words]


def save_tiny_bert(path: Path, dropout: float = 0.1, layers: int = 2, more_words: Sequence[str] = ()) -> str:
    """Save a random BERT of few layers and a WordPiece tokenizer with our vocabulary."""
    path.mkdir(parents=True, exist_ok=True)
    words = [*vocabulary(), *more_words]
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
    """Return a task whose labels differ in their words; `sizes` is the sentences per label of each split."""
    splits = {}
    for part, n in sizes.items():
        rng = random.Random(f"{seed}/{name}/{part}")
        pairs = [(text, label) for label, known in words.items() for text in sentences(rng, known, n)]
        rng.shuffle(pairs)
        splits[part] = Split.of(pairs)
    return Task(name, **splits)


SIZES = {"train": 12, "valid": 6, "test": 8}


def class_stream(sizes: dict[str, int] = SIZES) -> Stream:
    """Return a class-incremental stream: three tasks of two labels, each label with its own words."""
    tasks = [
        toy_task(f"task{k}", {topic: KEYWORDS[topic] for topic in TOPICS[2 * k : 2 * k + 2]}, sizes)
        for k in range(3)
    ]
    return Stream("toy-classes", tuple(tasks), "class-incremental")


def domain_stream(sizes: dict[str, int] = SIZES) -> Stream:
    """Return a domain-incremental stream whose shared words mean the opposite in the next domain."""
    tasks = []
    for k, domain in enumerate(DOMAINS):
        shared = SHARED if k % 2 == 0 else SHARED[::-1]
        words = {mood: [*DOMAIN_WORDS[domain, mood], *[shared[i]] * 3] for i, mood in enumerate(MOODS)}
        tasks.append(toy_task(domain, words, sizes))
    return Stream("toy-domains", tuple(tasks), "domain-incremental")


def lopsided(stream: Stream) -> Stream:
    """Remove sentences of one label from the second task, so that its class weights differ."""
    task = stream.tasks[1]
    pairs = list(zip(task.train.texts, task.train.labels, strict=True))
    few = [pair for pair in pairs if pair[1] == task.labels[0]][:7]
    kept = Split.of([pair for pair in pairs if pair[1] != task.labels[0] or pair in few])
    return replace(stream, tasks=(stream.tasks[0], replace(task, train=kept), *stream.tasks[2:]))


def small(**changes: Any) -> Settings:
    """Return settings with few epochs, one learning rate and a short search."""
    values: dict[str, Any] = {
        "batch_size": 8,
        "epochs": 2,
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

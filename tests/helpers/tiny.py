"""A tiny Llama with a word-level tokenizer; fine-tuning takes a second."""

from __future__ import annotations

import random
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from holdfast.lm.artefact import Importance, measure
from holdfast.lm.text import Pair, Sequences, encode

WORDS = [f"w{i}" for i in range(40)]


def tokenizer() -> PreTrainedTokenizerFast:
    words = {word: i for i, word in enumerate(["<unk>", "<s>", "</s>", *WORDS])}
    inner = Tokenizer(WordLevel(words, unk_token="<unk>"))
    inner.pre_tokenizer = Whitespace()
    # As in SmolLM2, the pad token is the end-of-text token.
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, unk_token="<unk>", eos_token="</s>", pad_token="</s>"
    )


def llama(seed: int = 0, **changes: object) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    settings = {
        "vocab_size": len(WORDS) + 3,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "tie_word_embeddings": True,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(LlamaConfig(**settings | changes))


def pairs(count: int, seed: int = 0, words: list[str] = WORDS) -> list[Pair]:
    """Return pairs whose answers are the prompt's words in reverse order."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        prompt = rng.choices(words, k=rng.randint(2, 6))
        found.append(Pair(" ".join(prompt), " ".join(prompt[::-1][: rng.randint(1, 6)])))
    return found


def sequences(count: int, seed: int = 0) -> Sequences:
    return encode(pairs(count, seed), tokenizer(), 32)


def saved(path: Path) -> Path:
    """Save the tiny model and its tokenizer."""
    llama().save_pretrained(path)
    tokenizer().save_pretrained(path)
    return path


def weights_of(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(left[name], right[name]) for name in left)


def importance(model: nn.Module) -> Importance:
    return measure(model, sequences(8, seed=5), name="tiny", data="words")

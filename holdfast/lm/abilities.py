"""Look up the data of an ability by name: built-in data, public data sets or a JSONL file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.fields import unknown
from holdfast.lm import embedded, tasks
from holdfast.lm.tasks import AbilityPart
from holdfast.lm.text import Pair, Sequences, encode, read_pairs
from holdfast.storage.cache import data_home

METAMATH = "metamathqa"  # the paper's training data
ABILITIES = ("code", "arithmetic", "gsm8k", "mbpp", METAMATH)


def pairs_of(data: str, part: AbilityPart, data_dir: Path | None, *, split: bool = False) -> list[Pair]:
    """Return the prompt/answer pairs of one part of an ability.

    Files and Hub data sets are divided into parts only if `split` is true; otherwise all parts are the same.
    """
    if data == "code":
        return embedded.part_of(embedded.functions(), part)
    if data == "arithmetic":
        return embedded.part_of(embedded.problems(), part)
    if data == "gsm8k":
        return tasks.gsm8k(data_home(data_dir), part)
    if data == "mbpp":
        return tasks.mbpp(data_home(data_dir), part)
    if data != METAMATH and not data.startswith("hf:") and not Path(data).exists():
        known = unknown(data, list(ABILITIES), "data")
        raise HoldfastError(f"{known}; or give a JSONL file, or hf:owner/name")
    pairs = read_pairs("hf:meta-math/MetaMathQA" if data == METAMATH else data)
    return embedded.part_of(tuple(pairs), part) if split else pairs


def sequences_of(
    data: str,
    part: AbilityPart,
    tokenizer: Any,
    max_tokens: int,
    data_dir: Path | None,
    *,
    split: bool = False,
) -> Sequences:
    """Return the tokenised pairs of one part of an ability."""
    return encode(pairs_of(data, part, data_dir, split=split), tokenizer, max_tokens)

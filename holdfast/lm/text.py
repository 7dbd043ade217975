"""Pairs of prompt and output: from JSONL files, as token sequences whose prompt does not count."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.data.readers import HUB, Placed, hub_parts, jsonl_rows, whole
from holdfast.errors import HoldfastError
from holdfast.maths.losses import IGNORED

FIELDS = (
    ("prompt", "answer"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("query", "response"),
    ("instruction", "output"),
)
"""Names that public data sets give to prompt and output; MetaMathQA's are query and response."""


@dataclass(frozen=True)
class Pair:
    """What is asked and what is to be answered."""

    prompt: str
    answer: str


def read_pairs(path: Path | str) -> list[Pair]:
    """The pairs of a JSONL file or of `hf:owner/name`, whatever of the usual names their fields have."""
    rows: Iterable[Placed]
    if str(path).startswith(HUB):
        parts = dict(hub_parts(str(path)))
        split = "train" if "train" in parts else next(iter(parts))
        rows = ((f"{path}, row {number}", dict(row)) for number, row in enumerate(parts[split], start=1))
    else:
        rows = jsonl_rows(Path(path))
    pairs, names = [], None
    for place, found in rows:
        names = names or next((pair for pair in FIELDS if all(name in found for name in pair)), None)
        if names is None:
            wanted = "; ".join(" and ".join(pair) for pair in FIELDS)
            raise HoldfastError(f"{place}: has {', '.join(found)}; the fields must be {wanted}")
        for name in names:
            if not isinstance(found.get(name), str):
                raise HoldfastError(f"{place}: the field {name!r} is missing or not text")
            if not whole(found[name]):
                raise HoldfastError(f"{place}: the field {name!r} holds an unpaired surrogate; fix the line")
        if not found[names[1]].strip():
            raise HoldfastError(f"{place}: the field {names[1]!r} is empty; fill or delete it")
        prompt, answer = found[names[0]], found[names[1]]
        if names[0] == "instruction" and isinstance(found.get("input"), str) and found["input"]:
            prompt = f"{prompt}\n{found['input']}"
        if names[0] in ("question", "query", "instruction"):  # as GSM8K is asked for everywhere
            prompt, answer = f"Question: {prompt}\nAnswer:", f" {answer}"
        pairs.append(Pair(prompt, answer))
    if not pairs:
        raise HoldfastError(f"{path} holds no examples")
    return pairs


@dataclass(frozen=True)
class Sequences:
    """Encoded pairs: token ids, and from where on they are output. A dataset as `Trainer` takes them."""

    ids: tuple[Sequence[int], ...]
    starts: tuple[int, ...]
    cut: int = 0
    """How many were longer than allowed and lost the end of their output."""
    dropped: int = 0
    """How many had a prompt that left no room for an output."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """One sequence; labels are IGNORED where it is prompt."""
        ids, start = self.ids[number], self.starts[number]
        labels = [IGNORED] * start + list(ids[start:])
        return {"input_ids": torch.tensor(list(ids)), "labels": torch.tensor(labels)}

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[number] for number in range(len(self)))

    def digest(self) -> str:
        """A hash of the tokens: that of the two as nested tuples, but never all of it in memory."""
        total, comma = hashlib.sha256(b"(("), b""
        for ids in self.ids:
            total.update(comma + repr(tuple(ids)).encode())
            comma = b", "
        total.update((",)" if len(self.ids) == 1 else ")").encode() + f", {self.starts!r})".encode())
        return total.hexdigest()[:16]

    def first(self, count: int | None) -> Sequences:
        """The first so many of them."""
        return Sequences(self.ids[:count], self.starts[:count], self.cut, self.dropped)


def encode(pairs: Sequence[Pair], tokenizer: Any, max_tokens: int) -> Sequences:
    """Token ids of prompt, output and the end-of-text token, at most so many."""
    ids, starts, cut, dropped = [], [], 0, 0
    for pair in pairs:
        prompt = tokenizer(pair.prompt, add_special_tokens=True)["input_ids"]
        answer = tokenizer(pair.answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        if len(prompt) + 1 > max_tokens:
            dropped += 1
            continue
        cut += len(prompt) + len(answer) > max_tokens
        ids.append(array("i", (prompt + answer)[:max_tokens]))  # four bytes a token: data sets are large
        starts.append(len(prompt))
    if not ids:
        raise HoldfastError(f"every prompt is longer than {max_tokens} tokens; allow more with --max-tokens")
    return Sequences(tuple(ids), tuple(starts), cut, dropped)


def collate(rows: Sequence[Mapping[str, Tensor]], pad: int) -> dict[str, Tensor]:
    """A padded batch. What is padding is said by the mask: the pad token may be a real one elsewhere."""
    longest = max(len(row["input_ids"]) for row in rows)

    def padded(name: str, fill: int) -> Tensor:
        return torch.stack(
            [torch.nn.functional.pad(row[name], (0, longest - len(row[name])), value=fill) for row in rows]
        )

    mask = torch.stack([(torch.arange(longest) < len(row["input_ids"])).long() for row in rows])
    batch = {
        "input_ids": padded("input_ids", pad),
        "attention_mask": mask,
        "labels": padded("labels", IGNORED),
    }
    if "weight" in rows[0]:
        batch["weight"] = torch.stack([row["weight"] for row in rows])
    return batch

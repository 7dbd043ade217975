"""Prompt/answer pairs: reading, tokenising and batching, with labels for the answer only."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from holdfast.data.readers import HUB, Placed, hub_parts, jsonl_rows
from holdfast.data.tasks import whole
from holdfast.errors import HoldfastError
from holdfast.maths.losses import IGNORED

FIELDS = (
    ("prompt", "answer"),
    ("prompt", "completion"),
    ("question", "answer"),
    ("query", "response"),
    ("instruction", "output"),
)
"""Field names of prompt and answer in public data sets."""


@dataclass(frozen=True)
class Pair:
    """A prompt and its answer."""

    prompt: str
    answer: str


def read_pairs(path: Path | str) -> list[Pair]:
    """Read the pairs of a JSONL file, or of the train split (otherwise the first) of `hf:owner/name`.

    FIELDS has the allowed pairs of field names.
    """
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
            raise HoldfastError(
                f"{place}: has {', '.join(found)}; it needs one of these pairs of fields: {wanted}"
            )
        for name in names:
            if not isinstance(found.get(name), str):
                raise HoldfastError(f"{place}: the field {name!r} is missing or not text")
            if not whole(found[name]):
                raise HoldfastError(f"{place}: the field {name!r} holds an unpaired surrogate; fix the line")
        if not found[names[1]].strip():
            raise HoldfastError(f"{place}: the field {names[1]!r} is empty; fill it, or delete the line")
        prompt, answer = found[names[0]], found[names[1]]
        if names[0] == "instruction" and isinstance(found.get("input"), str) and found["input"]:
            prompt = f"{prompt}\n{found['input']}"
        if names[0] in ("question", "query", "instruction"):  # the usual prompt of GSM8K
            prompt, answer = f"Question: {prompt}\nAnswer:", f" {answer}"
        pairs.append(Pair(prompt, answer))
    if not pairs:
        raise HoldfastError(f"{path} holds no examples; add some")
    return pairs


@dataclass(frozen=True)
class Sequences:
    """Tokenised pairs: token ids and the index where each output starts. A dataset for `Trainer`."""

    ids: tuple[Sequence[int], ...]
    starts: tuple[int, ...]
    cut: int = 0
    """Number of sequences whose output was truncated."""
    dropped: int = 0
    """Number of pairs dropped because the prompt left no room for an output."""

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, number: int) -> dict[str, Tensor]:
        """Return one sequence; labels are IGNORED in the prompt."""
        ids, start = self.ids[number], self.starts[number]
        labels = [IGNORED] * start + list(ids[start:])
        return {"input_ids": torch.tensor(list(ids)), "labels": torch.tensor(labels)}

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        return (self[number] for number in range(len(self)))

    def digest(self) -> str:
        """Return a hash of the token ids and starts, computed incrementally to save memory."""
        total, comma = hashlib.sha256(b"(("), b""
        for ids in self.ids:
            total.update(comma + repr(tuple(ids)).encode())
            comma = b", "
        total.update((",)" if len(self.ids) == 1 else ")").encode() + f", {self.starts!r})".encode())
        return total.hexdigest()[:16]

    def first(self, count: int | None) -> Sequences:
        """Return the first `count` sequences; None returns all.

        `cut` and `dropped` still describe the whole set.
        """
        return Sequences(self.ids[:count], self.starts[:count], self.cut, self.dropped)


def encode(pairs: Sequence[Pair], tokenizer: Any, max_tokens: int) -> Sequences:
    """Tokenise prompts and answers with an end-of-text token, and truncate them to `max_tokens`.

    Pairs whose prompt leaves no room for an answer are dropped.
    """
    ids, starts, cut, dropped = [], [], 0, 0
    for pair in pairs:
        prompt = tokenizer(pair.prompt, add_special_tokens=True)["input_ids"]
        answer = tokenizer(pair.answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        if len(prompt) + 1 > max_tokens:
            dropped += 1
            continue
        cut += len(prompt) + len(answer) > max_tokens
        ids.append(array("i", (prompt + answer)[:max_tokens]))  # four bytes per token
        starts.append(len(prompt))
    if not ids:
        raise HoldfastError(
            f"no prompt leaves room for an answer in {max_tokens} tokens; increase --max-tokens"
        )
    return Sequences(tuple(ids), tuple(starts), cut, dropped)


def collate(rows: Sequence[Mapping[str, Tensor]], pad: int) -> dict[str, Tensor]:
    """Return a padded batch with an attention mask, since the pad token may also occur in the text."""
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

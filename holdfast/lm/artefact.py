"""Parameter importance as a folder on disk: a safetensors file, a card with its metadata and a README."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.errors import HoldfastError
from holdfast.fields import built
from holdfast.importance.sequences import SequenceKind, SequenceSums
from holdfast.lm.half import quick_half
from holdfast.lm.shards import whole
from holdfast.lm.text import Sequences
from holdfast.lm.weighing import check_values
from holdfast.maths.params import Params, trainable
from holdfast.models.sources import HUB_ID, MODELS, is_own
from holdfast.storage.files import write_bytes, write_json
from holdfast.storage.tensors import read_meta, read_tensors, write_tensors

FILE, CARD, PARTIAL = "importance.safetensors", "card.json", "partial.safetensors"
EVERY = 20  # sequences between two saves of the partial sums


@dataclass(frozen=True)
class Card:
    """Metadata of an importance."""

    model: str
    data: str
    sequences: int
    kind: SequenceKind = "mas"
    squared: bool = False
    fingerprint: str = ""
    """Hash of the weights it was measured on; if empty, `check` compares only names and shapes."""
    tokens: str = ""
    """Hash of the tokens it was measured on; empty for values that `measure` did not make."""


@dataclass(frozen=True)
class Importance:
    """Importance of a model's weights for one ability.

    Measure one with `holdfast lm importance`, or save and load your own:

    >>> values = {"weight": torch.tensor([[0.5, 2.0]])}
    >>> Importance(values, Card(model="mine", data="code.jsonl", sequences=60)).save("imp")
    >>> Importance.load("imp").card.sequences
    60
    """

    values: Params = field(repr=False)
    card: Card

    def check(self, weights: Mapping[str, Tensor]) -> None:
        """Raise HoldfastError unless the names, the shapes and the card's fingerprint (if any) match."""
        missing = [name for name in self.values if name not in weights]
        shapes = [n for n, v in self.values.items() if n in weights and weights[n].shape != v.shape]
        if missing or shapes:
            first = (missing or shapes)[0]
            raise HoldfastError(
                f"the importance of {self.card.model} does not fit this model: {first} is missing or has "
                "another shape; measure it again"
            )
        own = {name: weights[name] for name in self.values}
        if self.card.fingerprint and fingerprint(own) != self.card.fingerprint:
            raise HoldfastError(
                f"this importance was measured on different weights of {self.card.model}; "
                "load those weights, or measure it again"
            )

    def save(self, directory: Path | str) -> None:
        """Write the values, the card and a README to a directory."""
        directory = Path(directory)
        write_tensors(directory / FILE, {"importance": self.values}, asdict(self.card))
        write_json(directory / CARD, asdict(self.card))
        write_bytes(directory / "README.md", readme(self.card).encode())

    @classmethod
    def load(cls, directory: Path | str) -> Importance:
        """Load an importance written by `save`."""
        path = finished(Path(directory))
        tensors, card = read_tensors(path)
        found = cls(tensors.get("importance", {}), built(Card, card, str(path)))
        check_values(found.values, {})
        return found

    @classmethod
    def equal(cls, model: nn.Module) -> Importance:
        """Return importance 1 for every trainable weight, so that the penalty is (λ/2) ‖θ - θ*‖²."""
        ones = {name: torch.ones_like(weight) for name, weight in trainable(model).items()}
        return cls(ones, Card("any", "none", 0))


def is_finished(directory: Path) -> bool:
    """Return whether a folder contains an importance and no unfinished measurement."""
    return (directory / FILE).exists() and not (directory / PARTIAL).exists()


def finished(directory: Path) -> Path:
    """Return the path of an importance; raise HoldfastError if none or an unfinished measurement is there."""
    if is_finished(directory):
        return directory / FILE
    if (directory / PARTIAL).exists():  # even beside a finished file: a newer measurement was interrupted
        raise HoldfastError(
            f"{directory} holds an unfinished measurement; run the command that measures it again"
        )
    what = "holds no importance" if directory.exists() else "does not exist"
    raise HoldfastError(
        f"{directory} {what}; measure an importance with: holdfast lm importance --out {directory}"
    )


def measure(
    model: nn.Module,
    sequences: Sequences | Sequence[Mapping[str, Tensor]],
    *,
    name: str,
    data: str,
    kind: SequenceKind = "mas",
    squared: bool = False,
    directory: Path | None = None,
    on_sequence: Callable[[int, int], None] = lambda done, total: None,
) -> Importance:
    """Measure the importance of a model's trainable weights for some sequences.

    With a directory, the result is saved there, and an interrupted call, if repeated, resumes. If the
    directory already contains the result, it is loaded; one of other settings is refused.
    """
    if directory is not None:
        _check_ours(directory)
    weights = trainable(model)
    mark = fingerprint(weights)
    sums = SequenceSums(model, kind, squared=squared)
    every = sequences if isinstance(sequences, Sequences) else None
    own = {"fingerprint": mark, "data": data, "kind": kind, "squared": squared, "total": len(sequences)}
    own["tokens"] = (
        every.digest()
        if every is not None
        else fingerprint(
            {f"{i}/{name}": value for i, row in enumerate(sequences) for name, value in row.items()}
        )
    )
    done = 0
    if directory is not None and (directory / PARTIAL).exists():
        tensors, noted = read_tensors(directory / PARTIAL, next(iter(weights.values())).device)
        if {key: noted[key] for key in own} == own:
            sums.sums, sums.count, done = tensors["sums"], noted["count"], noted["done"]
    if directory is not None and not done and (directory / FILE).exists():
        wanted = Card(name, data, len(sequences), kind, squared, mark, str(own["tokens"]))
        _same_measurement(directory, wanted)
        if is_finished(directory):
            return Importance.load(directory)

    def keep(done: int) -> None:
        if directory is not None and done:
            note: dict[str, Any] = own | {"count": sums.count, "done": done}
            write_tensors(directory / PARTIAL, {"sums": sums.sums}, note)

    begun = done, sums.count  # one assignment: an interrupt may come between any two
    try:
        for number in range(done, len(sequences)):
            begun = number, sums.count
            with quick_half(model):
                sums.add(model, sequences[number])
            on_sequence(number + 1, len(sequences))
            if (number + 1) % EVERY == 0:
                keep(number + 1)
    except KeyboardInterrupt:
        number, count = begun
        added = sums.count - count
        if sums.whole and (not added or sequences[number]["input_ids"].dim() == 1):  # no batch was split
            keep(number + added)
        raise
    if not sums.count:
        raise HoldfastError(f"{data}: no sequence has an output to measure")
    if spoilt := [name for name, value in sums.sums.items() if not torch.isfinite(value).all()]:
        raise HoldfastError(
            f"{data}: the importance of {spoilt[0]} is NaN or infinite; check the model's weights"
        )
    found = Importance(sums.mean(), Card(name, data, sums.count, kind, squared, mark, str(own["tokens"])))
    if directory is not None:
        found.save(directory)
        (directory / PARTIAL).unlink(missing_ok=True)
    return found


def _same_measurement(directory: Path, wanted: Card) -> None:
    """Raise HoldfastError if the importance in a folder was measured with other settings."""
    there = read_card(directory)
    names = {
        "fingerprint": "model",
        "data": "data",
        "kind": "kind",
        "squared": "squared",
        "tokens": "max-tokens, or the text of the data",
    }
    other = next((word for key, word in names.items() if getattr(there, key) != getattr(wanted, key)), None)
    if other == names["tokens"] and there.sequences != wanted.sequences:
        other = "count"
    elif other == names["tokens"] and not there.tokens:
        other = "its card does not say on which tokens"
    if other:
        raise HoldfastError(
            f"{directory} contains an importance of other settings ({other}); choose another folder, or "
            "delete this one"
        )


def _check_ours(directory: Path) -> None:
    """Create the folder; raise HoldfastError if `save` would overwrite a README.md from elsewhere."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HoldfastError(f"cannot write to {directory}: {error.strerror or error}") from error
    ours = (directory / CARD).exists() or (directory / PARTIAL).exists()
    if not ours and (directory / "README.md").exists():
        raise HoldfastError(
            f"{directory} already contains a README.md, which would be overwritten; choose another folder"
        )


def fingerprint(weights: Mapping[str, Tensor]) -> str:
    """Return a hash of the weights in bfloat16: the same for float32 weights and their bfloat16 copy."""
    total = hashlib.sha256()
    for name in sorted(weights):
        rounded = whole(weights[name].detach()).to(torch.bfloat16).contiguous().view(torch.int16)
        total.update(f"{name}{tuple(rounded.shape)}".encode())
        total.update(rounded.cpu().numpy().data)
    return total.hexdigest()[:16]


def read_card(directory: Path) -> Card:
    """Read the card of an importance without its values."""
    path = directory / FILE
    return built(Card, read_meta(path), str(path))


def readme(card: Card) -> str:
    """Return the text of the README.md of an importance."""
    how = {"mas": "the L2 norm of the output logits", "fisher": "the log-likelihood of the output"}[card.kind]
    size = "squared" if card.kind == "fisher" else "absolute"
    how = how.replace("L2 norm", "squared L2 norm") if card.squared else how
    ours = MODELS.get(card.model)
    hub = ours.hub if ours else card.model if re.fullmatch(HUB_ID, card.model) else None
    base = f"base_model: {hub}\n" if hub and not is_own(card.model) else ""  # the hub refuses other names
    source = (
        f"`{card.model}` is `{hub}` from `{ours.gguf}`, converted to float32. Its weights differ from those "
        "of the original, to which this importance does not apply.\n\n"
        if ours and ours.gguf
        else ""
    )
    return (
        f"---\nlibrary_name: holdfast\n{base}---\n\n"
        f"Importance of each trainable weight of `{card.model}` for `{card.data}`: the mean over "
        f"{card.sequences} sequences of the {size} gradient of {how}, "
        "normalised by the number of output tokens; prompt and padding are excluded.\n\n"
        f"{source}Fingerprint of the measured weights: `{card.fingerprint}`. "
        "The files contain none of the text it was measured on.\n\n"
        "```python\nfrom holdfast.lm import Importance, Protect, load_lm\n\n"
        f"model, tokenizer = load_lm({json.dumps(card.model)})\n"
        'protect = Protect(model, Importance.load("path/to/this/folder"), lam=0.01)\n```\n'
    )

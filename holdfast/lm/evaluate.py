"""Evaluate a language model: loss on given outputs, GSM8K exact match and MBPP pass@1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from holdfast.errors import HoldfastError
from holdfast.lm import sandbox
from holdfast.lm.half import quick_half
from holdfast.lm.tasks import Program, code_of, final_number, plain_number
from holdfast.lm.text import Pair, Sequences, collate
from holdfast.maths.losses import IGNORED
from holdfast.maths.params import eval_mode

OnItem = Callable[[int, int], None]


def _silent(done: int, total: int) -> None:
    """Report no progress."""


@dataclass(frozen=True)
class Loss:
    """Loss and accuracy over output tokens."""

    loss: float
    """Mean negative log-likelihood per output token, in nats."""
    accuracy: float
    """Share of output tokens that the model considers most likely."""
    tokens: int


@torch.no_grad()
def output_loss(
    model: nn.Module, sequences: Sequences, pad: int, batch: int = 8, told: OnItem = _silent
) -> Loss:
    """Compute loss and accuracy over all output tokens."""
    device = next(model.parameters()).device
    total = right = tokens = 0.0
    with eval_mode(model), quick_half(model):
        for start in range(0, len(sequences), batch):
            rows = [sequences[i] for i in range(start, min(start + batch, len(sequences)))]
            inputs = {name: value.to(device) for name, value in collate(rows, pad).items()}
            labels = inputs.pop("labels")[:, 1:]
            asked = labels != IGNORED
            logits, wanted = model(**inputs).logits[:, :-1][asked].float(), labels[asked]
            total += float(nn.functional.cross_entropy(logits, wanted, reduction="sum"))
            right += int((logits.argmax(-1) == wanted).sum())
            tokens += len(wanted)
            told(start + len(rows), len(sequences))
    return Loss(total / max(tokens, 1), right / max(tokens, 1), int(tokens))


@torch.no_grad()
def generate(model: Any, tokenizer: Any, prompt: str, stops: Sequence[str], tokens: int) -> str:
    """Return the greedy continuation of at most `tokens` tokens, cut before the first stop string."""
    inputs = tokenizer(prompt, return_tensors="pt").to(model.device)
    room, length = context_of(model), inputs["input_ids"].shape[1] + tokens
    if room is not None and length > room:
        raise HoldfastError(
            f"the prompt and the answer may take {length} tokens, but the model's context is {room}; "
            "use fewer --shots"
        )
    with eval_mode(model), quick_half(model):
        found = model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=tokens,
            stop_strings=list(stops) or None,
            tokenizer=tokenizer,
            pad_token_id=tokenizer.pad_token_id,
        )
    text = str(tokenizer.decode(found[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
    for stop in stops:
        text = text.partition(stop)[0]
    return text


def context_of(model: Any) -> int | None:
    """Return the context length in the model's config, or None if it has none."""
    room = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    return int(room) if room else None


def gsm8k_exact(
    model: Any, tokenizer: Any, items: Sequence[Pair], shots: Sequence[Pair], told: OnItem = _silent
) -> dict[str, float]:
    """Return the shares of correct answers: by the last number (flexible) or the one after #### (strict)."""
    before = "".join(f"{shot.prompt}{shot.answer}\n\n" for shot in shots)
    last = strict = 0
    for number, item in enumerate(items, start=1):
        said = generate(model, tokenizer, before + item.prompt, ("Question:", "</s>", "<|im_end|>"), 256)
        gold = plain_number(item.answer.rpartition("####")[2].strip())
        last += final_number(said) == gold
        strict += final_number(said, strict=True) == gold
        told(number, len(items))
    return {"flexible": last / len(items), "strict": strict / len(items)}


def mbpp_pass(
    model: Any, tokenizer: Any, items: Sequence[Program], shots: Sequence[Program], told: OnItem = _silent
) -> dict[str, float]:
    """Return pass@1: the share of tasks whose greedily decoded program passes all tests."""
    before = "".join(f"{shot.prompt}{shot.code}\n[DONE]\n\n" for shot in shots)
    passed = 0
    for number, item in enumerate(items, start=1):
        said = generate(model, tokenizer, before + item.prompt, ("[DONE]",), 256)
        passed += passes(item, code_of(said))
        told(number, len(items))
    return {"pass@1": passed / len(items)}


def passes(item: Program, code: str) -> bool:
    """Run a program and the tests of a task in the sandbox; return whether it passes."""
    whole = "\n".join(["from __future__ import annotations", item.setup, code, *item.tests])
    return sandbox.run_program(whole).outcome == "passed"

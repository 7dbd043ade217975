"""Measure the cost of bfloat16 on this CPU: torch's own products, and ours, which go through float32.

    python benchmarks/half.py

Times one forward and backward pass of a language model in float32, in torch's bfloat16, and in bfloat16
inside `quick_half`. Prints the ratios to float32. On a CPU with bfloat16 instructions the last two are the
same.
"""

from __future__ import annotations

import argparse
import time
from contextlib import nullcontext

import torch

from holdfast.lm.half import has_bfloat16, quick_half
from holdfast.models.sources import load_lm

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="smollm2")
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--tokens", type=int, default=160)


def seconds(name: str, dtype: torch.dtype, shape: tuple[int, int], *, quick: bool) -> float:
    """Return the processor time of the second pass; the first is a warm-up."""
    model, _ = load_lm(name, dtype)
    ids = torch.randint(
        5, min(1000, model.config.vocab_size), shape, generator=torch.Generator().manual_seed(0)
    )
    with quick_half(model) if quick else nullcontext():
        for _ in range(2):
            began = time.process_time()
            model(input_ids=ids, labels=ids).loss.backward()
            found = time.process_time() - began
            model.zero_grad()
    return found


def main() -> None:
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    shape = arguments.batch, arguments.tokens
    wide = seconds(arguments.model, torch.float32, shape, quick=False)
    torchs = seconds(arguments.model, torch.bfloat16, shape, quick=False)
    ours = seconds(arguments.model, torch.bfloat16, shape, quick=True)
    print(f"bfloat16 instructions: {'yes' if has_bfloat16() else 'no'}")
    print(f"bfloat16 pass relative to one in float32: torch {torchs / wide:.1f}, ours {ours / wide:.1f}")


if __name__ == "__main__":
    main()

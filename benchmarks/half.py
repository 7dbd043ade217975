"""What bfloat16 costs on this CPU: torch's own products beside ours, which go through float32.

    python benchmarks/half.py

times one forward and backward pass of a language model in float32, in bfloat16 as torch does it and in
bfloat16 inside `quick_half`, and prints the ratios to float32. Where the CPU has such instructions the
last two are the same thing.
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
    """Processor time of a pass, the first left out."""
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
    print(f"instructions for bfloat16: {'yes' if has_bfloat16() else 'no'}")
    print(f"a pass in bfloat16, to one in float32: torch's own {torchs / wide:.1f}, ours {ours / wide:.1f}")


if __name__ == "__main__":
    main()

"""Measure the cost of protection: time per step and memory, compared with plain fine-tuning.

    python benchmarks/protection.py

Trains smollm2 for some steps of 4 x 160 tokens with AdamW, bare, protected, and protected with bfloat16
storage, each in a separate process. Prints the time of a step relative to the same step without its pull, and
the extra peak memory in copies of the trainable weights. To measure memory, the allocator returns freed
memory at once: the amount it would keep varies. Exits with code 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("bare", "protected", "protected bf16")
LIMITS = {"step_vs_unpulled": 1.15, "extra_copies": 2.0}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536"}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="smollm2")
parser.add_argument("--steps", type=int, default=6)
parser.add_argument("--json", action="store_true")
parser.add_argument("--inside", choices=KINDS, help=argparse.SUPPRESS)


def peak() -> int:
    return 1024 * int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1])


def inside(kind: str, name: str, steps: int) -> dict[str, float]:
    import torch

    torch.set_num_threads(1)
    from holdfast.lm import Importance, Protect
    from holdfast.models.sources import load_lm

    model, _ = load_lm(name)
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-5, weight_decay=0.0)
    pulling: list[float] = []
    if kind != "bare":
        kept = {"dtype": torch.bfloat16} if kind.endswith("bf16") else {}
        shield = Protect(model, Importance.equal(model), lam=1.0, **kept)
        pull = shield._pull

        def timed(*args: Any) -> None:
            began = time.perf_counter()
            pull(*args)
            pulling.append(time.perf_counter() - began)

        shield._pull = timed  # type: ignore[method-assign]
        shield.attach(model, optimizer, clip=1.0)
    ids = torch.randint(
        5, min(1000, model.config.vocab_size), (4, 160), generator=torch.Generator().manual_seed(0)
    )
    times = []
    model.train()
    for _ in range(steps + 1):
        began = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        if kind == "bare":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    found = {"peak": peak(), "weights": weights}
    if pulling:  # skip the first step, which creates the optimiser's state
        ratios = [whole / (whole - own) for whole, own in zip(times[1:], pulling[1:], strict=True)]
        found["ratio"] = statistics.median(ratios)
    return found


def measured(kind: str, model: str, steps: int, environment: dict[str, str]) -> dict[str, float]:
    command = [sys.executable, __file__, "--inside", kind, "--model", model, "--steps", str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(inside(arguments.inside, arguments.model, arguments.steps)))
        return
    ratio = {kind: measured(kind, arguments.model, arguments.steps, {})["ratio"] for kind in KINDS[1:]}
    memory = {kind: measured(kind, arguments.model, 1, GIVE_BACK) for kind in KINDS}
    bare = memory["bare"]
    copies = {kind: (memory[kind]["peak"] - bare["peak"]) / bare["weights"] for kind in KINDS[1:]}
    result = {
        "step_vs_unpulled": round(ratio["protected"], 3),
        "step_bf16_vs_unpulled": round(ratio["protected bf16"], 3),
        "extra_copies": round(copies["protected"], 2),
        "extra_copies_bf16": round(copies["protected bf16"], 2),
    }
    print(
        json.dumps(result)
        if arguments.json
        else "\n".join(f"{name}: {value}" for name, value in result.items())
    )
    sys.exit(any(result[name] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    main()

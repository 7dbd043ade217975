"""What protection costs: the time of a step and the memory beside plain fine-tuning.

    python benchmarks/protection.py

trains smollm2 for some steps of 4 x 160 tokens with AdamW, bare and protected in turn, each in a process of
its own, and prints ratios of step times and the extra peak memory in copies of the trainable weights.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--model", default="smollm2")
parser.add_argument("--steps", type=int, default=5)
parser.add_argument("--turns", type=int, default=2)
parser.add_argument("--json", action="store_true")
parser.add_argument("--inside", choices=("bare", "protected", "protected bf16"), help=argparse.SUPPRESS)


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
    if kind != "bare":
        kept = {"dtype": torch.bfloat16} if kind.endswith("bf16") else {}
        Protect(model, Importance.equal(model), lam=1.0, **kept).attach(model, optimizer)
    ids = torch.randint(5, 1000, (4, 160), generator=torch.Generator().manual_seed(0))
    times = []
    model.train()
    for _ in range(steps + 1):
        began = time.perf_counter()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        times.append(time.perf_counter() - began)
    return {"step": min(times[1:]), "peak": peak(), "weights": weights}


def main() -> None:
    arguments = parser.parse_args()
    if arguments.inside:
        print(json.dumps(inside(arguments.inside, arguments.model, arguments.steps)))
        return
    found: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.turns):
        for kind in ("bare", "protected", "protected bf16"):
            command = [
                sys.executable,
                __file__,
                "--inside",
                kind,
                "--model",
                arguments.model,
                "--steps",
                str(arguments.steps),
            ]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            found.setdefault(kind, []).append(json.loads(done.stdout.splitlines()[-1]))
    step = {kind: min(one["step"] for one in turns) for kind, turns in found.items()}
    memory = {kind: statistics.median(one["peak"] for one in turns) for kind, turns in found.items()}
    weights = found["bare"][0]["weights"]
    result = {
        "step_vs_bare": round(step["protected"] / step["bare"], 3),
        "step_bf16_vs_bare": round(step["protected bf16"] / step["bare"], 3),
        "extra_copies": round((memory["protected"] - memory["bare"]) / weights, 2),
        "extra_copies_bf16": round((memory["protected bf16"] - memory["bare"]) / weights, 2),
    }
    print(
        json.dumps(result)
        if arguments.json
        else "\n".join(f"{name}: {value}" for name, value in result.items())
    )


if __name__ == "__main__":
    main()

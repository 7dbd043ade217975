"""Compare a method with others on the same test sentences: paired bootstrap of the difference in Ov.

    python benchmarks/paired.py results/heads --data-dir DATA --stream annomi \\
        --method la+slda --against slda seq la mtl

Reads predictions from the records of a folder and gold labels from --data-dir. All runs that both methods
have are used together: each draw resamples the test sentences of each task, the same ones in every run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.data import load_stream
from holdfast.maths.metrics import paired_difference
from holdfast.storage.files import read_json

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("records", type=Path)
parser.add_argument("--stream", required=True)
parser.add_argument("--preset", default="small")
parser.add_argument("--method", required=True)
parser.add_argument("--against", nargs="+", required=True)
parser.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
parser.add_argument("--draws", type=int, default=2000)


def by_task(record: dict[str, Any]) -> dict[str, list[str]]:
    return dict(zip(record["tasks"], record["predictions"], strict=True))


def main() -> None:
    options = parser.parse_args()
    found: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for path in sorted(options.records.glob("*.json")):
        record = read_json(path)
        spec = record["spec"]
        if (spec["stream"], spec["preset"]) == (options.stream, options.preset) and "predictions" in record:
            found.setdefault(spec["method"], {})[spec["order"], spec["seed"]] = record
    mine = found.get(options.method, {})
    print(f"| {options.method} minus | orders | difference in Ov | standard error | 95 % interval |")
    print("|---|---|---:|---:|---|")
    for other in options.against:
        its = found.get(other, {})
        shared = sorted(set(mine) & set(its))
        if not shared:
            print(f"| {other} | none in common | - | - | - |")
            continue
        gold = {
            task.name: task.test.labels
            for order, _ in shared
            for task in load_stream(options.stream, order=order, data_dir=options.data_dir)
        }
        runs = [[by_task(method[key]) for key in shared] for method in (mine, its)]
        names = [name for name in gold if all(name in run for both in runs for run in both)]
        if len(names) < len(mine[shared[0]]["tasks"]):
            print(f"| {other} | {len(shared)} orders of different tasks | - | - | - |")
            continue
        result = paired_difference(
            [gold[name] for name in names],
            *([[run[name] for name in names] for run in both] for both in runs),
            draws=options.draws,
        )
        orders = ", ".join(f"{order} (seed {seed})" for order, seed in shared)
        print(
            f"| {other} | {orders} | {100 * result.mean:+.2f} | {100 * result.error:.2f} | "
            f"{100 * result.low:+.2f} to {100 * result.high:+.2f} |"
        )


if __name__ == "__main__":
    main()

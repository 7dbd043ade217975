"""Compare a method with others on the same test sentences: paired bootstrap of the difference in Ov.

    python benchmarks/paired.py results/heads --data-dir DATA --stream annomi \\
        --method la+slda --against slda seq la mtl

Reads predictions from the records of a folder and gold labels from --data-dir. All runs that both methods
have are used together: each draw resamples the test sentences of each task, the same ones in every run.
Files without a run, such as the list that `holdfast bench` writes, are skipped.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.data import load_stream
from holdfast.errors import HoldfastError
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


def runs_of(folder: Path) -> list[dict[str, Any]]:
    """Return the records with predictions in a folder."""
    contents = [read_json(path) for path in sorted(folder.glob("*.json"))]
    return [one for one in contents if isinstance(one, dict) and "spec" in one and "predictions" in one]


def main() -> None:
    options = parser.parse_args()
    try:
        compare(options)
    except HoldfastError as error:
        parser.error(str(error))


def compare(options: argparse.Namespace) -> None:
    """Print the table."""
    records = runs_of(options.records)
    found: dict[str, dict[tuple[str, int], dict[str, Any]]] = {}
    for record in records:
        spec = record["spec"]
        if (spec["stream"], spec["preset"]) == (options.stream, options.preset):
            # None is order 1 of streams whose orders have no numbers.
            found.setdefault(spec["method"], {})[spec["order"] or "1", spec["seed"]] = record
    if not found:
        have = sorted(
            {f"--stream {one['spec']['stream']} --preset {one['spec']['preset']}" for one in records}
        )
        raise HoldfastError(
            f"{options.records} has no records of --stream {options.stream} --preset {options.preset}; "
            f"it has {', '.join(have) or 'no records with predictions'}"
        )
    if options.method not in found:
        raise HoldfastError(f"no records of {options.method}; there are those of {', '.join(sorted(found))}")
    mine = found[options.method]
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

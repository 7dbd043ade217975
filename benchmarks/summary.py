"""Ov and CF of every method of a folder of records, order by order and on average.

python benchmarks/summary.py results/heads
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from holdfast.files import read_json
from holdfast.methods import METHODS

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("records", type=Path)


def cell(record: dict[str, Any] | None) -> str:
    if record is None:
        return "-"
    found = record["metrics"]
    return f"{100 * found['Ov']:.2f}" + (f" ({100 * found['CF']:.2f})" if found["CF"] is not None else "")


def mean(records: list[dict[str, Any]], name: str) -> float | None:
    values = [record["metrics"][name] for record in records]
    return None if None in values else 100 * sum(values) / len(values)


def main() -> None:
    groups: dict[tuple[str, str], dict[str, dict[str, dict[str, Any]]]] = {}
    for path in sorted(parser.parse_args().records.glob("*.json")):
        record = read_json(path)
        spec = record["spec"]
        lifted = ", all data" if spec["set"].get("train_per_class", 0) is None else ""
        group = groups.setdefault((spec["stream"], spec["preset"] + lifted), {})
        group.setdefault(spec["method"], {})[spec["order"]] = record
    for (stream, preset), methods in groups.items():
        orders = sorted({order for runs in methods.values() for order in runs})
        print(f"### {stream}, {preset}: Ov (CF)\n")
        print(f"| method | {' | '.join(f'order {order}' for order in orders)} | mean Ov | mean CF |")
        print("|---|" + "---:|" * (len(orders) + 2))
        for name in sorted(methods, key=list(METHODS).index):
            runs = methods[name]
            whole = len(runs) == len(orders)
            averages = [mean(list(runs.values()), metric) if whole else None for metric in ("Ov", "CF")]
            shown = ["-" if value is None else f"{value:.2f}" for value in averages]
            each = " | ".join(cell(runs.get(order)) for order in orders)
            print(f"| `{name}` | {each} | {' | '.join(shown)} |")
        print()


if __name__ == "__main__":
    main()

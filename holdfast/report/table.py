"""Records side by side, with the forward transfer that needs two of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast import metrics
from holdfast.display import percent
from holdfast.errors import HoldfastError
from holdfast.files import read_json, write_bytes
from holdfast.methods import METHODS

Record = dict[str, Any]
METRICS = {"Ov": "↑", "CF": "↓", "BWT+": "↑", "FWT": "↑"}


def load_records(directory: Path) -> list[Record]:
    """The records of a folder, methods in the order of the registry, FWT filled in where `seq` is there."""
    if not directory.is_dir():
        raise HoldfastError(f"{directory} is not a folder")
    records = [read_json(path) for path in sorted(directory.glob("*.json"))]
    records = [record for record in records if isinstance(record, dict) and "spec" in record]
    if not records:
        raise HoldfastError(f"{directory} holds no records; make some with `holdfast run --out {directory}`")
    naive = {_setting(record): record for record in records if record["spec"]["method"] == "seq"}
    for record in records:
        if (
            record["metrics"]["CF"] is not None
            and _setting(record) in naive
            and record["spec"]["method"] != "seq"
        ):
            F, F_seq = record["scores"]["test"], naive[_setting(record)]["scores"]["test"]
            record["metrics"]["FWT"] = metrics.forward_transfer(F, F_seq)
    order = list(METHODS)
    return sorted(records, key=lambda r: (_setting(r), order.index(r["spec"]["method"])))


def _setting(record: Record) -> str:
    """What compared runs must share: all of the spec but the method and its own hyper-parameters."""
    shared = {name: value for name, value in record["spec"].items() if name not in ("method", "set")}
    return json.dumps([shared, _shared_set(record)], sort_keys=True)


def _shared_set(record: Record) -> dict[str, Any]:
    own = METHODS[record["spec"]["method"]].hyper_parameters()
    return {name: value for name, value in record["spec"]["set"].items() if name not in own}


def title(record: Record) -> str:
    """The setting of a record in a few words."""
    spec = record["spec"]
    words = [
        spec["stream"],
        f"order {spec['order']}" if spec["order"] else "",
        f"seed {spec['seed']}",
        spec["preset"],
    ]
    words += [f"{name}={value}" for name, value in _shared_set(record).items()]
    return ", ".join(word for word in words if word)


def groups(records: list[Record]) -> list[list[Record]]:
    """Records that can be compared, together."""
    found: dict[str, list[Record]] = {}
    for record in records:
        found.setdefault(_setting(record), []).append(record)
    return list(found.values())


def print_table(console: Console, records: list[Record]) -> None:
    """Ov, CF, BWT+ and FWT of every record, times 100 as the paper prints them."""
    for group in groups(records):
        table = Table(title=title(group[0]), title_justify="left")
        table.add_column("method", style="bold")
        for name, arrow in METRICS.items():
            table.add_column(f"{name} {arrow}", justify="right")
        table.add_column("seconds", justify="right", style="dim")
        for record in group:
            values = (percent(record["metrics"][name]) for name in METRICS)
            table.add_row(record["spec"]["method"], *values, f"{record['seconds']:.0f}")
        console.print(table)


def write_markdown(path: Path, records: list[Record]) -> Path:
    """The same tables, each with what the search chose task by task, as text for a document."""
    lines: list[str] = []
    for group in groups(records):
        lines += [
            f"### {title(group[0])}",
            "",
            f"| method | {' | '.join(METRICS)} | trainings |",
            "|---|" + "---:|" * 5,
        ]
        for record in group:
            values = " | ".join(percent(record["metrics"][name]) for name in METRICS)
            trainings = sum(len(task["trials"]) for task in record["trials"])
            lines.append(f"| {record['spec']['method']} | {values} | {trainings} |")
        lines += [
            "",
            f"| chosen | {' | '.join(group[0]['tasks'])} |",
            "|---|" + "---|" * len(group[0]["tasks"]),
        ]
        for record in group:
            if len(record["chosen"]) == len(record["tasks"]):
                lines.append(f"| {record['spec']['method']} | {' | '.join(map(_choice, record['chosen']))} |")
        lines.append("")
    write_bytes(path, "\n".join(lines).encode())
    return path


def _choice(chosen: dict[str, Any]) -> str:
    """The hyper-parameters of one task in a cell, with what the search had to say about them."""
    shown = {"lr": "lr", "lam": "λ", "down": "λ_down", "up": "m"}
    numbers = [
        f"{sign} {_short(chosen[name])}" for name, sign in shown.items() if chosen.get(name) is not None
    ]
    return ", ".join([*numbers, *chosen.get("flags", [])])


def _short(value: Any) -> str:
    return "∞" if value == "inf" else f"{value:.3g}"

"""Records side by side, with the forward transfer that needs two of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast import metrics
from holdfast.display import percent
from holdfast.errors import HoldfastError
from holdfast.methods import METHODS
from holdfast.store import read_json

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
    spec = record["spec"]
    own = METHODS[spec["method"]].hyper_parameters()
    shared = {name: value for name, value in spec.items() if name not in ("method", "set")}
    return str(sorted(shared.items(), key=str)) + str({n: v for n, v in spec["set"].items() if n not in own})


def title(record: Record) -> str:
    """The setting of a record in a few words."""
    spec = record["spec"]
    words = [
        spec["stream"],
        f"order {spec['order']}" if spec["order"] else "",
        f"seed {spec['seed']}",
        spec["preset"],
    ]
    words += [f"{name}={value}" for name, value in spec["set"].items()]
    return ", ".join(word for word in words if word)


def print_table(console: Console, records: list[Record]) -> None:
    """Ov, CF, BWT+ and FWT of every record, times 100 as the paper prints them."""
    for setting in dict.fromkeys(map(_setting, records)):
        group = [record for record in records if _setting(record) == setting]
        table = Table(title=title(group[0]), title_justify="left")
        table.add_column("method", style="bold")
        for name, arrow in METRICS.items():
            table.add_column(f"{name} {arrow}", justify="right")
        table.add_column("seconds", justify="right", style="dim")
        for record in group:
            values = (percent(record["metrics"][name]) for name in METRICS)
            table.add_row(record["spec"]["method"], *values, f"{record['seconds']:.0f}")
        console.print(table)

"""Show the contents of a learner's directory."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.data.tasks import printable
from holdfast.errors import HoldfastError
from holdfast.everyday.made import made_by
from holdfast.learning.directory import called
from holdfast.learning.sections import Saved, label_counts, read
from holdfast.maths.params import layer_of
from holdfast.storage.generations import Store


def contents(path: Path) -> dict[str, Any]:
    """Return the labels, lessons, sizes and generations of a state, and the importance of its layers."""
    store = Store(path)
    saved = read(store.load(), path)
    learner = saved.state[1]
    generations = []
    for number in store.generations:
        with suppress(OSError):  # another process may be deleting it
            files = [file.stat() for file in store.path(number).glob("*")]
            generations.append(
                {
                    "generation": number,
                    "bytes": sum(file.st_size for file in files),
                    "current": number == store.current,
                    "written": max((file.st_mtime for file in files), default=0.0),
                    "made": _made(store, number),
                }
            )
    return {
        "state": path,
        "method": saved.origin.method,
        "encoder": called(saved.origin),
        "labels": label_counts(saved),
        "lessons": learner["tasks_seen"],
        "history": [{**entry, "gone": len(entry.get("gone", ()))} for entry in learner["history"]],
        "keep": saved.origin.keep,
        "generations": generations,
        "importance": {
            layer: {"share": share, "relative": relative}
            for layer, (share, relative) in _held_fast(saved).items()
        },
    }


def _made(store: Store, number: int) -> str:
    """Return what made a generation; empty if it cannot be read."""
    try:
        return made_by(number, store.sections(number).sections.get("history", []))
    except (HoldfastError, KeyError, TypeError, AttributeError):
        return ""


def _held_fast(saved: Saved) -> dict[str, tuple[float, float | None]]:
    """Return each layer's mean importance (largest 1), and its ρ in the latest lesson that has any."""
    tensors, meta = saved.state
    sums: dict[str, list[float]] = {}
    for name, value in tensors.get("alpha", {}).items():
        total = sums.setdefault(layer_of(name), [0.0, 0.0])
        total[0] += float(value.sum())
        total[1] += value.numel()
    means = {layer: total / count for layer, (total, count) in sums.items() if count}
    largest = max(means.values(), default=0.0) or 1.0
    measured = [entry["rho"] for entry in meta["history"] if entry.get("rho")]
    rho = measured[-1] if measured else {}
    return {layer: (mean / largest, rho.get(layer)) for layer, mean in sorted(means.items())}


def print_state(console: Console, found: dict[str, Any]) -> None:
    """Print the result of `contents`."""
    labels, history = found["labels"], found["history"]
    console.print(
        f"[bold]{escape(str(found['state']))}[/bold]: method {found['method']} on "
        f"{escape(found['encoder'])}, {len(labels)} labels, {found['lessons']} lessons",
        soft_wrap=True,
        highlight=False,
    )
    lessons = Table("lesson", "sentences", "labels", "new", "valid F1", "drift", "chose", box=None)
    for entry in history:
        lessons.add_row(
            escape(entry["task"]),
            *(str(entry[name]) for name in ("sentences", "labels", "new")),
            "-" if entry["score"] is None else f"{100 * entry['score']:.1f}",
            "-" if entry["drift"] is None else f"{entry['drift']:.3f}",
            escape(f"{entry['chose']}: {entry['why']}") if "chose" in entry else entry.get("correction", "-"),
        )
    console.print(lessons)
    names = [label if n is None else f"{label} {n}" for label, n in labels.items()]
    console.print("labels: " + escape(printable(", ".join(names))), soft_wrap=True, highlight=False)
    sizes = Table("generation", "MB", "written", "", "made by", box=None)
    for one in found["generations"]:
        mark = "current" if one["current"] else ""
        when = datetime.fromtimestamp(one["written"]).isoformat(" ", "minutes")
        made = escape(printable(one["made"])) or "-"
        sizes.add_row(str(one["generation"]), f"{one['bytes'] / 2**20:.1f}", when, mark, made)
    console.print(sizes)
    console.print(f"the newest {found['keep']} are kept; `learn --keep` changes that", highlight=False)
    if not found["importance"]:
        console.print("no weights are protected: no importance is stored")
    for layer, held in found["importance"].items():
        bar = "█" * round(30 * held["share"])
        relative = "" if held["relative"] is None else f"  ρ {held['relative']:.2f}"
        console.print(f"{layer:>10} {bar:<30} {held['share']:.2f}{relative}", highlight=False)

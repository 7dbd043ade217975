"""Show the contents of a learner's directory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from holdfast.data.tasks import printable
from holdfast.learning.directory import called
from holdfast.learning.sections import read
from holdfast.maths.params import layer_of
from holdfast.storage.generations import Store

Held = dict[str, tuple[float, float | None]]  # layer: importance (largest 1), relative importance if known


def held_fast(path: Path) -> Held:
    """Return each layer's mean importance (largest 1), and its ρ in the latest lesson that has any."""
    tensors, meta = read(Store(path).load(), path).state
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


def print_state(console: Console, path: Path, held: Held) -> None:
    """Print the labels, lessons, sizes and generations of a state, and the importance of its layers."""
    store = Store(path)
    saved = read(store.load(), path)
    origin, learner = saved.origin, saved.state[1]
    console.print(
        f"[bold]{escape(str(path))}[/bold]: method {origin.method} on {escape(called(origin))}, "
        f"{len(learner['seen'])} labels, {learner['tasks_seen']} lessons",
        soft_wrap=True,
        highlight=False,
    )
    lessons = Table("lesson", "sentences", "labels", "new", "valid F1", "drift", "chose", box=None)
    for entry in learner["history"]:
        lessons.add_row(
            escape(entry["task"]),
            *(str(entry[name]) for name in ("sentences", "labels", "new")),
            "-" if entry["score"] is None else f"{100 * entry['score']:.1f}",
            "-" if entry["drift"] is None else f"{entry['drift']:.3f}",
            escape(f"{entry['chose']}: {entry['why']}") if "chose" in entry else "-",
        )
    console.print(lessons)
    console.print("labels: " + escape(printable(", ".join(learner["seen"]))), soft_wrap=True, highlight=False)
    sizes = Table("generation", "MB", "", box=None)
    for number in store.generations:
        with suppress(OSError):  # another process may be deleting it
            size = sum(file.stat().st_size for file in store.path(number).glob("*"))
            sizes.add_row(str(number), f"{size / 2**20:.1f}", "current" if number == store.current else "")
    console.print(sizes)
    if not held:
        console.print("no weights are protected: no importance is stored")
    for layer, (share, rho) in held.items():
        bar = "█" * round(30 * share)
        relative = "" if rho is None else f"  ρ {rho:.2f}"
        console.print(f"{layer:>10} {bar:<30} {share:.2f}{relative}", highlight=False)

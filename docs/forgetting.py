"""Draw docs/images/forgetting-*.svg from the records in results/. Run by `make docs`."""

import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

DOCS = Path(__file__).parent
RESULTS = DOCS.parent / "results"
ORDERS = ("1", "2", "3")
USUAL = {"plan": "paper", "optimizer": "adamw"}  # older records do not name them
WIDTH, HEIGHT = 720, 380
LEFT, RIGHT, TOP, BOTTOM = 52, 536, 52, 330
TASKS = 5


class Line(NamedTuple):
    """A method of the picture: its records, its name, its colours in light and dark, how it is drawn."""

    folder: str
    method: str
    name: str
    colours: tuple[str, str]
    shift: float
    """How far its label stands below the end of its line."""


LINES = (
    Line("small", "mtl", "joint training", ("#6b7280", "#9ca3af"), 17),
    Line("forgetting", "auto", "Holdfast's default", ("#0f766e", "#2dd4bf"), -7),
    Line("small", "la", "Look-Ahead", ("#1d4ed8", "#93c5fd"), 4),
    Line("small", "seq", "plain fine-tuning", ("#b91c1c", "#f87171"), 4),
)


@cache
def matrices(folder: str) -> list[tuple[dict[str, Any], Any]]:
    """Return the spec and the score matrix of every record of a folder."""
    paths = sorted((RESULTS / folder).glob("[0-9a-f]*.json"))
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return [(record["spec"], record["scores"]["test"]) for record in found if "spec" in record]


def scores(folder: str, method: str) -> list[list[list[float | None]]]:
    """Return the score matrices of a method on HWU64 in the preset small, one for each order."""
    found = {}
    for spec, matrix in matrices(folder):
        alike = (spec.get("stream"), spec.get("method"), spec.get("preset"), spec.get("seed"))
        usual = USUAL | spec.get("set", {}) == USUAL
        if usual and alike == ("hwu64", method, "small", 0) and spec["order"] in ORDERS:
            found[spec["order"]] = matrix
    return [found[order] for order in ORDERS]


def curve(folder: str, method: str) -> list[float]:
    """Return the mean score of the tasks learnt so far, after each task; the last only, if that is all."""
    means = []
    for after in range(TASKS):
        rows = [matrix[after][: after + 1] for matrix in scores(folder, method)]
        if all(value is not None for row in rows for value in row):
            means.append(100 * fmean(fmean(value for value in row if value is not None) for row in rows))
    return means


def x(task: float) -> float:
    """Return the place of a number of tasks."""
    return LEFT + (task - 1) * (RIGHT - LEFT) / (TASKS - 1)


def y(score: float) -> float:
    """Return the place of a score."""
    return BOTTOM - score * (BOTTOM - TOP) / 100


def picture(dark: bool) -> str:
    """Return the picture for a light or a dark page."""
    ink, faint = ("#e5e7eb", "#374151") if dark else ("#1f2937", "#e5e7eb")
    curves = {line.name: curve(line.folder, line.method) for line in LINES}
    ends = ", ".join(f"{name} {values[-1]:.0f}" for name, values in curves.items())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="Macro-F1 after five tasks: {ends}" font-family="system-ui, sans-serif" font-size="14" '
        f'fill="{ink}">',
        f'<text x="{LEFT}" y="24" font-size="15">Macro-F1 of all tasks learnt so far</text>',
    ]
    for score in range(0, 101, 20):
        parts.append(
            f'<path d="M{LEFT} {y(score):.1f}H{RIGHT}" stroke="{faint}"/>'
            f'<text x="{LEFT - 10}" y="{y(score) + 5:.1f}" text-anchor="end">{score}</text>'
        )
    for task in range(1, TASKS + 1):
        parts.append(f'<text x="{x(task):.1f}" y="{BOTTOM + 24}" text-anchor="middle">{task}</text>')
    parts.append(f'<text x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 44}" text-anchor="middle">tasks learnt</text>')
    parts += [_drawn(line, curves[line.name], line.colours[dark]) for line in LINES]
    return "\n".join([*parts, "</svg>", ""])


def _drawn(line: Line, values: Sequence[float], colour: str) -> str:
    label = (
        f'<text x="{RIGHT + 12}" y="{y(values[-1]) + line.shift:.1f}" fill="{colour}">'
        f"{line.name} {values[-1]:.0f}</text>"
    )
    if len(values) == 1:  # trained on everything at once
        return (
            f'<path d="M{LEFT} {y(values[0]):.1f}H{RIGHT}" stroke="{colour}" stroke-dasharray="5 5"/>' + label
        )
    points = [(x(task), y(value)) for task, value in enumerate(values, start=1)]
    path = "L".join(f"{across:.1f} {down:.1f}" for across, down in points)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{d:.1f}" r="4" fill="{colour}"/>' for a, d in points)
    return f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2.5"/>{dots}{label}'


def pictures() -> dict[Path, str]:
    """Return the text of both pictures by path."""
    return {DOCS / "images" / f"forgetting-{name}.svg": picture(name == "dark") for name in ("light", "dark")}


if __name__ == "__main__":
    for path, text in pictures().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)

"""Figures of the study of frontiers: what a method keeps of the old task at each score of the new one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.maths.frontier import Point, gap
from holdfast.report.figures import PALETTE
from holdfast.report.plots import Axis, Figure, Plot, Series
from holdfast.storage.files import read_json

STUDY = "frontier"
USUAL = "mas"  # the method that the others are compared with
TaskPair = tuple[str, str, str]
"""Stream, old task, new task."""
NOTE = (
    "Each line follows one method over the strengths λ of its penalty, from the right (λ = 0) to the left; "
    "means over seeds, which are the small points. Higher at the same place is better."
)


def figures(directory: Path) -> list[Figure]:
    """Return a figure for each pair of tasks in a folder's records of this study."""
    pairs: dict[TaskPair, list[Mapping[str, Any]]] = {}
    for path in sorted(directory.glob("*.json")):
        try:
            record = read_json(path)
        except HoldfastError:
            continue  # the report complains about it
        if _is_ours(record):
            pairs.setdefault((record["stream"], record["old"], record["new"]), []).append(record)
    return [_figure(pair, records) for pair, records in pairs.items()]


def _figure(pair: TaskPair, records: list[Mapping[str, Any]]) -> Figure:
    paths: dict[str, dict[float, list[Mapping[str, Any]]]] = {}
    for record in records:
        if record["lambda"] > 0:
            paths.setdefault(_name(record), {}).setdefault(record["lambda"], []).append(record)
    free = [record for record in records if record["lambda"] == 0]
    drawn, curves = [], {}
    for number, name in enumerate(sorted(paths)):
        points = sorted([*([(0.0, free)] if free else []), *paths[name].items()], key=lambda point: point[0])
        # Seeds differ more than strengths do, so only seeds that all strengths share are averaged.
        shared = set.intersection(*({record["seed"] for record in own} for _, own in points))
        curves[name] = {seed: _curve(points, seed) for seed in shared}
        tint = PALETTE[number % len(PALETTE)]
        every = [(record, lam) for lam, own in points for record in own]
        seeds = [f"{name}, λ {lam:g}, seed {record['seed']}" for record, lam in every]
        xs, ys = ([100 * record[part] for record, _ in every] for part in ("new_valid", "old_valid"))
        drawn.append(Series(name, xs, ys, tint, "", "dot", size=2, faint=True, named=False, words=seeds))
        points = [(lam, [record for record in own if record["seed"] in shared]) for lam, own in points]
        if not shared:
            continue
        new, old = (
            [100 * fmean(one[part] for one in own) for _, own in points]
            for part in ("new_valid", "old_valid")
        )
        words = [f"{name}, λ {lam:g}, seeds: {len(own)}" for lam, own in points]
        drawn.append(Series(name, new, old, tint, "solid", "dot", size=4, words=words))
    stream, first, second = pair
    axes = Axis(f"validation macro-F1 of the new task, {second}"), Axis(f"of the old task, {first}")
    note = " ".join([NOTE, *_gaps(curves)])
    return Figure(f"{stream}: {first}, then {second}", Plot(drawn, *axes, height=320), note)


def _curve(points: Sequence[tuple[float, list[Mapping[str, Any]]]], seed: int) -> list[Point]:
    return [
        (record["new_valid"], record["old_valid"])
        for _, own in points
        for record in own
        if record["seed"] == seed
    ]


def _gaps(curves: Mapping[str, Mapping[int, list[Point]]]) -> Iterator[str]:
    """Yield how much more than `mas` each other method keeps of the old task."""
    for name, own in curves.items():
        both = own.keys() & curves.get(USUAL, {}).keys() if name != USUAL else ()
        found = [one for seed in both if (one := gap(own[seed], curves[USUAL][seed])) is not None]
        if found:
            mean = 100 * fmean(one.mean for one in found)
            low, high = 100 * min(one.low for one in found), 100 * max(one.high for one in found)
            where = f"Between {low:.1f} and {high:.1f}"
            seeds = "one seed" if len(found) == 1 else f"mean over {len(found)} seeds"
            yield (
                f"{where} on the new task {name} keeps {mean:+.1f} points of the old one compared with "
                f"{USUAL} ({seeds})."
            )


def _name(record: Mapping[str, Any]) -> str:
    return f"{record['method']}{', head too' if record.get('modulate_head') else ''}"


def _is_ours(record: Any) -> bool:
    """Return whether JSON content is a complete record of this study."""
    if not isinstance(record, dict) or record.get("study") != STUDY:
        return False
    texts = [record.get(name) for name in ("stream", "old", "new", "method")]
    numbers = [record.get(name) for name in ("lambda", "new_valid", "old_valid", "seed")]
    return all(isinstance(text, str) for text in texts) and all(
        isinstance(number, int | float) and math.isfinite(number) for number in numbers
    )

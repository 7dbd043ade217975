"""The study on language models, from its records: the paper's two tables, and the frontier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.files import read_json, write_bytes
from holdfast.lm.study import records_of
from holdfast.report.figures import PALETTE, Figure
from holdfast.report.page import assemble, figure_html
from holdfast.report.tables import Cell, Table, html, markdown

Record = dict[str, Any]
Spec = dict[str, Any]
LOSSES = ["old ability", "new ability"]
KINDS = ("naive", "l2", "flow", "wise", "mas", "la", "la-merge")


def write_study(directory: Path) -> Path:
    """The page and the Markdown of a study's folder."""
    records = records_of(directory)
    path = directory / "choices.json"
    choices = read_json(path) if path.exists() else {}
    tables = [table for table in (_by(records, *rule) for rule in _rules(choices)) if table.rows]
    tables += [table for table in [correlations(records)] if table.rows]
    figures = [figure for figure in [frontier(records, choices)] if figure]
    numbers = count(1)
    drawn = "".join(figure_html(figure, numbers) for figure in figures)
    about = "Test loss per output token, in nats: lower is better. All choices were made on validation items."
    lines = [f"{name}: {value:g}" for name, value in choices.items()]
    top = f"<p>{', '.join(lines)}</p>" if lines else "<p class=missing>the study is not finished</p>"
    body = f"<section><div class=figures>{drawn}</div>{''.join(map(html, tables))}</section>"
    write_bytes(directory / "report.md", "\n".join([*lines, "", *map(markdown, tables)]).encode())
    return assemble(directory / "report.html", about, top, body)


def _rules(choices: dict[str, Any]) -> list[tuple[str, str, Callable[[Spec], bool]]]:
    """A table's name, its title, and which records are in it."""
    best, harsh = choices.get("best rate"), choices.get("harsh rate")

    def rates(spec: Spec) -> bool:
        return spec["kind"] in ("untouched", "naive") and spec["seed"] == 0

    def sweep(spec: Spec) -> bool:
        return spec["lr"] == best and spec["kind"] == "mas" and not _odd(spec)

    def elimination(spec: Spec) -> bool:
        return (spec["lr"], spec["mode"], spec["strength"]) == (best, "loss", 1.0)

    def harshly(spec: Spec) -> bool:
        own = spec["kind"] in ("naive", "mas", "la") and spec["mode"] == "proximal"
        return bool(own and spec["lr"] == harsh)

    def others(spec: Spec) -> bool:
        return spec["lr"] == harsh and spec["kind"] in ("l2", "flow", "wise", "la-merge")

    return [
        ("rates", "naive fine-tuning by rate", rates),
        ("sweep", "strength of the penalty, in the loss and as a proximal step", sweep),
        ("elimination", "the loss form with one change at a time, at strength 1", elimination),
        ("harsh", "at the harsh rate", harshly),
        ("frontier", "the others at the harsh rate", others),
    ]


def _odd(spec: Spec) -> bool:
    """Whether it is one of the eliminations."""
    usual = "none" if spec["mode"] == "loss" else "global"
    plain = {"normalise": usual, "clip": 1.0, "dtype": "float32", "squared": False}
    return any(spec[name] != value for name, value in plain.items())


def _by(records: Sequence[Record], name: str, title: str, wanted: Any) -> Table:
    """Records that differ in their seed only are one row: mean, and the range over seeds."""
    rows: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        spec = record["spec"]
        if wanted(spec):
            rows.setdefault(_key(spec), []).append(record)
    cells = []
    for key in sorted(
        rows, key=lambda key: (KINDS.index(key[0]) if key[0] in KINDS else -1, key[1:4], float(key[4]))
    ):
        some = rows[key]
        losses = [_range([record[ability]["test"]["loss"] for record in some]) for ability in ("old", "new")]
        digests = tuple(str(record["spec"]["seed"]) for record in some)
        row = [*key[:4], f"{float(key[4]):g}", str(len(digests)), *losses]
        cells.append([Cell(text) for text in row])
    columns = ["method", "form", "change", "rate", "strength", "seeds", *(f"{name} ↓" for name in LOSSES)]
    return Table(
        name, title, columns, cells, naming=3, note="Mean (least to largest over seeds) of the test loss."
    )


def _key(spec: dict[str, Any]) -> tuple[str, ...]:
    changes = {"clip": 1.0, "dtype": "float32", "squared": False}
    told = [f"{name} {spec[name]}" for name, usual in changes.items() if spec[name] != usual]
    if spec["kind"] == "mas" and spec["normalise"] != ("none" if spec["mode"] == "loss" else "global"):
        told.append(f"normalise {spec['normalise']}")
    form = spec["mode"] if spec["kind"] in ("mas", "la", "l2") else "-"
    return spec["kind"], form, ", ".join(told) or "-", f"{spec['lr']:g}", repr(spec["strength"])


def _range(values: Sequence[float]) -> str:
    mean = sum(values) / len(values)
    return f"{mean:.3f}" + (f" ({min(values):.3f} to {max(values):.3f})" if len(values) > 1 else "")


def correlations(records: Sequence[Record]) -> Table:
    """Between how far weights moved and how much they came to matter."""
    rows = []
    for record in records:
        spec, found = record["spec"], record.get("correlation")
        if found and spec["seed"] == 0:
            of = f"{spec['model']}, rate {spec['lr']:g}"
            rows.append(_four(of, "layers", found))
            rows += [_four(of, kind, values) for kind, values in found["kinds"].items()]
    if rows:
        rows.append(
            [Cell(text) for text in ("Llama-3.2-1B, the paper", "layers", "0.40", "0.63", "0.65", "0.98")]
        )
    title = "correlation of |θ_ft - θ_0| and importance for the new task, over layers"
    return Table("correlation", title, ["model", "weights", "min", "median", "mean", "max"], rows, naming=2)


def _four(of: str, which: str, found: dict[str, float | None]) -> list[Cell]:
    values = [found[name] for name in ("min", "median", "mean", "max")]
    return [Cell(of), Cell(which), *(Cell("-" if value is None else f"{value:.2f}") for value in values)]


def frontier(records: Sequence[Record], choices: dict[str, Any]) -> Figure | None:
    """Loss of the old ability against that of the new one, a line over the strengths of each method."""
    harsh = choices.get("harsh rate")
    data = []
    base = [record for record in records if record["spec"]["kind"] == "untouched"]
    for number, kind in enumerate(KINDS):
        own = [
            r
            for r in records
            if r["spec"]["kind"] == kind and r["spec"]["lr"] == harsh and r["spec"]["mode"] == "proximal"
        ]
        own.sort(key=lambda record: (record["spec"]["strength"], record["spec"]["seed"]))
        if own:
            data.append(_points(kind, own, PALETTE[number], lines=kind != "naive"))
    if base:
        data.append(_points("untouched", base, "#8c96a0", lines=False))
    layout = {"xaxis": {"title": "loss of the new ability →"}, "yaxis": {"title": "loss of the old ability"}}
    note = "Down and to the left is better. Points of one method are its strengths and seeds."
    return Figure("Old against new ability", data, layout, note, height=460) if len(data) > 1 else None


def _points(name: str, records: Sequence[Record], colour: str, *, lines: bool) -> dict[str, Any]:
    return {
        "type": "scatter",
        "name": name,
        "mode": "lines+markers" if lines else "markers",
        "x": [round(record["new"]["test"]["loss"], 4) for record in records],
        "y": [round(record["old"]["test"]["loss"], 4) for record in records],
        "text": [f"strength {r['spec']['strength']:g}, seed {r['spec']['seed']}" for r in records],
        "marker": {"color": colour, "size": 9},
        "line": {"color": colour, "width": 1},
    }

"""One small self-contained page: the table and every score matrix as a heat map. No script, no network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from holdfast.display import percent
from holdfast.files import write_bytes
from holdfast.report.table import METRICS, Record, groups, title

STYLE = """
:root { color-scheme: light dark; --ink: #1c2733; --paper: #fbfaf7; --line: #d9d6cd; --soft: #667380; --hue: 164 }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e6df; --paper: #171b20; --line: #343b44; --soft: #9aa5b1 } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 0 auto;
       max-width: 62rem; padding: 1.5rem 1rem 4rem }
h1 { font-size: 1.6rem; margin: 0 } h2 { font-size: 1.2rem; margin: 2.4rem 0 .6rem }
h3 { font-size: 1rem; margin: 1.6rem 0 0 }
p { margin: .3rem 0; color: var(--soft) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .35rem .7rem; text-align: right; white-space: nowrap } th { font-weight: 600 }
th:first-child { text-align: left } .metrics td, .metrics th { border-bottom: 1px solid var(--line) }
.maps { display: flex; flex-wrap: wrap; gap: 1.6rem } .maps td { min-width: 3.1rem; border: 2px solid var(--paper);
       border-radius: .4rem } .maps th { color: var(--soft); font-weight: 400; font-size: .85rem }
figure { margin: 0; max-width: 100%; overflow-x: auto } figcaption { font-weight: 600; margin-bottom: .3rem }
"""


def write_page(path: Path, records: list[Record]) -> Path:
    """Write the page of these records."""
    body = "".join(
        f"<h2>{escape(title(group[0]))}</h2>{_metrics(group)}<h3>Test macro-F1 after each task</h3>"
        f"<p>Row: after learning that task. Column: the task it is tested on.</p>"
        f"<div class=maps>{''.join(map(_heat_map, group))}</div>"
        for group in groups(records)
    )
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'><title>Holdfast report</title>"
        f"<style>{STYLE}</style><h1>Holdfast</h1><p>One task after another, no old data kept, no task id given. "
        f"Scores are macro-F1 &times; 100.</p>{body}</html>\n"
    )
    write_bytes(path, page.encode())
    return path


def _metrics(records: list[Record]) -> str:
    head = "".join(f"<th>{name} {arrow}</th>" for name, arrow in METRICS.items())
    rows = "".join(
        f"<tr><th>{escape(record['spec']['method'])}</th>"
        + "".join(f"<td>{percent(record['metrics'][name])}</td>" for name in METRICS)
        + "</tr>"
        for record in records
    )
    return f"<div class=wide><table class=metrics><tr><th>method</th>{head}</tr>{rows}</table></div>"


def _heat_map(record: Record) -> str:
    names, F = record["tasks"], record["scores"]["test"]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    rows = "".join(
        f"<tr><th>{escape(name)}</th>{''.join(map(_cell, row))}</tr>"
        for name, row in zip(names, F, strict=True)
        if any(cell is not None for cell in row)
    )
    method = escape(record["spec"]["method"])
    return f"<figure><figcaption>{method}</figcaption><table><tr><th>after</th>{head}</tr>{rows}</table></figure>"


def _cell(value: float | None) -> str:
    if value is None:
        return "<td></td>"
    ink = "#fff" if value > 0.55 else "#12352b"
    return f"<td style='background:hsl(164 45% {92 - 62 * value:.0f}%);color:{ink}'>{100 * value:.1f}</td>"

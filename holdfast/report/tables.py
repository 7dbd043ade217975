"""Tables, and their output as Markdown, CSV, LaTeX and on a terminal. Templates produce the HTML."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from rich.console import Console
from rich.markup import escape as escape_markup
from rich.table import Table as RichTable

Rank = Literal["", "best", "second"]


@dataclass(frozen=True)
class Cell:
    """The text of a cell, its rank in its column and the records it comes from."""

    text: str
    rank: Rank = ""
    records: tuple[str, ...] = ()


@dataclass(frozen=True)
class Table:
    """A table whose first `naming` columns name the row."""

    name: str
    title: str
    columns: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    naming: int = 1
    note: str = ""
    words: bool = False
    """Whether the other cells are words, not numbers."""
    folded: bool = False
    """Whether a page shows it folded."""
    wide: int = 0
    """Number of last columns that a terminal omits for lack of room."""

    @property
    def records(self) -> str:
        """Name of the table of records in the same section."""
        return f"{self.name.partition('-')[0]}-records"


def ranked(values: Sequence[float | None], *, high: bool) -> list[Rank]:
    """Return the ranks of a column: best and second best, or none if all values print alike."""
    known = sorted({round(100 * value, 2) for value in values if value is not None}, reverse=high)
    names: dict[float, Rank] = dict(zip(known, ("best", "second"), strict=False)) if len(known) > 1 else {}
    return ["" if value is None else names.get(round(100 * value, 2), "") for value in values]


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    marks = {"best": "**{}**", "second": "<u>{}</u>", "": "{}"}
    lines = [f"#### {plain(table.title)}", "", f"| {' | '.join(map(plain, table.columns))} |"]
    number = "---|" if table.words else "---:|"
    lines.append("|" + "---|" * table.naming + number * (len(table.columns) - table.naming))
    for row in table.rows:
        cells = (marks[cell.rank].format(plain(cell.text)) for cell in row)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *(["", table.note] if table.note else []), ""])


def plain(text: str) -> str:
    """Escape text for a Markdown cell."""
    return escape(" ".join(text.split()), quote=False).replace("|", "\\|")


def as_csv(table: Table) -> str:
    """Return a table as CSV, with a last column that names the records of each row."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*table.columns, "records"])
    for row in table.rows:
        records = dict.fromkeys(record for cell in row for record in cell.records)
        writer.writerow([*(cell.text for cell in row), " ".join(records)])
    return text.getvalue()


def latex(table: Table) -> str:
    """Return a table as LaTeX, for the package booktabs."""
    marks = {"best": r"\textbf{%s}", "second": r"\underline{%s}", "": "%s"}
    spec = "l" * table.naming + ("l" if table.words else "r") * (len(table.columns) - table.naming)
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{_tex(' '.join(filter(None, [_sentence(table.title), table.note])))}}}",
        rf"\label{{tab:{table.name}}}",
        rf"\begin{{tabular}}{{{spec}}}",
    ]
    lines += [r"\toprule", " & ".join(map(_tex, table.columns)) + r" \\", r"\midrule"]
    lines += [" & ".join(marks[cell.rank] % _tex(cell.text) for cell in row) + r" \\" for row in table.rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


MINUS = re.compile(r"(?<![\w-])-(?=\d)")  # a minus sign, not a hyphen in a word
_TEX = {"\\": r"\textbackslash{}", "±": r"$\pm$", "↑": r"$\uparrow$", "↓": r"$\downarrow$"}
_TEX |= {
    "λ": r"$\lambda$",
    "τ": r"$\tau$",
    "ρ": r"$\rho$",
    "∞": r"$\infty$",
    "×": r"$\times$",
    "·": r"$\cdot$",
}
_TEX |= {character: f"\\{character}" for character in "&%$#_{}"}
_TEX |= {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "≤": r"$\le$"}
_TEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


def _sentence(text: str) -> str:
    return text if text.endswith("?") else f"{text}."


def _tex(text: str) -> str:
    text = "".join(_TEX.get(character, character) for character in text)
    return MINUS.sub("$-$", text)


def show(console: Console, table: Table) -> None:
    """Print a table on a terminal, without its last `wide` columns."""
    kept = range(len(table.columns) - table.wide)
    styles = {"best": "[bold]{}[/bold]", "second": "[underline]{}[/underline]", "": "{}"}
    shown = RichTable(title=table.title, title_justify="left")
    for column in kept:
        naming = column < table.naming
        shown.add_column(table.columns[column], justify="left" if naming else "right", no_wrap=not naming)
    for row in table.rows:
        cells = (row[column] for column in kept)
        shown.add_row(*(styles[cell.rank].format(escape_markup(cell.text)) for cell in cells))
    console.print(shown)


def short(value: Any) -> str:
    """Return a hyper-parameter with three significant digits."""
    return "-" if value is None else "∞" if value == "inf" else f"{value:.3g}"

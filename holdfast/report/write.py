"""Write the report of a folder: a page, and its tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from holdfast.report.page import write_page
from holdfast.report.plots import Figure
from holdfast.report.runs import Section, load_sections
from holdfast.report.summary import caution, told
from holdfast.report.tables import Table, as_csv, latex, markdown, plain
from holdfast.storage.files import write_text


@dataclass(frozen=True)
class Written:
    """The page that was written, its sections and the complaints about the folder."""

    page: Path
    sections: list[tuple[Section, list[Table]]]
    complaints: list[str]


def write(
    directory: Path,
    tables_of: Callable[[Section, str], list[Table]],
    figures_of: Callable[[Section], list[Figure]],
    others_of: Callable[[Path], list[Figure]],
) -> Written:
    """Write the report of a folder's records into that folder.

    `tables_of` gets a section and the prefix of its tables' file names; `others_of` gets the folder, for
    records of studies that are not runs.
    """
    others = others_of(directory)
    found, complaints = load_sections(directory, alone=not others)
    sections = [(one, tables_of(one, f"{number:02d}")) for number, one in enumerate(found, start=1)]
    complaints = [*filter(None, map(caution, found)), *complaints]
    lines: list[str] = []
    for section, tables in sections:
        lines += [f"### {section.title}", ""]
        for line in (*told(section), caution(section)):
            lines += [plain(line), ""] if line else []
        lines += map(markdown, tables)
    write_tables(directory, "[0-9][0-9]-", [table for _, tables in sections for table in tables])
    write_text(directory / "report.md", "\n".join(lines))
    shown = [(section, tables, figures_of(section)) for section, tables in sections]
    return Written(write_page(directory / "report.html", shown, complaints, others), sections, complaints)


def write_tables(directory: Path, begin: str, tables: Iterable[Table]) -> None:
    """Write tables as CSV and LaTeX; first delete earlier ones whose names start with the pattern `begin`."""
    for old in (directory / "tables").glob(f"{begin}*.*"):
        if old.suffix in (".csv", ".tex"):
            old.unlink()
    for table in tables:
        write_text(directory / "tables" / f"{table.name}.csv", as_csv(table))
        write_text(directory / "tables" / f"{table.name}.tex", latex(table))

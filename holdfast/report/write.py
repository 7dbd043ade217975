"""Writes the report of a folder: a page, and its tables as Markdown, CSV and LaTeX."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from holdfast.report.page import write_page
from holdfast.report.runs import Section, load_sections
from holdfast.report.tables import Table, as_csv, latex, markdown
from holdfast.storage.files import write_text
from holdfast.studies.views import tables_of


@dataclass(frozen=True)
class Written:
    """What was written, and what there was to say about the folder."""

    page: Path
    sections: list[tuple[Section, list[Table]]]
    complaints: list[str]


def write_report(directory: Path) -> Written:
    """The report of a folder's records, in that folder."""
    found, complaints = load_sections(directory)
    sections = [
        (section, tables_of(section, f"{number:02d}")) for number, section in enumerate(found, start=1)
    ]
    lines: list[str] = []
    for old in (directory / "tables").glob("[0-9][0-9]-*.*"):
        if old.suffix in (".csv", ".tex"):
            old.unlink()
    for section, tables in sections:
        lines += [f"### {section.title}", ""]
        if section.missing:
            lines += [f"{len(section.missing)} of {len(section.runs)} runs are missing.", ""]
        for table in tables:
            lines.append(markdown(table))
            write_text(directory / "tables" / f"{table.name}.csv", as_csv(table))
            write_text(directory / "tables" / f"{table.name}.tex", latex(table))
    write_text(directory / "report.md", "\n".join(lines))
    page = write_page(directory / "report.html", sections, complaints)
    return Written(page, sections, complaints)

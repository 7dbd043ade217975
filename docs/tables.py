"""Puts the tables of a study's report.md into docs/results.md, where their headings stand: `make docs`."""

import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).parent
TABLE = re.compile(r"(?P<head>#### .+\n)\n(?P<rows>(?:\|.*\n)+)(?:\n(?P<note>[^#\n].*)\n)?")


def refreshed(page: str, report: str) -> str:
    """The page with every table under a heading of the report as the report has it, its note beside it."""
    for table in TABLE.finditer(report):
        head, rows, note = table.group("head", "rows", "note")
        shown = f"{head}\n{rows}"
        there = rf"{re.escape(head)}\n(?:\|.*\n)+"
        if note:
            # The page breaks the lines of a note, which may have been reworded after its first words.
            shown += f"\n{textwrap.fill(note, 120, break_on_hyphens=False)}\n"
            there += rf"\n{re.escape(note[:12])}.*\n(?:.+\n)*"
        page, count = re.subn(there, shown.replace("\\", r"\\"), page)
        if head in page and not count:
            raise SystemExit(f"{head.strip()}: its note has changed; put its first words on the page by hand")
    return page


if __name__ == "__main__":
    page = DOCS / "results.md"
    report = (DOCS.parent / "results" / "small" / "report.md").read_text()
    page.write_text(refreshed(page.read_text(), report))

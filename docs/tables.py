"""Copy the tables of results/small/report.md into docs/results.md by heading. Run by `make docs`."""

import re
import textwrap
from pathlib import Path

DOCS = Path(__file__).parent
TABLE = re.compile(r"(?P<head>#### .+\n)\n(?P<rows>(?:\|.*\n)+)(?:\n(?P<note>[^#\n].*)\n)?")


def refreshed(page: str, report: str) -> str:
    """Return the page with its tables and their notes replaced by those of the report, matched by heading."""
    for table in TABLE.finditer(report):
        head, rows, note = table.group("head", "rows", "note")
        shown = f"{head}\n{rows}"
        there = rf"{re.escape(head)}\n(?:\|.*\n)+"
        if note:
            # The page wraps notes; a note is found by its first words, because the rest may have changed.
            shown += f"\n{textwrap.fill(note, 120, break_on_hyphens=False)}\n"
            there += rf"\n{re.escape(note[:12])}.*\n(?:.+\n)*"
        page, count = re.subn(there, shown.replace("\\", r"\\"), page)
        if head in page and not count:
            raise SystemExit(f"{head.strip()}: the note has changed; copy its first words to the page")
    return page


if __name__ == "__main__":
    page = DOCS / "results.md"
    report = (DOCS.parent / "results" / "small" / "report.md").read_text()
    page.write_text(refreshed(page.read_text(), report))

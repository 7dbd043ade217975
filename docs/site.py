"""Hooks of mkdocs: pages of the repository's root, and links to files that are no pages."""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changes.md", "SECURITY.md": "security.md"}
BOOST = {"how-to/": 3, "everyday.md": 3, "index.md": 2, "concepts/": 2, "studies/": 0.3, "changes.md": 0.1}
"""How much more a page counts in the search than others."""
MERMAID = re.compile(r"```mermaid\n(.*?)```\n", re.DOTALL)
NODE = re.compile(r'^  (\w+)\["<b>\w+</b><br/>(.+)"\]$', re.MULTILINE)
EDGE = re.compile(r"^  (\w+) --> (\w+)$", re.MULTILINE)
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the root."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, content=(ROOT / source).read_text(encoding="utf-8")))
    return files


def tabled(drawing: re.Match[str]) -> str:
    """Return a Mermaid drawing of layers as a table: to draw it, a page would need a script of 3 MB."""
    below: dict[str, list[str]] = {}
    for one, other in EDGE.findall(drawing[1]):
        below.setdefault(one, []).append(f"`{other}`")
    rows = [
        f"| `{name}` | {what} | {', '.join(below.get(name, []))} |" for name, what in NODE.findall(drawing[1])
    ]
    return "\n".join(["| package | what is in it | imports from |", "|---|---|---|", *rows[::-1], ""])


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links at pages of the site; a link to a file that the site does not have becomes its name."""
    for begin, boost in BOOST.items():
        if page.file.src_uri.startswith(begin):
            page.meta.setdefault("search", {})["boost"] = boost
    sources = {place: source for source, place in PAGES.items()}
    own = page.file.src_uri
    here = posixpath.dirname(sources.get(own, f"docs/{own}"))

    def changed(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(here, link[2]))
        place = PAGES.get(target, target.removeprefix("docs/") if target.startswith("docs/") else None)
        if place is None or files.get_file_from_path(place) is None:
            return link[0] if not (ROOT / target).exists() else "](#)"
        return f"{link[1]}{posixpath.relpath(place, posixpath.dirname(own) or '.')}{link[3] or ''})"

    shown = LINK.sub(changed, MERMAID.sub(tabled, markdown))
    return re.sub(r"\[([^\]]+)\]\(#\)", r"\1", shown)

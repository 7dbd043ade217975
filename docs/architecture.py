"""Draw the package's layers, from its imports, into docs/architecture.md. Run by `make docs`.

Imports inside functions and under TYPE_CHECKING count too.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "holdfast"
PAGE = Path(__file__).parent / "architecture.md"
BEGIN, END = "<!-- layers: written by docs/architecture.py -->\n", "<!-- end of layers -->"
# Lowest first. A package imports only from itself and from earlier entries.
LAYERS = {
    "root": "errors, fields, settings, events, distributed",
    "maths": "the paper's equations, losses, metrics",
    "storage": "atomic files, locks, generations",
    "data": "tasks, streams, batches, readers",
    "heads": "trained and closed-form heads",
    "models": "encoder, adapters, model sources",
    "importance": "estimators, relative importance",
    "steps": "proximal pull, projection, UPGD",
    "methods": "the contract, the search, one file per method",
    "learning": "Learner, fit, trials, directories",
    "runtime": "questions and answers, without torch",
    "everyday": "teach, predict, correct, evaluate, suggest, drift",
    "lm": "protection of language models",
    "bench": "suites, runs, records, engines",
    "report": "tables, figures and pages from records",
    "studies": "the paper's studies and our own",
    "serve": "the service and its page",
    "app": "the command line",
}
EXEMPT = ("holdfast", "holdfast.__main__")


def name_of(path: Path) -> str:
    """Return the dotted name of a module."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def imports(source: str, known: Mapping[str, object] = MODULES) -> set[str]:
    """Return all modules that a source file imports, including submodules imported by name."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                raise ValueError("relative imports are not used")
            base = node.module or ""
            found |= {f"{base}.{a.name}" if f"{base}.{a.name}" in known else base for a in node.names}
    return found


def imports_of(name: str) -> set[str]:
    """Return all modules that a module of the package imports."""
    return imports(MODULES[name].read_text())


def layer_of(name: str) -> str:
    """Return the layer of a module of the package."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and (PACKAGE / parts[1]).is_dir() else "root"


def edges() -> Iterator[tuple[str, str]]:
    """Yield each import between modules of the package, without those of `EXEMPT` modules."""
    for name in MODULES:
        if name not in EXEMPT:
            yield from ((name, other) for other in sorted(imports_of(name)) if other in MODULES)


def drawn() -> str:
    """Return the layers as a Mermaid diagram of the imports between them."""
    between = Counter(
        (layer_of(one), layer_of(other)) for one, other in set(edges()) if layer_of(one) != layer_of(other)
    )
    lines = ["```mermaid", "flowchart BT"]
    lines += [f'  {layer}["<b>{layer}</b><br/>{what}"]' for layer, what in LAYERS.items()]
    reach = {layer: {other for one, other in between if one == layer} for layer in LAYERS}
    for layer in LAYERS:
        # Omit imports that are already implied by a path through another layer.
        through = {far for near in reach[layer] for far in _all(near, reach)}
        lines += [f"  {layer} --> {other}" for other in LAYERS if other in reach[layer] - through]
    return "\n".join([*lines, "```", ""])


def _all(layer: str, reach: Mapping[str, set[str]]) -> set[str]:
    return reach[layer].union(*(_all(other, reach) for other in reach[layer]))


def page(text: str) -> str:
    """Return the page with an up-to-date diagram."""
    before, _, rest = text.partition(BEGIN)
    return before + BEGIN + drawn() + END + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))

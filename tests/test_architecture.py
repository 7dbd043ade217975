"""The shape of the package: imports that form a DAG, files of a readable size, nothing that unpickles."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "holdfast"
FILES = sorted(PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in FILES}


def is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )


def statements(body: list[ast.stmt]) -> list[ast.stmt]:
    """The statements that run when a module is imported."""
    found = []
    for statement in body:
        if isinstance(statement, ast.If) and is_type_checking(statement.test):
            found += statements(statement.orelse)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            found.append(statement)
            for part in ("body", "orelse", "finalbody"):
                found += statements(getattr(statement, part, []))
            for handler in getattr(statement, "handlers", []):
                found += statements(handler.body)
    return found


def imports(source: str, package: str = "") -> set[str]:
    """The modules imported at module level; names taken from a package count as modules if they are ours."""
    found = set()
    for statement in statements(ast.parse(source).body):
        if isinstance(statement, ast.Import):
            found |= {alias.name for alias in statement.names}
        elif isinstance(statement, ast.ImportFrom):
            base = statement.module or ""
            if statement.level:
                above = package.split(".")[: len(package.split(".")) - statement.level + 1]
                base = ".".join([*above, *filter(None, [base])])
            for alias in statement.names:
                whole = f"{base}.{alias.name}"
                found.add(whole if whole in MODULES else base)
    return found


def imports_of(name: str) -> set[str]:
    path = MODULES[name]
    return imports(path.read_text(), name if path.name == "__init__.py" else name.rpartition(".")[0])


def test_the_reader_of_imports_reads() -> None:
    source = """
import torch
from typing import TYPE_CHECKING
from holdfast.maths import params as P
from holdfast.data.tasks import Task
if TYPE_CHECKING:
    from holdfast.learning.learner import Learner
else:
    import json
try:
    import yaml
except ImportError:
    import toml
class A:
    import csv
def f():
    import pickle
"""
    ours = {"holdfast.maths.params", "holdfast.data.tasks"}
    assert imports(source) == ours | {"torch", "typing", "json", "yaml", "toml", "csv"}
    assert imports("from . import tasks\nfrom ..errors import E", "holdfast.data") == {
        "holdfast.data.tasks",
        "holdfast.errors",
    }


def test_imports_form_a_dag() -> None:
    graph = {name: {other for other in imports_of(name) if other in MODULES} for name in MODULES}
    assert sum(map(len, graph.values())) > 50  # it does see the imports
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"imports go round: {' -> '.join(error.args[1])}")


def test_equations_need_nothing_but_torch() -> None:
    roots = {name.partition(".")[0] for name in imports_of("holdfast.maths.equations")}
    assert roots - sys.stdlib_module_names == {"torch"}


def test_search_and_metrics_know_neither_data_nor_models() -> None:
    for name in (
        "holdfast.methods.search",
        "holdfast.maths.metrics",
        "holdfast.steps.proximal",
        "holdfast.learning.passes",
    ):
        ours = {other for other in imports_of(name) if other.startswith("holdfast")}
        assert ours <= {"holdfast.maths.equations", "holdfast.maths.params", "holdfast.settings"}


def test_commands_that_build_no_model_start_without_model_code() -> None:
    seen = "import sys, holdfast.bench.bench, holdfast.report, holdfast.models.sources; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    slow = {"transformers.modeling_utils", "torch._dynamo", "sklearn", "pandas"}
    assert not slow & set(done.stdout.split()), "seconds, at every start"


def test_nothing_unpickles() -> None:
    # loading a state never runs code
    for path in FILES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                named = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                names = {part for name in named for part in name.split(".")}
                assert not names & {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}, path
            if (
                isinstance(node, ast.Attribute)
                and isinstance(node.value, ast.Name)
                and node.value.id == "torch"
            ):
                assert node.attr not in ("load", "save"), f"{path}:{node.lineno}"
            if isinstance(node, ast.ImportFrom) and node.module == "torch":
                assert not {"load", "save"} & {alias.name for alias in node.names}, path

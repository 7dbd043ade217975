"""The architecture of the package: layers, no import cycles, shallow methods, unique names, no unpickling."""

import ast
import importlib.util
import subprocess
import sys
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter

import pytest
from helpers.paths import ROOT, TESTS

from holdfast.methods import METHODS
from holdfast.methods.base import Method

_spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
assert _spec is not None
assert _spec.loader is not None
architecture = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(architecture)
FILES = list(architecture.MODULES.values())
EDGES = list(architecture.edges())


def test_the_reader_of_imports_reads() -> None:
    source = """
import torch
from typing import TYPE_CHECKING
from holdfast.maths import params as P
from holdfast.data.tasks import Task
if TYPE_CHECKING:
    from holdfast.learning.learner import Learner
class A:
    import csv
def f():
    import pickle
"""
    ours = {"holdfast.maths.params", "holdfast.data.tasks", "holdfast.learning.learner"}
    assert architecture.imports(source) == ours | {"torch", "typing", "csv", "pickle"}
    with pytest.raises(ValueError, match="relative imports"):
        architecture.imports("from . import tasks")
    assert len(EDGES) > 300


def test_layers_import_only_from_those_below() -> None:
    order = list(architecture.LAYERS)
    packages = {path.name for path in architecture.PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert packages == set(order) - {"root"}
    wrong = [
        f"{one} imports {other}"
        for one, other in EDGES
        if order.index(architecture.layer_of(other)) > order.index(architecture.layer_of(one))
    ]
    assert not wrong
    assert not [one for one, other in EDGES if other == "holdfast"], "only users import from __init__"


def test_imports_go_in_no_circle() -> None:
    """Lazy imports and those under TYPE_CHECKING count too."""
    graph = defaultdict(set)
    for one, other in EDGES:
        graph[one].add(other)
    try:
        list(TopologicalSorter(graph).static_order())
    except CycleError as error:
        pytest.fail(f"an import cycle: {' -> '.join(error.args[1])}")


def test_the_root_holds_foundations_only() -> None:
    assert len(list(architecture.PACKAGE.glob("*.py"))) <= 7


def test_the_picture_of_the_layers_is_current() -> None:
    text = architecture.PAGE.read_text()
    assert text == architecture.page(text), "outdated, run `make docs`"


@pytest.mark.parametrize("name", METHODS)
def test_a_method_has_at_most_two_ancestors(name: str) -> None:
    own = [cls for cls in METHODS[name].__mro__[1:] if cls.__module__.startswith("holdfast")]
    assert len(own) <= 2
    assert not own or own[-1] is Method


def test_a_name_of_a_class_or_type_has_one_meaning() -> None:
    places = defaultdict(set)
    for name, path in architecture.MODULES.items():
        for node in ast.parse(path.read_text()).body:
            named = [node.name] if isinstance(node, ast.ClassDef) else []
            if isinstance(node, ast.Assign | ast.AnnAssign):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                named = [target.id for target in targets if isinstance(target, ast.Name)]
            for word in named:
                if word[0].isupper() and not word.isupper():
                    places[word].add(name)
    assert len(places) > 100
    assert not {word: sorted(where) for word, where in places.items() if len(where) > 1}


def test_equations_need_nothing_but_torch() -> None:
    roots = {name.partition(".")[0] for name in architecture.imports_of("holdfast.maths.equations")}
    assert roots - sys.stdlib_module_names == {"torch"}


def test_search_and_metrics_know_neither_data_nor_models() -> None:
    names = ("methods.search", "maths.metrics", "steps.proximal", "learning.passes")
    for name in (f"holdfast.{name}" for name in names):
        ours = {other for other in architecture.imports_of(name) if other.startswith("holdfast")}
        assert ours <= {
            f"holdfast.{one}" for one in ("maths.equations", "maths.metrics", "maths.params", "settings")
        }


def test_commands_that_build_no_model_start_without_model_code() -> None:
    modules = "holdfast.bench.bench, holdfast.studies.views, holdfast.models.sources"
    seen = f"import sys, {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", seen], capture_output=True, text=True, check=True)
    slow = {"transformers.modeling_utils", "torch._dynamo", "sklearn", "pandas"}
    assert not slow & set(done.stdout.split()), "these imports take seconds at every start"


def test_no_test_imports_a_test_or_a_conftest() -> None:
    """Code that tests share belongs in helpers/."""

    def refused(source: str) -> list[str]:
        names = architecture.imports(source, known)
        return sorted(name for name in names if name.rpartition(".")[2].startswith(("test_", "conftest")))

    files = sorted(TESTS.rglob("*.py"))
    parts = [path.relative_to(TESTS).with_suffix("").parts for path in files]
    known = dict.fromkeys(".".join(part) for part in parts)
    assert {"bench.test_run", "bench.conftest", "conftest"} <= known.keys()
    for source in ("import test_run", "from test_run import spec", "from bench import test_run"):
        assert refused(source), source
    for source in ("import conftest", "from conftest import small", "from bench import conftest"):
        assert refused(source), source
    assert not refused("from helpers.runs import spec")
    wrong = {str(path.relative_to(TESTS)): refused(path.read_text()) for path in files}
    assert not {path: names for path, names in wrong.items() if names}


def test_nothing_unpickles() -> None:
    # Loading a state never runs code.
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

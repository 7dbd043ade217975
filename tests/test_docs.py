"""Generated pages are current, and the code in the documentation runs."""

import importlib
import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest
from helpers.learners import make_learner
from helpers.paths import ROOT
from helpers.toys import class_stream, small
from typer.main import get_command

from holdfast.app.main import app
from holdfast.app.methods_page import methods_page
from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.report.tables import markdown
from holdfast.studies.views import write_report


def test_the_page_of_methods_is_current():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert page == methods_page(), "outdated, run `make docs`"


def test_the_page_of_commands_is_current():
    written = runpy.run_path(str(ROOT / "docs" / "cli.py"))
    assert (ROOT / "docs" / "cli.md").read_text() == written["page"](), "outdated, run `make docs`"


def test_the_page_of_commands_names_the_options_that_the_command_line_accepts():
    page = (ROOT / "docs" / "cli.md").read_text()
    for section in page.split("\n## ")[1:]:
        command, words = get_command(app), section.splitlines()[0].strip("`").split()[1:]
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        accepted = {option.opts[0] for option in command.params if option.param_type_name == "option"}
        assert set(re.findall(r"^\| `(--[^`]+)` \|", section, re.MULTILINE)) == accepted - {"--help"}


def test_the_page_names_every_method_with_its_paper_and_hyper_parameters():
    page = methods_page()
    for name, method in METHODS.items():
        entry = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        facts = method.facts()
        assert facts["Paper"] in entry
        assert facts["Equation"] in entry
        assert all(f"| `{field}` |" in entry for field in method.hyper_parameters())
        assert f"| `{name}` | {facts['Two tasks']} | {facts['Extras']} |" in page


EXAMPLE = (ROOT / "docs" / "adding-a-method.md").read_text().partition("```python\n")[2].partition("```")[0]


def test_the_example_of_a_method_holds_the_faster_the_stronger(one_layer, tmp_path, monkeypatch):
    assert len(EXAMPLE.splitlines()) <= 60
    (tmp_path / "l2.py").write_text(EXAMPLE)
    monkeypatch.syspath_prepend(tmp_path)
    method = importlib.import_module("l2").L2
    assert method.facts()["Paper"] == "Li, Grandvalet, Davoine, ICML 2018"
    stream, moved = class_stream(), []
    for lam in (0.0, 1.0, 100.0):
        learner = make_learner(one_layer, method(lam=lam), stream, small(epochs=1), fixed={"lam"})
        learner.learn(stream.tasks[0])
        start = P.snapshot(learner.model)
        learner.learn(stream.tasks[1])
        end = P.snapshot(learner.model)
        moved.append(sum(float((end[n][: len(w)] - w).square().sum()) for n, w in start.items()))
    assert moved[0] > moved[1] > moved[2] > 0
    assert "lam" in learner.learn(stream.tasks[2]).decision.trial.choice


@pytest.mark.slow
def test_the_example_of_a_method_keeps_the_contract(tmp_path):
    """With only the file, the import and the line in METHODS, the contract suite finds it."""
    shutil.copytree(ROOT / "holdfast", tmp_path / "holdfast", ignore=shutil.ignore_patterns("__pycache__"))
    methods = tmp_path / "holdfast" / "methods"
    (methods / "l2.py").write_text(EXAMPLE)
    registry = (methods / "__init__.py").read_text()
    registry = registry.replace("\nMETHODS:", "from holdfast.methods.l2 import L2\n\nMETHODS:")
    registry = registry.replace('    "seq": Method,', '    "seq": Method,\n    "l2": L2,')
    (methods / "__init__.py").write_text(registry)
    unneeded = shutil.ignore_patterns("__pycache__", "frozen")
    shutil.copytree(ROOT / "tests", tmp_path / "tests", ignore=unneeded)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    words = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-m", "slow or not slow", "-k", "l2"]
    done = subprocess.run(
        [*words, "tests/contract"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"(\d+) passed", done.stdout)
    assert found is not None
    assert int(found[1]) > 20, "the suite must have tested it"


def test_the_tables_of_the_results_are_those_of_the_records(tmp_path):
    """The main tables on the page are those of `holdfast report results/small`, except for line breaks."""
    shutil.copytree(ROOT / "results" / "small", tmp_path / "small", ignore=shutil.ignore_patterns(".trials"))
    page = " ".join((ROOT / "docs" / "results.md").read_text().split())
    shown = [
        table
        for section, tables in write_report(tmp_path / "small").sections
        for table in tables
        if section.title.startswith(("paper-small", "modern-small"))
        and table.name.endswith(("-main", "-by-order", "-compared"))
    ]
    assert len(shown) == 12
    for table in shown:
        assert " ".join(markdown(table).split()) in page, f"{table.title}: outdated, run `make docs`"


COMMAND = re.compile(r"(?:^|[`;&]|do|-m)\s*holdfast ([a-z](?:\\\n|[^`\n])*)", re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def commands(text: str) -> list[list[str]]:
    """Return the words of every holdfast command in a page, without explanations after several spaces."""
    found = []
    for match in COMMAND.finditer(text):
        line = match[1].replace("\\\n", " ").partition("#")[0].partition("&&")[0].partition(";")[0]
        if "|" in line or "..." in line or "…" in line:
            continue  # a list of commands or a part of a command
        plain = re.sub(r"(?<=[A-Z]) {3,}.*|\$method|\$order", lambda m: "la" if "$" in m[0] else "", line)
        found.append(plain.split())
    return found


def test_commands_are_found_in_a_page():
    text = "`holdfast data list` and\n```\nholdfast predict STATE TEXT   a label; and more\nfor m in a; do\n"
    text += "  holdfast run --method $method \\\n    --seed 1   # hours\n```\n`holdfast data list|get`"
    expected = ["data list", "predict STATE TEXT", "run --method la --seed 1"]
    assert commands(text) == [line.split() for line in expected]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_the_docs_is_understood(page):
    """The command line accepts the command, all options and the types of their values."""
    for words in commands(page.read_text()):
        command, rest = get_command(app), list(words)
        while hasattr(command, "commands") and rest:
            name = rest.pop(0)
            assert name in command.commands, f"holdfast {' '.join(words)}: no command {name}"
            command = command.commands[name]
        if any(word.startswith("-") for word in rest):
            rest = ["1" if word == "N" else word for word in rest]
            required = [f"--{option.name}=x" for option in command.params if option.required]
            given = {word.partition("=")[0] for word in rest}
            rest += [word for word in required if word.partition("=")[0] not in given and "out" in word]
            command.make_context(name, rest)

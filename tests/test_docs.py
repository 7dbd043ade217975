"""Generated pages are current, and the code in the documentation runs."""

import importlib
import json
import os
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from statistics import mean, stdev
from types import NoneType
from typing import get_args, get_type_hints

import pytest
from helpers.command_line import call
from helpers.learners import make_learner
from helpers.paths import ROOT
from helpers.serving import running
from helpers.toys import class_stream, small
from typer.main import get_command

import holdfast
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


def test_every_command_returns_its_answer_for_format_json():
    """See app/formats.py; a new command also gets a case in tests/app/test_formats.py."""
    groups = [app]
    while groups:
        group = groups.pop()
        groups += [inner.typer_instance for inner in group.registered_groups]
        for command in group.registered_commands:
            hints = get_type_hints(command.callback)
            assert hints["return"] is not NoneType, f"{command.name} returns no answer"
            assert {"text", "json"} <= set(get_args(hints["format"])), command.name


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


def test_the_tables_of_the_studies_are_those_of_the_records(tmp_path):
    """The main tables of the studies are those of `holdfast report results/small`, except for line breaks."""
    shutil.copytree(ROOT / "results" / "small", tmp_path / "small", ignore=shutil.ignore_patterns(".trials"))
    text = "".join(page.read_text() for page in (ROOT / "docs" / "studies").glob("*.md"))
    page = " ".join(text.split())
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


def test_the_tables_of_the_results_are_made_from_the_records():
    written = runpy.run_path(str(ROOT / "docs" / "tables.py"))
    for path, text in written["pages"]().items():
        assert path.read_text() == text, f"{path.name}: outdated, run `make docs`"
    page = "".join((ROOT / name).read_text() for name in ("README.md", "docs/results.md"))
    assert set(re.findall(r"<!-- table: ([a-z-]+),", page)) == set(written["WRITTEN"])


@pytest.mark.parametrize(
    ("where", "name", "shown"),
    [
        ("small", "modern-small, hwu64", ["53.21 (22.5)", "40.19"]),
        ("small", "paper-small, hwu64", ["55.20 (25.6)", "48.69"]),
        ("heads", "annomi, preset small", ["49.80 (0.4)", "1.45"]),
    ],
)
def test_a_table_of_the_results_has_the_mean_of_the_records(where, name, shown):
    """The slow way: open the records of `la` and average the metrics that the runs wrote themselves."""
    settings = {
        "modern-small, hwu64": ("hwu64", {}),
        "paper-small, hwu64": ("hwu64", {"head": "preallocated", "logits": "all"}),
        "annomi, preset small": ("annomi", {"train_per_class": None, "valid_per_class": None}),
    }
    found = []
    for path in (ROOT / "results" / where).glob("[0-9a-f]*.json"):
        record = json.loads(path.read_text())
        if "spec" in record and record["spec"]["method"] == "la":
            stream, values = settings[name]
            spec = record["spec"]
            if (spec["stream"], spec["set"], spec["order"] in ("1", "2", "3")) == (stream, values, True):
                found.append([100 * record["metrics"][metric] for metric in ("Ov", "CF")])
    assert len(found) == 3
    ov, cf = zip(*found, strict=True)
    assert shown == [f"{mean(ov):.2f} ({stdev(ov):.1f})", f"{mean(cf):.2f}"]
    row = next(line for line in (ROOT / "docs" / "results.md").read_text().splitlines() if shown[0] in line)
    assert row.startswith("| `la` |")
    assert f"{shown[0]} | {shown[1]} |" in row


def test_the_picture_of_forgetting_is_made_from_the_records():
    drawn = runpy.run_path(str(ROOT / "docs" / "forgetting.py"))
    for path, text in drawn["pictures"]().items():
        assert path.read_text() == text, f"{path.name}: outdated, run `make docs`"


def test_the_picture_of_forgetting_shows_the_means_of_the_records():
    """The slow way: average the rows of F of plain fine-tuning, one order after another."""
    drawn = runpy.run_path(str(ROOT / "docs" / "forgetting.py"))
    names = ("dacefb69765a91e0", "01d5afb3c4846c3d", "210810b337ea1f3e", "5f4ba2438ab4891b")
    records = [json.loads((ROOT / "results" / "small" / f"{name}.json").read_text()) for name in names]
    ours = [record["scores"]["test"] for record in records if not record["spec"]["set"]]
    assert len(ours) == 3
    expected = [100 * mean(mean(matrix[k][: k + 1]) for matrix in ours) for k in range(5)]
    assert drawn["curve"]("small", "seq") == pytest.approx(expected)
    assert f"plain fine-tuning {expected[-1]:.0f}" in (ROOT / "docs/images/forgetting-light.svg").read_text()
    assert len(drawn["curve"]("small", "mtl")) == 1


README = (ROOT / "README.md").read_text()


def test_the_claim_of_the_readme_is_what_was_measured():
    measured = json.loads((ROOT / "results/accuracy/clinc150-order1-minilm-seed0.json").read_text())
    claimed = re.findall(r"reaches (?:a macro-F1 of )?(\d+\.\d)", README)
    claimed += re.findall(r", (\d+\.\d) on the last layer alone", README)
    names = ("default all", "logistic-own all", "logistic all")
    assert claimed == [f"{measured[name]['macro_f1']:.1f}" for name in names]
    assert f" {len(METHODS) - 1} other methods" in " ".join(README.split())
    few = (ROOT / "docs/how-to/few-shot.md").read_text()
    for shots in ("1", "5", "10"):
        assert f"\n| {shots} | {measured[f'default {shots}']['macro_f1']:.1f} |" in few
    unknown = (ROOT / "docs/how-to/unknown.md").read_text()
    best = measured["default all"]
    assert f"AUROC of {best['auroc']:.3f}" in unknown
    assert f"rejects {100 * best['rejected']['0.95']:.1f} % of those" in " ".join(unknown.split())


def test_the_first_screen_has_no_long_sentence():
    for page in (README, (ROOT / "docs/index.md").read_text()):
        screen = "\n".join(page.splitlines()[:45])
        plain = re.sub(r"```.*?(```|$)|<.*?>|^[|#!].*?$", "", screen, flags=re.DOTALL | re.MULTILINE)
        sentences = re.split(r"[.:!?](?:\s|$)|\n\n", plain)
        assert max(len(sentence.split()) for sentence in sentences) <= 40
    assert len(README.splitlines()) <= 130


@pytest.mark.parametrize("name", holdfast.__all__)
def test_the_python_reference_has_every_public_name(name):
    home = holdfast._MODULES.get(name) or f"{holdfast._HOMES[name]}.{name}"
    assert f"\n::: {home}\n" in (ROOT / "docs/api.md").read_text()


def test_the_make_targets_of_the_docs_exist():
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    text = "".join(page.read_text() for page in PAGES)
    named = set(re.findall(r"(?:^|`)make ((?!\w+-)[a-z]+)", text, re.MULTILINE))
    assert {"run", "study", "env"} <= named <= targets


def test_one_version():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert holdfast.__version__ == version


def blocks(page, language=""):
    """Return the code blocks of a page in one language."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    return [block for name, block in found if name == language]


def test_the_page_on_records_reads_one(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/record-format.md").read_text()
    exec(blocks(page, "python")[0], known := {})
    assert capsys.readouterr().out.startswith("auto 0.94")
    named = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| ([^|]+) \|", page, re.MULTILINE))))
    assert named == set(known["record"]) | {"confusion"}, "the record is older than this key"
    exec(blocks(page, "python")[1], {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(list((ROOT / "results/small").glob("[0-9a-f]*[0-9a-f].json")))
    assert all(re.fullmatch(r"\S+ \S+ \d+ [\d.]+", line) for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_lines_of_python_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code = blocks((ROOT / page).read_text(), "python")[0]
    assert len(code.splitlines()) <= 8
    exec(compile(code, page, "exec"), {})
    assert (tmp_path / "my-intents" / "CURRENT").is_file()


@pytest.mark.slow
def test_the_first_commands_of_the_readme_do_what_it_says(tmp_path, monkeypatch, capsys):
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    (shell,) = (block for block in blocks(README) if "holdfast learn " in block)
    said = []
    for line in shell.splitlines():
        assert call(*shlex.split(line)[1:]) == 0
        said.append(capsys.readouterr().out)
    assert said[2].startswith("set light\t")
    assert said[3].startswith("(unknown)\t")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
def test_the_service_of_the_readme_answers_what_it_says(tmp_path, monkeypatch):
    """Only the port is another one: a free one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    (learning,) = (block for block in blocks(README) if "holdfast learn " in block)
    for line in learning.splitlines():
        if " learn " in line:
            assert call(*shlex.split(line)[1:]) == 0
    (block,) = (block for block in blocks(README) if "holdfast serve " in block)
    serve, curl = block.splitlines()
    words = shlex.split(serve, comments=True)
    assert words[0] == "holdfast"
    assert words[1] == "serve"
    with running(*words[2:]) as (client, _):
        assert "localhost:8000" in curl
        asked = curl.replace("localhost:8000", f"127.0.0.1:{client.base_url.port}")
        done = subprocess.run(asked, shell=True, capture_output=True, text=True, check=True)
        assert json.loads(done.stdout)["answers"][0]["label"] == "set light"


COMMAND = re.compile(r"(?:^|[`;&]|do|-m)\s*holdfast ([a-z](?:\\\n|[^`\n])*)", re.MULTILINE)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them for plain words."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", text, flags=re.DOTALL), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_the_docs_leads_to_a_file_and_a_heading(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for name, anchor in LINK.findall(text):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"no file {name}"
        if anchor:
            assert anchor in anchors(target.read_text()), f"{name} has no heading #{anchor}"


def commands(text: str) -> list[list[str]]:
    """Return the words of every holdfast command in a page, without explanations after several spaces."""
    found = []
    for match in COMMAND.finditer(text):
        line = match[1].replace("\\\n", " ").partition("#")[0].partition("&&")[0].partition(";")[0]
        if "|" in line or "..." in line or "…" in line:
            continue  # a list of commands or a part of a command
        plain = re.sub(r"(?<=[A-Z]) {3,}.*|\$method|\$order", lambda m: "la" if "$" in m[0] else "", line)
        found.append(shlex.split(plain))
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

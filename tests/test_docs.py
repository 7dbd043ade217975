"""Pages that are written by the code stay equal to it, and code that is printed runs."""

import importlib
import shutil

from conftest import ROOT, class_stream, make_learner, small

from holdfast.maths import params as P
from holdfast.methods import METHODS
from holdfast.report import methods_page, write_report
from holdfast.report.tables import markdown


def test_the_page_of_methods_is_current():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert page == methods_page(), "write it again: make docs"


def test_the_page_names_every_method_with_its_paper_and_hyper_parameters():
    page = methods_page()
    for name, method in METHODS.items():
        entry = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        facts = method.facts()
        assert facts["Paper"] in entry
        assert facts["Equation"] in entry
        assert all(f"| `{field}` |" in entry for field in method.hyper_parameters())
        assert f"| `{name}` | {facts['Two tasks']} | {facts['Extras']} |" in page


def test_the_example_of_a_method_is_one(one_layer, tmp_path, monkeypatch):
    """As printed: it learns, it searches, and the stronger it pulls the less weights move."""
    text = (ROOT / "docs" / "adding-a-method.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "l2.py").write_text(code)
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


def test_the_tables_of_the_results_are_those_of_the_records(tmp_path):
    """The main tables on the page are what `holdfast report results/small` writes, but for line breaks."""
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
        assert " ".join(markdown(table).split()) in page, f"{table.title}: make docs"

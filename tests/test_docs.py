"""Pages that are written by the code stay equal to it."""

from conftest import ROOT

from holdfast.methods import METHODS
from holdfast.report import methods_page


def test_the_page_of_methods_is_current():
    page = (ROOT / "docs" / "methods.md").read_text()
    assert page == methods_page(), "write it again: holdfast methods --markdown > docs/methods.md"


def test_the_page_names_every_method_with_its_paper_and_hyper_parameters():
    page = methods_page()
    for name, method in METHODS.items():
        entry = page.partition(f"## {name}\n")[2].partition("\n## ")[0]
        facts = method.facts()
        assert facts["Paper"] in entry
        assert facts["Equation"] in entry
        assert all(f"| `{field}` |" in entry for field in method.hyper_parameters())
        assert f"| `{name}` | {facts['Two tasks']} | {facts['Extras']} |" in page

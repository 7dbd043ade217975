"""The page in a real browser, if there is one: it draws, says nothing odd, asks nothing of the network."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.browser import CHROMIUM, browser
from helpers.records_by_hand import joint, matrix
from helpers.reports import put, spec

from holdfast.studies.views import write_report

SPREAD = {"encoder.layer.0.adapter.down.weight": {"bins": [1] * 20, "mean": 0.5, "tau": 0.4}}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]
FIGURES = "document.querySelectorAll('.plot').length"
DRAWN = "document.querySelectorAll('.plot[data-drawn]').length"
SCROLL_TO_THE_END = """(() => {
  const next = document.querySelector('.plot:not([data-drawn])');
  next?.scrollIntoView();
  return next === null;
})()"""
OPEN_FOLDS = "document.querySelectorAll('details').forEach(fold => { fold.open = true; })"
INK = "getComputedStyle(document.body).color"


def page_of_two_orders(folder: Path) -> Path:
    for order in (1, 2):
        put(folder, spec("seq", order), matrix(0.1, 0.2, 0.9))
        put(folder, spec("mtl", order), joint(0.95))
        put(folder, spec("la", order), matrix(0.6, 0.7, 0.8), chosen={"spread": SPREAD, "lam": 1.0})
    return write_report(folder).page


def test_a_reader_sees_every_figure_and_no_complaint(tmp_path: Path) -> None:
    written = page_of_two_orders(tmp_path)
    inks = {}
    with browser(tmp_path / "profile") as page:
        for width, dark in [(1280, False), (1280, True), (400, False)]:
            page.show(written, width, dark)
            page.evaluate(OPEN_FOLDS)
            figures = page.evaluate(FIGURES)
            assert figures == written.read_text().count("data-figure=") > 4
            page.wait_for(SCROLL_TO_THE_END)
            assert page.evaluate(DRAWN) == figures
            assert page.evaluate("document.querySelectorAll('.plot svg').length") >= figures
            assert "60.0" in page.evaluate("document.body.innerText")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
            inks[width, dark] = page.evaluate(INK)
        assert page.complaints == []
        assert [url for url in page.requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert inks[1280, True] != inks[1280, False] == inks[400, False], "dark is dark"


def test_figures_never_scrolled_to_are_drawn_for_the_printer(tmp_path: Path) -> None:
    written = page_of_two_orders(tmp_path)
    with browser(tmp_path / "profile") as page:
        page.show(written, 1280, dark=False)
        assert page.evaluate(DRAWN) < page.evaluate(FIGURES)
        assert len(page.call("Page.printToPDF")["data"]) > 10_000
        assert page.evaluate(DRAWN) == page.evaluate(FIGURES)
        assert page.complaints == []

"""The page in a real browser: it draws every figure, reports no error and sends no request."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from helpers.browser import CHROMIUM, browser_page
from helpers.records_by_hand import joint, matrix
from helpers.reports import put, spec
from playwright.sync_api import expect

from holdfast.everyday.evaluate import Evaluation
from holdfast.report.evaluation import write_evaluation
from holdfast.studies.views import write_report

SPREAD = {"encoder.layer.0.adapter.down.weight": {"bins": [1] * 20, "mean": 0.5, "tau": 0.4}}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
FIGURES = ".plot svg"
INK = "getComputedStyle(document.body).color"


def page_of_two_orders(folder: Path) -> Path:
    for order in (1, 2):
        put(folder, spec("seq", order), matrix(0.1, 0.2, 0.9))
        put(folder, spec("mtl", order), joint(0.95))
        put(folder, spec("la", order), matrix(0.6, 0.7, 0.8), chosen={"spread": SPREAD, "lam": 1.0})
    return write_report(folder).page


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_a_reader_sees_every_figure_and_no_complaint(tmp_path: Path, width: int, dark: bool) -> None:
    written = page_of_two_orders(tmp_path)
    with browser_page(width=width, dark=dark) as (page, complaints):
        page.goto(written.as_uri())
        page.locator("details").evaluate_all("folds => folds.forEach(fold => { fold.open = true; })")
        assert page.locator(FIGURES).count() > 4
        for figure in page.locator(FIGURES).all():
            figure.scroll_into_view_if_needed()
            expect(figure).to_be_visible()
            box = figure.bounding_box()
            assert box is not None
            assert box["height"] > 50
        expect(page.locator("body")).to_contain_text("60.0")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        light = sum(map(int, re.findall(r"\d+", page.evaluate(INK)))) > 3 * 128
        assert light == dark, "light text on a dark page and the reverse"
        assert complaints == []


def test_folds_are_open_for_the_printer(tmp_path: Path) -> None:
    written = page_of_two_orders(tmp_path)
    with browser_page() as (page, complaints):
        page.goto(written.as_uri())
        closed = page.locator("details:not([open])")
        assert closed.count() > 0
        assert len(page.pdf()) > 10_000
        assert closed.count() == 0
        assert complaints == []


def test_a_dark_screen_prints_dark_on_white(tmp_path: Path) -> None:
    written = page_of_two_orders(tmp_path)
    with browser_page(width=700, dark=True) as (page, _):
        page.goto(written.as_uri())
        page.emulate_media(media="print")
        for tag in ("body", "th", ".plot text", ".legend li"):
            ink = page.locator(tag).first.evaluate(
                "one => getComputedStyle(one)[one.closest('svg') ? 'fill' : 'color']"
            )
            assert sum(map(int, re.findall(r"\d+", ink))) < 3 * 128, tag
        back = page.evaluate("getComputedStyle(document.querySelector('.numbers th')).backgroundColor")
        assert sum(map(int, re.findall(r"\d+", back)[:3])) > 3 * 200


def test_the_page_of_an_evaluation_draws_its_matrix(tmp_path: Path) -> None:
    rows = [("<i>on", 0.5, 1.0, 0.67, 4), ("off", 1.0, 0.5, 0.67, 4)]
    pairs = Counter({("<i>on", "<i>on"): 4, ("off", "<i>on"): 2, ("off", "off"): 2})
    found = Evaluation(0.75, rows, pairs)
    written = write_evaluation(tmp_path / "eval.html", found, about="a test")
    with browser_page() as (page, complaints):
        page.goto(written.as_uri())
        expect(page.locator(".plot text").first).to_have_text("<i>on")
        assert page.locator(".plot .cell").count() == 3
        expect(page.locator("td").nth(0)).to_have_text("50.0")
        assert complaints == []

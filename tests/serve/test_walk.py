"""The walk of docs/serve.md, for a new user: serve nothing, teach, ask, correct, all in the browser."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from helpers.browser import CHROMIUM, browser_page
from helpers.everyday import rows_of, table
from helpers.serving import TOKEN, running
from playwright.sync_api import expect

expect.set_options(timeout=30_000)  # milliseconds, for a busy machine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
JOB = 180_000


def test_from_nothing_to_a_corrected_prediction_in_less_than_five_minutes(
    one_layer: str, tmp_path: Path
) -> None:
    began = time.monotonic()
    with running(str(tmp_path / "intents"), "--model", one_layer) as (client, _):
        address = str(client.base_url).rstrip("/")
        with browser_page(home=address) as (page, complaints):
            page.goto(f"{address}/#token={TOKEN}")
            expect(page.locator("#status-text")).to_have_text("nothing taught yet")
            expect(page.locator("#empty")).to_be_visible()
            page.get_by_label("or drop a file").set_input_files(table(tmp_path / "week.csv", rows_of(0)))
            expect(page.locator("#status-text")).to_have_text("generation 1, 2 labels", timeout=JOB)
            expect(page.locator("#empty")).to_be_hidden()

            mail = rows_of(1)[0][0]  # a sentence of a label that nobody has taught yet
            page.get_by_label("Sentence", exact=True).fill(mail)
            page.keyboard.press("Enter")
            expect(page.locator("#bars li")).to_have_count(2)
            page.locator("#correct-label").fill("post")
            page.get_by_role("button", name="Correct").click()
            expect(page.locator("#corrected")).to_contain_text("Learnt in generation 2", timeout=JOB)
            expect(page.locator("#bars li", has_text="post")).to_be_visible()
            expect(page.locator("#status-text")).to_have_text("generation 2, 3 labels")
            wrong = [line for line in complaints if "422" not in line]
            assert wrong == []
    assert time.monotonic() - began < 300

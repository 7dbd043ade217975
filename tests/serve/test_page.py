"""The page in a real browser: learn, predict, correct, compare, roll back, rename, merge, forget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.browser import CHROMIUM, browser_page
from helpers.everyday import rows_of, table
from helpers.serving import TOKEN, running
from playwright.sync_api import Page, expect

expect.set_options(timeout=30_000)  # milliseconds, for a busy machine
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="needs chromium: apt-get install chromium"),
]
JOB = 180_000  # milliseconds in which a job must end, also on a busy machine
SCRIPT = "<script>document.title='owned'</script>"


@pytest.fixture
def address(mine: Path) -> Iterator[str]:
    with running(str(mine)) as (client, _):
        yield str(client.base_url).rstrip("/")


def ask(page: Page, text: str) -> None:
    page.get_by_label("Sentence", exact=True).fill(text)
    page.keyboard.press("Enter")
    expect(page.locator("#bars li").first).to_be_visible()


def done(page: Page, generation: int) -> None:
    expect(page.locator("#status-text")).to_contain_text(f"generation {generation},", timeout=JOB)


def teach(page: Page, label: str, lines: list[str]) -> None:
    page.get_by_label("Label, new or known").fill(label)
    page.get_by_label("Its sentences, one per line").fill("\n".join(lines))
    expect(page.locator("#teach-count")).to_have_text(f"{len(lines)} sentences")
    page.get_by_role("button", name="Teach", exact=True).click()


def test_learn_predict_correct_take_back_and_roll_back(address: str, tmp_path: Path) -> None:
    with browser_page(home=address) as (page, complaints):
        page.goto(f"{address}/#token={TOKEN}")
        done(page, 2)
        assert TOKEN not in page.url

        food = [text for text, label in rows_of(2) if label == "food"]
        teach(page, SCRIPT, food)
        done(page, 3)
        expect(page.locator("#job-rows li").first).to_contain_text("12 sentences, new: <script>")
        expect(page.locator("#label-rows")).to_contain_text(SCRIPT)
        assert page.title() == "Holdfast"

        ask(page, food[0])
        expect(page.locator("#label")).to_have_text(SCRIPT)
        expect(page.locator("#bars li")).to_have_count(5)

        page.get_by_role("button", name="mail").first.click()
        expect(page.locator("#corrected")).to_contain_text("Learnt in generation 4", timeout=JOB)
        expect(page.locator("#label-rows tr", has_text="mail").locator(".number")).to_have_text("13")
        page.get_by_role("button", name="Take that correction out again").click()
        expect(page.locator("#corrected")).to_contain_text("taken out", timeout=JOB)
        done(page, 5)
        expect(page.locator("#label-rows tr", has_text="mail").locator(".number")).to_have_text("12")

        source = table(tmp_path / "test.csv", [*rows_of(1, "test"), ('food0, "food1"', SCRIPT)])
        page.get_by_label("Before").select_option("1")
        page.get_by_label("Test file").set_input_files(source)
        page.get_by_role("button", name="Compare", exact=True).click()
        expect(page.locator("#comparison")).to_contain_text("only right now", timeout=JOB)
        expect(page.locator("#comparison")).to_contain_text('food0, "food1"')

        page.get_by_role("button", name="Make generation 1 current").click()
        done(page, 1)
        expect(page.locator("#label")).not_to_have_text(SCRIPT)
        expect(page.locator("#label-rows tr")).to_have_count(2)
        assert complaints == []


def test_rename_merge_forget_a_file_and_the_token(address: str, tmp_path: Path) -> None:
    with browser_page(width=390, dark=True, home=address) as (page, complaints):
        page.goto(address)
        done(page, 2)
        page.get_by_label("or drop a file").set_input_files(table(tmp_path / "week.csv", rows_of(2)))
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        page.get_by_label("or drop a file").set_input_files(table(tmp_path / "week.csv", rows_of(2)))
        done(page, 3)
        expect(page.locator("#label-rows")).to_contain_text("train")

        page.get_by_role("button", name="Rename music").click()
        page.get_by_label("New name").fill("tunes")
        page.keyboard.press("Enter")
        done(page, 4)
        page.get_by_role("button", name="Merge mail into another label").click()
        page.get_by_label("Into", exact=True).fill("stock")
        page.keyboard.press("Enter")
        done(page, 5)
        expect(page.locator("#label-rows tr", has_text="stock").locator(".number")).to_have_text("24")
        page.get_by_role("button", name="Forget light").click()
        expect(page.locator("#change-remains")).to_contain_text(
            "generations 1, 2, 3, 4 and the present one still"
        )
        page.get_by_label("Also delete the older generations").check()
        expect(page.locator("#change-remains")).to_contain_text("backups")
        page.get_by_role("button", name="Forget", exact=True).click()
        done(page, 6)
        expect(page.locator("#generation-rows li")).to_have_count(1)
        expect(page.locator("#label-rows")).not_to_contain_text("light")
        expect(page.locator("#job-rows li").first).to_contain_text("forgotten")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        wrong = [line for line in complaints if "401" not in line]
        assert wrong == [], "the first try without a token is the only complaint"


def test_the_page_of_the_api_lists_every_operation_offline(address: str) -> None:
    with browser_page(home=address) as (page, complaints):
        page.goto(f"{address}/docs")
        expect(page.locator("h2", has_text="POST /v1/predict")).to_be_visible()
        expect(page.locator("h2", has_text="POST /v1/learn").locator(".badge")).to_have_text("token")
        assert page.locator(".operation").count() > 12
        assert complaints == []

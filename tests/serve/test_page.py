"""The page in a real browser: learn, predict, correct, compare, roll back, rename, merge, forget."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from helpers.browser import CHROMIUM, browser_page
from helpers.everyday import rows_of, table
from helpers.serving import TOKEN, finished, running, worked
from playwright.sync_api import Locator, Page, Route, expect

from holdfast.storage.generations import Store

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
    page.wait_for_function("(text) => page.last && page.last.text === text", arg=text)
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


def counted(page: Page, label: str) -> Locator:
    return page.locator("#label-rows tr", has_text=label).locator(".number")


def picked(page: Page, label: str) -> None:
    page.locator("#bars li", has_text=label).get_by_role("button").click()


def test_the_answer_of_an_old_correction_does_not_replace_a_newer_sentence(address: str) -> None:
    with browser_page(home=address) as (page, complaints):
        told = False

        def jobs(route: Route) -> None:  # the page hears of the job's end when the test says so
            if told or route.request.method != "GET":
                route.continue_()
            else:
                route.fulfill(json={"jobs": []})

        page.route("**/v1/jobs", jobs)
        page.goto(f"{address}/#token={TOKEN}")
        done(page, 2)
        ask(page, "music0 the")
        with page.expect_response("**/v1/learn") as learning:
            picked(page, "mail")
        ask(page, "light1 a")
        bars = page.locator("#bars").inner_text()
        with httpx.Client(base_url=address) as client:
            finished(client, learning.value.json())
        told = True
        page.evaluate("async () => { clearTimeout(showJobs.timer); await showJobs(); }")
        done(page, 3)
        page.evaluate("page.correcting")  # what followed the job is over
        assert page.evaluate("page.last.text") == "light1 a"
        assert page.locator("#bars").inner_text() == bars
        expect(page.locator("#corrected")).to_have_text("")
        expect(page.locator("#undo")).to_be_hidden()
        with page.expect_request("**/v1/learn") as teaching:
            picked(page, "stock")
        assert teaching.value.post_data_json["rows"] == [{"text": "light1 a", "label": "stock"}]
        done(page, 4)
        assert complaints == []


def test_a_second_click_changes_what_the_first_has_taught(address: str) -> None:
    with browser_page(home=address) as (page, complaints):
        page.goto(f"{address}/#token={TOKEN}")
        done(page, 2)
        ask(page, "music0 the")
        picked(page, "mail")
        picked(page, "stock")  # while the first is learnt
        expect(page.locator("#corrected")).to_contain_text("Changed in generation 4", timeout=JOB)
        expect(counted(page, "mail")).to_have_text("12")
        expect(counted(page, "stock")).to_have_text("13")
        expect(page.locator("#job-rows li").first).to_contain_text("correct mail, stock")
        picked(page, "stock")
        expect(page.locator("#corrected")).to_contain_text("taught as “stock” already")
        for generation, label, other in ((5, "mail", "stock"), (6, "stock", "mail")):  # there and back
            picked(page, label)
            expect(page.locator("#corrected")).to_contain_text(f"generation {generation}", timeout=JOB)
            expect(counted(page, label)).to_have_text("13")
            expect(counted(page, other)).to_have_text("12")
        page.get_by_role("button", name="Take that correction out again").click()
        expect(page.locator("#corrected")).to_contain_text("taken out", timeout=JOB)
        expect(counted(page, "stock")).to_have_text("12")
        picked(page, "stock")
        expect(page.locator("#corrected")).to_contain_text("Learnt in generation 8", timeout=JOB)
        expect(counted(page, "stock")).to_have_text("13")
        assert complaints == []


def test_a_generation_is_compared_with_the_one_it_was_taught_on(mine: Path, tmp_path: Path) -> None:
    Store(mine).rollback(1)
    assert worked(tmp_path / "job", "learn", mine, name="w", rows=rows_of(2), again=False)["status"] == "done"
    with running(str(mine)) as (client, _):
        address = str(client.base_url).rstrip("/")
        listed = client.get("/v1/generations").json()["generations"]
        assert [one.get("parent") for one in listed] == [None, 1, 1]
        with browser_page(home=address) as (page, _):
            page.goto(address)
            newest = page.locator("#generation-rows li").first
            expect(newest).to_contain_text("taught on generation 1")
            expect(newest).to_contain_text("+food")
            expect(newest).not_to_contain_text("−")
            assert page.locator("#compare-first").input_value() == "1"
            assert page.locator("#compare-second").input_value() == "3"


@pytest.mark.parametrize(
    ("label", "shares", "said", "possible"),
    [
        (None, (0.6, 0.2), "The nearest one is “a”", "Possible too: “b”, “c”."),
        ("a", (0.6, 0.2), "", "Possible too: “b”, “c”."),
        ("a", (0.4, 0.3), "confused with “b”", "Possible too: “c”."),
    ],
)
def test_a_label_is_not_possible_too_if_it_was_named(
    address: str, label: str | None, shares: tuple[float, float], said: str, possible: str
) -> None:
    top = [{"label": name, "probability": share} for name, share in zip("ab", shares, strict=True)]
    answer = {"label": label, "probability": shares[0], "top": top, "set": ["a", "b", "c"], "why": "a reason"}
    with browser_page(home=address) as (page, _):
        page.route("**/v1/predict", lambda route: route.fulfill(json={"generation": 2, "answers": [answer]}))
        page.goto(address)
        done(page, 2)
        ask(page, "music0")
        expect(page.locator("#why")).to_contain_text(said)
        expect(page.locator("#among")).to_have_text(possible)


def test_rename_merge_forget_a_file_and_the_token(address: str, tmp_path: Path) -> None:
    with browser_page(width=390, dark=True, home=address) as (page, complaints):
        page.goto(address)
        done(page, 2)
        page.get_by_label("or drop a file").set_input_files(table(tmp_path / "week.csv", rows_of(2)))
        page.locator("#token").fill("a wrong token, as it happens")
        page.keyboard.press("Enter")
        expect(page.locator("#token-dialog")).to_be_visible()
        page.locator("#token").fill(TOKEN)
        page.keyboard.press("Enter")
        done(page, 3)  # the file is taught as soon as the token is there
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
        tops = page.evaluate(
            "[...document.querySelectorAll('h1, #token-open, a.quiet')].map((one) => "
            "{ const box = one.getBoundingClientRect(); return box.top + box.height / 2; })"
        )
        assert max(tops) - min(tops) < 3, "one row"
        low = page.evaluate(
            "[...document.querySelectorAll('button, a.quiet')].filter((one) => one.offsetParent "
            "&& one.getBoundingClientRect().height < 36).map((one) => one.textContent)"
        )
        assert low == [], "too low for a finger"
        wrong = [line for line in complaints if "401" not in line]
        assert wrong == [], "the tries without the token are the only complaints"


def test_the_page_of_the_api_lists_every_operation_offline(address: str) -> None:
    with browser_page(home=address) as (page, complaints):
        page.goto(f"{address}/docs")
        expect(page.locator("h2", has_text="POST /v1/predict")).to_be_visible()
        expect(page.locator("h2", has_text="POST /v1/learn").locator(".badge")).to_have_text("token")
        assert page.locator(".operation").count() > 12
        assert complaints == []

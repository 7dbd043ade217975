"""Pages in a real browser: playwright on the system's chromium."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, sync_playwright

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = ["--disable-gpu", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"]


@contextmanager
def browser_page(
    *, width: int = 1280, dark: bool = False, home: str = "file:"
) -> Iterator[tuple[Page, list[str]]]:
    """Yield a page and a list that collects its console lines, errors and requests to elsewhere."""
    complaints: list[str] = []

    def foreign(url: str) -> bool:
        return not url.startswith((home, "data:", "blob:"))

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        page = browser.new_page(
            viewport={"width": width, "height": 900}, color_scheme="dark" if dark else "light"
        )
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url) if foreign(request.url) else None)
        yield page, complaints
        browser.close()

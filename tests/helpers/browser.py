"""A page in a real chromium, over its debugging pipe: no driver to install, no guess at how long it takes.

The protocol is JSON messages with a zero byte after each, to the browser's descriptor 3 and from its 4.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe"),
]
PATIENCE = 60.0  # seconds for any one thing; a busy machine is slow, not wrong


class Page:
    """One page, and what it said and asked for since it was opened."""

    def __init__(self, to_browser: int, from_browser: int) -> None:
        self.to_browser, self.from_browser = to_browser, from_browser
        self.session: str | None = None
        self.calls = 0
        self.unread = b""
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Asks the browser for something and waits for its answer; what it tells meanwhile is kept."""
        self.calls += 1
        message = {"id": self.calls, "method": method, "params": params}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.to_browser, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.message()
            if answer.get("id") == self.calls:
                assert "error" not in answer, f"{method}: {answer['error']}"
                return dict(answer["result"])
            self.note(answer.get("method", ""), answer.get("params", {}))

    def message(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self.unread:
            left = max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select([self.from_browser], [], [], left)
            assert ready, f"the browser said nothing for {PATIENCE:.0f} s"
            piece = os.read(self.from_browser, 1 << 16)
            assert piece, "the browser has ended"
            self.unread += piece
        first, self.unread = self.unread.split(b"\0", 1)
        return dict(json.loads(first))

    def note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
            self.complaints.append(json.dumps(params)[:500])

    def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression gives in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Comes back once an expression is true in the page."""
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(expression):
            assert time.monotonic() < deadline, f"not true after {PATIENCE:.0f} s: {expression}"
            time.sleep(0.05)

    def show(self, path: Path, width: int, dark: bool) -> None:
        """Opens a file in a window of this width, in light or dark colours."""
        window = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **window)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.navigate", url=path.as_uri())
        self.wait_for("document.readyState === 'complete'")


@contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """A browser with one empty page, ended on the way out."""
    theirs_in, to_browser = os.pipe()
    from_browser, theirs_out = os.pipe()
    # Out of the way of 3 and 4 before they are put there.
    source, sink = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 20) for end in (theirs_in, theirs_out))

    def at_three_and_four() -> None:
        os.dup2(source, 3)
        os.dup2(sink, 4)

    with open(profile.with_suffix(".log"), "wb") as log:
        process = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=log,
            stderr=log,
            close_fds=False,
            preexec_fn=at_three_and_four,
        )
    for end in (theirs_in, theirs_out, source, sink):
        os.close(end)
    page = Page(to_browser, from_browser)
    try:
        target = page.call("Target.createTarget", url="about:blank")["targetId"]
        page.session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        yield page
    finally:
        process.terminate()
        process.wait(PATIENCE)
        os.close(to_browser)
        os.close(from_browser)

"""The page in a real browser, if there is one: it draws, says nothing odd, asks nothing of the network."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_report import joint, matrix, put, spec

from holdfast.report import write_report

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
SPREAD = {"encoder.layer.0.adapter.down.weight": {"bins": [1] * 20, "mean": 0.5, "tau": 0.4}}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium"),
]


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (1280, True), (400, False)])
def test_the_page_draws_and_complains_of_nothing(tmp_path: Path, width: int, dark: bool) -> None:
    for order in (1, 2):
        put(tmp_path, spec("seq", order), matrix(0.1, 0.2, 0.9))
        put(tmp_path, spec("mtl", order), joint(0.95))
        put(tmp_path, spec("la", order), matrix(0.6, 0.7, 0.8), chosen={"spread": SPREAD, "lam": 1.0})
    page = write_report(tmp_path).page
    folded = page.read_text().replace("<details>", "<details open>")
    page.write_text(folded)
    done = subprocess.run(
        [
            str(CHROMIUM),
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--enable-logging=stderr", "--host-resolver-rules=MAP * ~NOTFOUND"),
            *(["--blink-settings=preferredColorScheme=0"] if dark else []),
            f"--log-net-log={tmp_path / 'net.json'}",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--window-size={width},20000",
            "--virtual-time-budget=8000",
            "--dump-dom",
            page.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    askers = re.findall(r'"initiator":"([^"]*)"', (tmp_path / "net.json").read_text())
    assert set(askers) <= {"not an origin"}, "the browser asks in its own name; a page would be named"
    assert done.stdout.count('data-drawn="yes"') == folded.count("data-figure=") > 4, "those in folds too"
    assert "60.0" in done.stdout

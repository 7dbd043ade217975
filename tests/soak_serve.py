"""A long campaign against the service: requests over generation swaps, a killed job, generated requests.

Run by `make soak`, not by pytest. Prints a table and exits with 1 if a bar is missed. `--requests`, `--swaps`
and `--cases` shorten it; the requests go on until the last swap. Sentences are toy sentences, the encoder is
tiny: what is tested is the service.

Every generation of the learner knows its own set of labels, so the labels of an answer tell which generation
gave it. An answer whose labels are not those of the generation that it names is mixed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import httpx
import psutil
from helpers.everyday import learnt_twice, rows_of
from helpers.schema_attacks import Attack
from helpers.serving import WRITER, finished, rows_json, running
from helpers.toys import save_tiny_bert

from holdfast.storage.generations import Store

CLIENTS = 16
WARM = 0.2  # share of the requests before memory is measured for the first time
GROWTH = 1.1
TEXTS = [text for number in range(3) for text, _ in rows_of(number)]


class Seen:
    """What the clients have been answered."""

    def __init__(self) -> None:
        self.answered = 0
        self.errors: list[str] = []
        self.labels: dict[int, set[frozenset[str]]] = {}
        self.right: dict[int, frozenset[str]] = {}
        """The labels that each generation knows."""
        self.last = 0
        """The last generation that was taught, once it is known."""


async def client(port: int, number: int, requests: int, seen: Seen) -> None:
    """Ask until there are enough requests and the last generation has answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for turn in itertools.count():
        if seen.answered >= requests and (seen.last in seen.labels or seen.errors):
            break
        at = (number * 7 + turn) % len(TEXTS)
        size = 1 + turn % 8
        body = json.dumps({"texts": [*TEXTS[at:], *TEXTS][:size], "top": 50}).encode()
        head = "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length: ")[2].split("\r\n")[0])
        found = json.loads(await reader.readexactly(length))
        if " 200 " not in answer.split("\r\n")[0]:
            seen.errors.append(str(found))
        else:
            every = {frozenset(top["label"] for top in one["top"]) for one in found["answers"]}
            seen.labels.setdefault(found["generation"], set()).update(every)
            if len(found["answers"]) != size:
                seen.errors.append("answers are missing")
        seen.answered += 1
    writer.close()


async def ask(port: int, requests: int, seen: Seen) -> None:
    await asyncio.gather(*(client(port, n, requests, seen) for n in range(CLIENTS)))


def teach(
    http: httpx.Client, path: Path, seen: Seen, requests: int, swaps: int, told: dict[str, Any]
) -> None:
    """Teach a new label for each swap, spread over the requests; kill the job of one more in between."""
    http.headers.update(WRITER)
    seen.right[2] = labels_of(path)
    generation = 2
    for swap in range(swaps + 1):
        while seen.answered < requests * (swap + 0.3) / (swaps + 1.5):
            time.sleep(0.05)
        if swap == swaps // 2:
            told["killed"] = killed(http)
            continue
        rows = [(text, f"label {swap}") for text in TEXTS[swap :: swaps + 1]]
        report = finished(http, http.post("/v1/learn", json=rows_json(rows)).json(), 600)
        if report["status"] == "done":
            generation = report["result"]["generation"]
            seen.right[generation] = labels_of(path)
        else:
            told.setdefault("failed jobs", []).append(report.get("error"))
    seen.last = generation


def killed(http: httpx.Client) -> str:
    """Kill a job while it works; return what the service says of it."""
    job = http.post("/v1/learn", json=rows_json([(text, "killed") for text in TEXTS])).json()
    while True:
        report = http.get(f"/v1/jobs/{job['id']}").json()
        if report["status"] not in ("waiting", "running"):
            return "it ended before it was killed"
        if "pid" in report:
            os.kill(report["pid"], signal.SIGKILL)
            return str(finished(http, job)["status"])
        time.sleep(0.01)


def soak(requests: int, swaps: int, model: str, place: Path) -> dict[str, Any]:
    """Ask while generations are swapped; return what was found."""
    path, seen, told = learnt_twice(place, model), Seen(), {}
    with running(str(path)) as (http, process):
        port = http.base_url.port
        own = psutil.Process(process.pid)
        memory: list[float] = []

        async def both() -> None:
            task = asyncio.create_task(ask(port, requests, seen))
            teaching = asyncio.create_task(asyncio.to_thread(teach, http, path, seen, requests, swaps, told))
            while not task.done():
                await asyncio.sleep(0.5)
                if seen.answered > WARM * requests:
                    memory.append(own.memory_info().rss / 2**20)
            await task
            await teaching
            memory.append(own.memory_info().rss / 2**20)

        began = time.perf_counter()
        asyncio.run(both())
        seconds = time.perf_counter() - began
    mixed = [n for n, found in seen.labels.items() if found != {seen.right.get(n)}]
    return told | {
        "requests": seen.answered,
        "errors": len(seen.errors),
        "first error": seen.errors[:1],
        "generations seen": sorted(seen.labels),
        "mixed": mixed,
        "swaps": len(seen.labels) - 1,
        "requests a second": round(seen.answered / seconds),
        "memory first": round(memory[0]),
        "memory last": round(memory[-1]),
        "growth": memory[-1] / memory[0],
    }


def labels_of(path: Path) -> frozenset[str]:
    """Return the labels of the current generation."""
    return frozenset(Store(path).sections().sections["learner"]["seen"])


def attacked(cases: int, model: str, place: Path) -> dict[str, Any]:
    """Send generated requests without the token, until there are this many; the learner must not change."""
    path = learnt_twice(place, model)
    before = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    attack = Attack(path, place / "jobs")
    seed = 0
    while sum(attack.statuses.values()) < cases:
        seed += 1
        attack.run(max(cases // 40, 5), seed)
    after = {p: p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return {
        "cases": sum(attack.statuses.values()),
        "wrong": attack.wrong[:3],
        "written": before != after,
        "statuses": sorted({status for _, status in attack.statuses}),
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=50_000)
    parser.add_argument("--swaps", type=int, default=10)
    parser.add_argument("--cases", type=int, default=10_000)
    options = parser.parse_args()
    bars: dict[str, bool] = {}
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(temporary)
        model = save_tiny_bert(place / "model", layers=1)
        if options.requests:
            (place / "soak").mkdir()
            found = soak(options.requests, options.swaps, model, place / "soak")
            print(json.dumps(found, indent=1))
            bars |= {
                "no request fails": not found["errors"],
                "no answer mixes two generations": not found["mixed"],
                "every swap happened": found["swaps"] == options.swaps,
                "no job failed, and the killed one is reported": found["killed"] == "stopped"
                and "failed jobs" not in found,
                f"memory grows by at most {GROWTH - 1:.0%}": found["growth"] <= GROWTH,
            }
        if options.cases:
            (place / "attack").mkdir()
            found = attacked(options.cases, model, place / "attack")
            print(json.dumps(found, indent=1))
            bars |= {
                "no 5xx, no traceback, no status that the schema lacks": not found["wrong"],
                "nothing is written without the token": not found["written"],
            }
    for bar, held in bars.items():
        print(f"{'holds ' if held else 'MISSED'} {bar}")
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

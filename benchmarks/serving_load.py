"""Measure `holdfast serve` under load, beside the bare encoder. Every figure is a ratio in one run.

encoder    a process that embeds the same sentences in batches of 256 and nothing else, while the load
           generator is as busy as it was with the service, against answers that cost nothing
batch      clients that send 16 sentences a request, each as soon as it has its answer
single     clients that send one sentence a request
learning   as `batch`, while a job learns `--rows` rows

Service and encoder have one thread each and take turns, so that a busy machine slows both. `ratio` compares
sentences per second; `cpu` compares sentences per second of CPU time, which other work on the machine hardly
changes. The service runs with its defaults. `--out` keeps the record, named by stream and model.

    python benchmarks/serving_load.py --stream hwu64 --data-dir DATA --out results/serving
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--stream", default="home")
parser.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
parser.add_argument("--model", default="minilm")
parser.add_argument("--clients", type=int, default=32)
parser.add_argument("--sentences", type=int, default=16, help="of a request of `batch`")
parser.add_argument("--seconds", type=float, default=20.0, help="of a measurement")
parser.add_argument("--turns", type=int, default=3)
parser.add_argument("--rows", type=int, default=2000, help="of the lesson; 0 leaves `learning` out")
parser.add_argument("--out", type=Path, help="folder for the record")
parser.add_argument("--json", action="store_true")
parser.add_argument("--role", choices=("encoder", "load"), help=argparse.SUPPRESS)
parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
parser.add_argument("--rate", type=float, default=0.0, help=argparse.SUPPRESS)
parser.add_argument("--texts", type=Path, help=argparse.SUPPRESS)
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
TOKEN = "a-token-of-the-benchmark"
BATCH = 256
HEAD = "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
Found = dict[str, Any]


# ---- the load generator -------------------------------------------------------------------------------


async def generate(port: int, bodies: Sequence[bytes], clients: int, seconds: float, rate: float) -> Found:
    """Send requests from several clients, each when it has its answer; at most `rate` a second if given."""
    taken: list[float] = []
    wrong = 0
    end = time.perf_counter() + seconds
    began = time.perf_counter()

    async def client(number: int) -> None:
        nonlocal wrong
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number
        while time.perf_counter() < end:
            if rate and len(taken) > rate * (time.perf_counter() - began):
                await asyncio.sleep(clients / rate / 4)
                continue
            body = bodies[place % len(bodies)]
            place += clients
            start = time.perf_counter()
            head = f"{HEAD}Content-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            found = json.loads(await reader.readexactly(length_of(answer)))
            wrong += b" 200 " not in answer.splitlines()[0] or "answers" not in found
            taken.append(time.perf_counter() - start)
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    whole = time.perf_counter() - began
    return {"requests": len(taken), "wrong": wrong, "rate": len(taken) / whole, **quantiles(taken)}


def length_of(head: bytes) -> int:
    """Return the length of the body that follows a head."""
    return int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])


def quantiles(taken: Sequence[float]) -> Found:
    """Return the median and the 99th percentile in milliseconds."""
    if len(taken) < 2:
        return {"p50": None, "p99": None}
    cuts = statistics.quantiles(taken, n=100, method="inclusive")
    return {"p50": 1000 * cuts[49], "p99": 1000 * cuts[98]}


async def costless(sentences: int) -> asyncio.Server:
    """Return a server whose answers cost next to nothing and are about as long as those of the service."""
    one = {"label": "a" * 10, "probability": 0.5, "top": [{"label": "a" * 10, "probability": 0.5}]}
    body = json.dumps({"generation": 1, "answers": [one] * sentences}).encode()
    reply = f"HTTP/1.1 200 OK\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await reader.readexactly(length_of(await reader.readuntil(b"\r\n\r\n")))
                writer.write(reply)
        except asyncio.IncompleteReadError:
            writer.close()

    return await asyncio.start_server(answer, "127.0.0.1", 0)


async def load() -> Found:
    texts = json.loads(options.texts.read_text())
    size = options.sentences
    groups = [texts[at : at + size] for at in range(0, len(texts) - size + 1, size)]
    bodies = [json.dumps({"texts": group}).encode() for group in groups]
    if options.port:
        return await generate(options.port, bodies, options.clients, options.seconds, options.rate)
    server = await costless(size)
    async with server:
        port = server.sockets[0].getsockname()[1]
        return await generate(port, bodies, options.clients, options.seconds, options.rate)


def encoder() -> None:
    """Embed batches for a while; print sentences a second."""
    from holdfast.learning.learner import Learner

    texts = json.loads(options.texts.read_text())
    model = Learner.create(options.model, "slda").model
    model.embed(texts[:BATCH])
    print("ready", flush=True)
    sys.stdin.readline()
    done, began, place, used = 0, time.perf_counter(), 0, time.process_time()
    while time.perf_counter() < began + options.seconds:
        model.embed([texts[(place + i) % len(texts)] for i in range(BATCH)])
        place, done = place + BATCH, done + BATCH
    found = {"sentences": done / (time.perf_counter() - began), "cpu": done / (time.process_time() - used)}
    print(json.dumps(found), flush=True)


# ---- processes ----------------------------------------------------------------------------------------


def own(role: str, texts: Path, **more: Any) -> subprocess.Popen[str]:
    words = [sys.executable, __file__, "--role", role, "--texts", str(texts), "--model", options.model]
    words += ["--clients", str(options.clients), "--seconds", str(options.seconds)]
    words += [word for name, value in more.items() for word in (f"--{name}", str(value))]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> Found:
    out, _ = process.communicate()
    if process.returncode:
        sys.exit(f"a process of the benchmark ended with {process.returncode}")
    found: Found = json.loads(out.splitlines()[-1])
    return found


@contextmanager
def service(state: Path) -> Iterator[tuple[int, psutil.Process]]:
    """Run the service; yield its port and process."""
    words = [sys.executable, "-m", "holdfast.app.main", "serve", str(state), "--port", "0", "--threads", "1"]
    words += [] if not Path(options.model).is_dir() else ["--model", options.model]
    process = subprocess.Popen(
        words, env=os.environ | {"HOLDFAST_TOKEN": TOKEN}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        port = int(process.stdout.readline().split(" at ")[1].strip().rstrip("/").rpartition(":")[2])
        for _ in range(600):
            if call(port, "GET", "/readyz", patient=True).get("status") == "ready":
                break
            time.sleep(0.2)
        yield port, psutil.Process(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def call(port: int, method: str, path: str, body: Any = None, *, patient: bool = False) -> Found:
    from http.client import HTTPConnection

    try:
        connection = HTTPConnection("127.0.0.1", port, timeout=60)
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        found: Found = json.loads(connection.getresponse().read())
        return found
    except OSError:
        if patient:
            return {}
        raise


def seconds_of(process: psutil.Process) -> float:
    """Return the seconds of CPU time that a process has used."""
    times = process.cpu_times()
    return float(times.user + times.system)


def beside_the_encoder(port: int, process: psutil.Process, texts: Path, sentences: int) -> Found:
    """Measure the service, then the encoder beside a load generator that is as busy."""
    before = seconds_of(process)
    served = said(own("load", texts, port=port, sentences=sentences))
    used = seconds_of(process) - before
    bare = own("encoder", texts)
    assert bare.stdin is not None
    assert bare.stdout is not None
    bare.stdout.readline()
    generator = own("load", texts, rate=served["rate"], sentences=sentences)
    bare.stdin.write("go\n")
    bare.stdin.flush()
    found, idle = said(bare), said(generator)
    own_rate = served["rate"] * sentences
    return {
        "service": own_rate,
        "encoder": found["sentences"],
        "ratio": own_rate / found["sentences"],
        "cpu": served["requests"] * sentences / used / found["cpu"],
        "p50": served["p50"],
        "p99": served["p99"],
        "wrong": served["wrong"] + idle["wrong"],
        "requests": served["requests"],
    }


def middle(turns: Sequence[Found]) -> Found:
    return {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}


def while_learning(port: int, texts: Path, rows: Sequence[tuple[str, str]]) -> Found:
    """Measure the service while it learns rows under new labels."""
    job = call(port, "POST", "/v1/learn", {"rows": [{"text": t, "label": f"new {y}"} for t, y in rows]})
    found = said(own("load", texts, port=port, sentences=options.sentences))
    report = call(port, "GET", f"/v1/jobs/{job['id']}")
    while report["status"] in ("waiting", "running"):
        time.sleep(0.5)
        report = call(port, "GET", f"/v1/jobs/{job['id']}")
    found["job"] = report["status"]
    found["job_seconds"] = report["seconds"]
    return found


def main() -> None:
    from holdfast.data import load_stream
    from holdfast.everyday import teach
    from holdfast.storage.cache import data_home
    from holdfast.storage.files import write_json

    stream = load_stream(options.stream, data_dir=data_home(options.data_dir))
    rows = [row for task in stream for row in zip(task.train.texts, task.train.labels, strict=True)]
    model = Path(options.model).name
    names = ("holdfast", "torch", "transformers", "onnxruntime", "fastapi", "starlette", "uvicorn")
    found: Found = {"stream": options.stream, "model": model, "clients": options.clients}
    found["versions"] = {name: version(name) for name in names}
    with tempfile.TemporaryDirectory() as place:
        state, texts = Path(place, "state"), Path(place, "texts.json")
        texts.write_text(json.dumps([text for text, _ in rows]))
        from holdfast.data.readers import Row

        first = [Row(*row) for row in rows[: max(len(rows) - options.rows, len(rows) // 2)]]
        teach.learn(state, "first", given=first, model=options.model, budget=0)
        with service(state) as (port, process):
            for name, size in (("batch", options.sentences), ("single", 1)):
                turns = [beside_the_encoder(port, process, texts, size) for _ in range(options.turns)]
                found[name] = middle(turns) | {"ratios": [turn["ratio"] for turn in turns]}
                found[name]["p99_over_p50"] = found[name]["p99"] / found[name]["p50"]
                if not options.json:
                    print(
                        name,
                        {key: found[name][key] for key in ("ratio", "ratios", "cpu", "p50", "p99", "wrong")},
                    )
            if options.rows:
                found["learning"] = while_learning(port, texts, rows[-options.rows :])
                if not options.json:
                    print("learning", found["learning"])
    if options.out:
        write_json(options.out / f"load-{options.stream}-{model}.json", found)
    if options.json:
        print(json.dumps(found))


if __name__ == "__main__":
    if options.role == "encoder":
        encoder()
    elif options.role == "load":
        print(json.dumps(asyncio.run(load())))
    else:
        main()

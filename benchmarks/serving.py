"""Measure an exported artefact against the learner it was exported from. Every figure is a ratio in one run.

cold       CPU seconds of `holdfast predict` with one sentence, from the start of the process to its end
speed      median seconds of one sentence, and sentences a second in batches, one thread
parity     labels, probabilities, rejected sentences and prediction sets on the test sentences, and macro-F1
tenants    artefacts that share an encoder in one process: its memory, and the first request of an evicted one
service    the same artefacts behind `holdfast serve`: its memory, and the same request over HTTP

torch is the learner, onnx an artefact with --onnx, int8 one with --onnx --int8. Turns of the three alternate,
so that a busy machine slows all of them. Learners and artefacts are kept in --work and reused.

    python benchmarks/serving.py --stream clinc150 --data-dir DATA --out results/serving
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

PARTS = ("cold", "speed", "parity", "tenants", "service")
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
parser.add_argument("--stream", default="clinc150")
parser.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
parser.add_argument("--model", default="minilm")
parser.add_argument("--method", default="auto")
parser.add_argument("--work", type=Path, default=Path("runs/serving"), help="learners and artefacts")
parser.add_argument("--turns", type=int, default=5)
parser.add_argument("--sentences", type=int, default=200, help="of `speed`, one at a time")
parser.add_argument("--tenants", type=int, default=200)
parser.add_argument("--taught", type=int, default=50, help="tenants that are taught; the others are copies")
parser.add_argument("--labels", type=int, default=20, help="of a tenant")
parser.add_argument("--each", type=int, default=5, help="sentences of a tenant's label")
parser.add_argument("--out", type=Path, help="folder for the record")
parser.add_argument("--json", action="store_true")
parser.add_argument("--ask", type=Path, help=argparse.SUPPRESS)  # the process that `tenants` measures
options = parser.parse_args()
os.environ["OMP_NUM_THREADS"] = os.environ["MKL_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

from holdfast.data import load_stream  # noqa: E402
from holdfast.data.clinc import out_of_scope  # noqa: E402
from holdfast.data.tasks import Stream  # noqa: E402
from holdfast.storage.cache import data_home  # noqa: E402
from holdfast.storage.files import write_json  # noqa: E402

Found = dict[str, Any]


def memory() -> float:
    """Return the most memory that this process has held, in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmHWM"))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ---- learners and artefacts -------------------------------------------------------------------------------


def learnt(stream: Stream) -> Path:
    """Return the directory of a learner that was taught the stream, task by task."""
    from holdfast.learning.learner import Learner

    place = options.work / f"{stream.name}-{Path(options.model).name}-{options.method}"
    if not place.exists():
        learner = Learner.create(options.model, options.method)
        for task in stream:
            learner.learn(task.train.texts, task.train.labels)
        learner.save(place)
    return place


def exported(state: Path) -> dict[str, Path]:
    """Return the artefacts of a learner by kind."""
    from holdfast.everyday.export import export

    found = {"onnx": state.with_name(f"{state.name}-onnx"), "int8": state.with_name(f"{state.name}-int8")}
    for kind, place in found.items():
        if not place.exists():
            export(state, place, onnx=True, int8=kind == "int8")
    return found


# ---- parts ------------------------------------------------------------------------------------------------


def cold(state: Path, artefacts: dict[str, Path], text: str) -> Found:
    def cpu(place: Path) -> float:
        command = [sys.executable, "-m", "holdfast", "predict", str(place), text]
        child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert not child.returncode, command
        return usage.ru_utime + usage.ru_stime

    places = {"torch": state} | artefacts
    turns = [{kind: cpu(place) for kind, place in places.items()} for _ in range(options.turns)]
    best = {kind: min(turn[kind] for turn in turns) for kind in places}
    return {"cpu_seconds": best} | {f"{kind}_vs_torch": best[kind] / best["torch"] for kind in artefacts}


def speed(answering: dict[str, Any], texts: Sequence[str]) -> Found:
    single, batched = list(texts[: options.sentences]), list(texts[:1000])
    for one in answering.values():
        one.predict_proba(single[:20])
    each: dict[str, list[float]] = {kind: [] for kind in answering}
    for text in single:
        for kind, one in answering.items():
            each[kind].append(seconds(lambda one=one, text=text: one.predict_proba([text])))  # type: ignore[misc]
    turns: dict[str, list[float]] = {kind: [] for kind in answering}
    for _ in range(options.turns):
        for kind, one in answering.items():
            turns[kind].append(seconds(lambda one=one: one.predict_proba(batched)))  # type: ignore[misc]
    p50 = {kind: statistics.median(values) for kind, values in each.items()}
    p99 = {kind: sorted(values)[len(values) * 99 // 100] for kind, values in each.items()}
    rate = {kind: len(batched) / min(values) for kind, values in turns.items()}
    return {
        "p50_ms": {kind: 1e3 * value for kind, value in p50.items()},
        "p99_ms": {kind: 1e3 * value for kind, value in p99.items()},
        "per_second": rate,
        "p50_onnx_vs_torch": p50["onnx"] / p50["torch"],
        "p50_int8_vs_torch": p50["int8"] / p50["torch"],
        "throughput_onnx_vs_torch": rate["onnx"] / rate["torch"],
        "throughput_int8_vs_onnx": rate["int8"] / rate["onnx"],
    }


def parity(answering: dict[str, Any], stream: Stream, others: Sequence[str]) -> Found:
    from holdfast.everyday.predict import answers
    from holdfast.maths.metrics import macro_f1
    from holdfast.runtime.answers import Asked

    gold = [label for task in stream for label in task.test.labels]
    texts = [text for task in stream for text in task.test.texts]
    every, learner = [*texts, *others], answering["torch"]
    expected = learner.predict_proba(every)
    classes = learner.classes_
    best = [classes[i] for i in expected.argmax(1)]
    found: Found = {"sentences": len(every), "f1": {"torch": 100 * macro_f1(gold, best[: len(gold)])}}
    try:
        asked = Asked(reject=0.95, cover=0.95)
        learners = answers(learner, every, asked)
    except Exception:  # of a head without distances or sets
        asked = Asked()
        learners = answers(learner, every, asked)
    for kind in ("onnx", "int8"):
        its = answering[kind].predict_proba(every)
        labels = [classes[i] for i in its.argmax(1)]
        other = answering[kind].answers(every, asked)
        found["f1"][kind] = 100 * macro_f1(gold, labels[: len(gold)])
        found[kind] = {
            "labels_that_differ": sum(a != b for a, b in zip(best, labels, strict=True)),
            "largest_difference_of_a_probability": float(abs(its - expected).max()),
            "rejections_that_differ": sum(
                (a.label is None) != (b.label is None) for a, b in zip(learners, other, strict=True)
            ),
            "sets_that_differ": sum(a.set != b.set for a, b in zip(learners, other, strict=True)),
        }
    found["f1_int8_minus_torch"] = found["f1"]["int8"] - found["f1"]["torch"]
    return found


def tenants_of(stream: Stream) -> Path:
    """Make the tenants' artefacts, each of other labels; return their folder.

    Beyond --taught they are copies whose graph has other bytes, so that a process shares nothing of them but
    the encoder.
    """
    from holdfast.everyday.export import export
    from holdfast.learning.learner import Learner

    root = options.work / f"tenants-{stream.name}-{Path(options.model).name}-{options.labels}-{options.each}"
    pool: dict[str, list[str]] = {}
    for task in stream:
        for text, label in zip(task.train.texts, task.train.labels, strict=True):
            pool.setdefault(label, []).append(text)
    for number in range(options.tenants):
        place = root / f"tenant{number:04}"
        if place.exists():
            continue
        if number >= options.taught:
            copied(root / f"tenant{number % options.taught:04}", place)
            continue
        draw = random.Random(number)
        labels = draw.sample(sorted(pool), min(options.labels, len(pool)))
        rows = [
            (text, label)
            for label in labels
            for text in draw.sample(pool[label], min(options.each, len(pool[label])))
        ]
        learner = Learner.create(options.model, options.method)
        learner.learn([text for text, _ in rows], [label for _, label in rows])
        with tempfile.TemporaryDirectory() as state:
            learner.save(state)
            export(state, place, onnx=True, share=True)
    return root


def tenants(root: Path) -> Found:
    """Ask the tenants' artefacts in another process."""
    from holdfast.runtime.artefact import Artefact

    again = [sys.executable, __file__, "--ask", str(root), "--tenants", str(options.tenants)]
    done = subprocess.run(again, capture_output=True, text=True, check=True)
    own = [Artefact(place).own_bytes for place in root.glob("tenant*")]
    found: Found = {"taught": min(options.taught, options.tenants), "own_mb": statistics.mean(own) / 1e6}
    return found | json.loads(done.stdout)


def copied(source: Path, place: Path) -> None:
    """Copy an artefact, with another comment in the graph of its head."""
    import onnx

    from holdfast.runtime.artefact import Artefact, write_manifest

    artefact = Artefact(source)
    head = artefact.named("head")
    graph = onnx.load_model_from_string(artefact.read(head))
    graph.doc_string = place.name
    data = graph.SerializeToString()
    digest = hashlib.sha256(data).hexdigest()
    name = f"head-{digest[:16]}.onnx"
    manifest = artefact.manifest
    files = {other: note for other, note in manifest.files.items() if other != head}
    files[name] = {"bytes": len(data), "sha256": digest}
    place.mkdir()
    (place / name).write_bytes(data)
    graphs = [name if one == head else one for one in manifest.graphs]
    write_manifest(place, dataclasses.replace(manifest, files=files, graphs=graphs))


def ask(root: Path) -> Found:
    """Serve all tenants from this process, then with room for half of them: each request loads one."""
    from holdfast.runtime import Tenants

    def request(service: Tenants, name: str) -> float:
        return seconds(lambda: service.get(name).predict(["please help me with my account"]))

    before = memory()
    service = Tenants(root, most=options.tenants, threads=1)
    names = service.names[: options.tenants]
    first = [request(service, name) for name in names]
    again = [request(service, name) for name in names]
    held = len(service.loaded)
    whole = memory()
    service = Tenants(root, most=max(len(names) // 2, 1), threads=1)
    for name in names:
        service.get(name)
    evicted = [request(service, name) for name in names]  # each was dropped before its turn
    found = {
        "tenants": len(names),
        "in_memory": held,
        "start_mb": before,
        "peak_mb": whole,
        "very_first_request_ms": 1e3 * first[0],
        "first_request_ms": 1e3 * statistics.median(first[1:] or first),
        "request_ms": 1e3 * statistics.median(again),
        "evicted_request_ms": 1e3 * statistics.median(evicted),
        "evicted_request_p99_ms": 1e3 * sorted(evicted)[len(evicted) * 99 // 100],
        "evicted_vs_loaded": statistics.median(evicted) / statistics.median(again),
    }
    assert held == len(names)
    return found


def service(root: Path) -> Found:
    """Ask `holdfast serve` of all tenants, then with room for half of them: each request loads one."""
    names = sorted(place.name for place in root.glob("tenant*"))[: options.tenants]

    def request(connection: HTTPConnection, name: str) -> float:
        body = json.dumps({"texts": ["please help me with my account"]})
        began = time.perf_counter()
        connection.request(
            "POST", f"/v1/predict?state={name}", body, headers={"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        said = reply.read()
        assert reply.status == 200, said
        return time.perf_counter() - began

    with serving(root, len(names)) as (connection, status):
        start = resident(status)
        first = [request(connection, name) for name in names]
        again = [request(connection, name) for name in names]
        whole = resident(status)
        connection.request("GET", "/readyz")
        held = json.loads(connection.getresponse().read())["learners"]
    with serving(root, max(len(names) // 2, 1)) as (connection, status):
        for name in names:
            request(connection, name)
        evicted = [request(connection, name) for name in names]  # each was dropped before its turn
        half = resident(status)
    return {
        "tenants": len(names),
        "in_memory": held,
        "start_mb": start,
        "rss_mb": whole,
        "rss_of_half_mb": half,
        "very_first_request_ms": 1e3 * first[0],
        "first_request_ms": 1e3 * statistics.median(first[1:] or first),
        "request_ms": 1e3 * statistics.median(again),
        "evicted_request_ms": 1e3 * statistics.median(evicted),
        "evicted_request_p99_ms": 1e3 * sorted(evicted)[len(evicted) * 99 // 100],
        "evicted_vs_loaded": statistics.median(evicted) / statistics.median(again),
    }


@contextmanager
def serving(root: Path, loaded: int) -> Iterator[tuple[HTTPConnection, Path]]:
    """Run the service; yield a connection, and where the kernel tells the memory of its process."""
    words = [sys.executable, "-m", "holdfast.app.main", "serve", str(root), "--many", "--loaded", str(loaded)]
    process = subprocess.Popen([*words, "--port", "0", "--threads", "1"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].partition("#")[0]
        connection = HTTPConnection(
            "127.0.0.1", int(address.strip().rstrip("/").rpartition(":")[2]), timeout=60
        )
        while True:
            try:
                connection.request("GET", "/readyz")
                connection.getresponse().read()
                break
            except ConnectionRefusedError:
                connection.close()
                assert process.poll() is None, "the service has ended"
                time.sleep(0.1)
        yield connection, Path(f"/proc/{process.pid}/status")
        connection.close()
    finally:
        process.terminate()
        process.wait()


def resident(status: Path) -> float:
    """Return the memory that a process holds, in megabytes."""
    lines = status.read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith("VmRSS"))


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    if options.ask:
        print(json.dumps(ask(options.ask)))
        return
    stream = load_stream(options.stream, data_dir=options.data_dir)
    found: Found = {
        "stream": stream.name,
        "model": Path(options.model).name,
        "method": options.method,
        "versions": versions(),
    }
    if {"cold", "speed", "parity"} & set(options.parts):
        import torch

        from holdfast.learning.learner import Learner
        from holdfast.runtime import Classifier

        torch.set_num_threads(1)
        state = learnt(stream)
        artefacts = exported(state)
        texts = [text for task in stream for text in task.test.texts]
        random.Random(0).shuffle(texts)
        if "cold" in options.parts:
            found["cold"] = cold(state, artefacts, texts[0])
        answering = {"torch": Learner.load(state)} | {
            kind: Classifier(place, threads=1) for kind, place in artefacts.items()
        }
        if "speed" in options.parts:
            found["speed"] = speed(answering, texts)
        if "parity" in options.parts:
            clinc = stream.name == "clinc150"
            others = out_of_scope(data_home(options.data_dir))["test"] if clinc else ()
            found["parity"] = parity(answering, stream, others)
    if {"tenants", "service"} & set(options.parts):
        root = tenants_of(stream)
        for part, measure in (("tenants", tenants), ("service", service)):
            if part in options.parts:
                found[part] = measure(root)
    found = rounded(found)
    if options.out:
        name = "-".join(["in-process", *options.parts] if len(options.parts) < len(PARTS) else ["in-process"])
        write_json(options.out / f"{name}-{stream.name}-{found['model']}-{options.method}.json", found)
    print(json.dumps(found, indent=1))


def versions() -> dict[str, str]:
    from importlib.metadata import version

    cpu = next(
        (
            line.partition(": ")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "",
    )
    flags = Path("/proc/cpuinfo").read_text()
    names = ("holdfast", "torch", "transformers", "onnxruntime", "tokenizers")
    return {name: version(name) for name in names} | {
        "cpu": cpu,
        "instructions": " ".join(
            one for one in ("avx2", "avx512f", "avx512_vnni", "avx_vnni", "amx_int8") if f" {one}" in flags
        ),
    }


if __name__ == "__main__":
    main()

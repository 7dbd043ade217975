"""Long campaigns: fuzzed files, threads beside a writer, many lessons. Run by `make soak`, not by pytest.

Prints a table and exits with 1 if a bar is missed. `--inputs N` sets the number of fuzzed files.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from helpers import damage
from helpers.command_line import environment
from helpers.everyday import rows_of
from helpers.learners import TEXTS, taught
from helpers.records_by_hand import matrix, record_of
from helpers.reports import spec
from helpers.toys import KEYWORDS, save_tiny_bert

from holdfast.bench.records import check_record
from holdfast.data.readers import read_pairs, read_texts
from holdfast.errors import HoldfastError
from holdfast.learning.learner import Learner
from holdfast.lm.artefact import Card, Importance
from holdfast.storage.files import read_json
from holdfast.storage.generations import Store
from holdfast.storage.tensors import write_tensors

HANG = 10  # seconds
THREADS, PREDICTIONS, COMMITS = 8, 2000, 20
LESSONS = 300
FILLING = 6  # lessons before the first that is measured
GROWTH = ("time", "memory", "state")


class Hang(BaseException):
    """An input took longer than HANG seconds."""


def spoilt(data: bytes, rng: random.Random) -> bytes:
    """Return bytes with some flipped, cut out, repeated or replaced."""
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        place, end = sorted(rng.randrange(len(data) + 1) for _ in "12")
        piece = rng.choice(
            (b"", data[place:end], rng.randbytes(rng.randrange(9)), b"\x00", b'"', b"[" * 999, b"9" * 400)
        )
        how = rng.random()
        if how < 0.4 and place < len(data):
            data = data[:place] + bytes([data[place] ^ (1 << rng.randrange(8))]) + data[place + 1 :]
        elif how < 0.6:
            data = data[:place]
        elif how < 0.8:
            data = data[:place] + piece + data[place:]
        else:
            data = data[:place] + piece + data[end:]
    return data


# ---- fuzzed files -------------------------------------------------------------------------------------


def states(model: str, place: Path, rng: random.Random) -> Iterator[Callable[[], Any]]:
    """Yield loads of states: files with spoilt bytes, then sound files with strange content."""
    roots = []
    for method in ("slda", "la", "klda"):
        roots.append(place / method)
        taught(model, method, tasks=1).save(roots[-1])
    saved = {root: Store(root).load() for root in roots}
    names = ("CURRENT", "generation-000001/manifest.json", "generation-000001/state.safetensors")
    files = {root: {name: (root / name).read_bytes() for name in names} for root in roots}
    changes = {root: [*damage.in_json(found), *damage.in_tensors(found)] for root, found in saved.items()}
    while True:
        root = rng.choice(roots)
        copy = place / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        (copy / "generation-000001").mkdir(parents=True)
        if rng.random() < 0.5:
            for name, data in files[root].items():
                (copy / name).write_bytes(spoilt(data, rng) if rng.random() < 0.5 else data)
        else:
            _, sections, tensors = rng.choice(changes[root])
            Store(copy).commit(tensors, sections)

        def load(copy: Path = copy) -> None:
            learner = Learner.load(copy, model=model)
            learner.predict_proba(TEXTS[:1])

        yield load


def artefacts(model: str, place: Path, rng: random.Random) -> Iterator[Callable[[], Any]]:
    """Yield loads of importances."""
    card = {"model": "m", "data": "d", "sequences": 3, "kind": "mas", "squared": False, "fingerprint": ""}
    Importance({"w": torch.rand(4, 4), "b": torch.rand(4)}, Card(**card)).save(place / "sound")
    sound = (place / "sound" / "importance.safetensors").read_bytes()
    (place / "copy").mkdir()
    path = place / "copy" / "importance.safetensors"
    while True:
        if rng.random() < 0.5:
            path.write_bytes(spoilt(sound, rng))
        else:
            strange = damage.put(card, (rng.choice([*card]),), rng.choice((..., *damage.STRANGE)))
            values = {"w": torch.rand(4) * rng.choice((1, -1, 0, torch.nan, torch.inf))}
            write_tensors(path, {rng.choice(("importance", "x")): values}, strange)
        yield lambda: Importance.load(place / "copy")


def data(model: str, place: Path, rng: random.Random) -> Iterator[Callable[[], Any]]:
    """Yield reads of data files."""
    rows = [("wake me at six, please", "alarm"), ('play "jazz"', "music"), ("grüße\n今日", "greeting")] * 3
    sound = {
        "csv": "text,label,split\n" + "\n".join(f'"{t}",{label},train' for t, label in rows),
        "tsv": "text\tlabel\n" + "\n".join(f"{t}\t{label}".replace("\n", " ") for t, label in rows),
        "jsonl": "\n".join(json.dumps({"text": t, "label": label}) for t, label in rows),
        "txt": "\n".join(t for t, _ in rows),
    }
    while True:
        kind = rng.choice([*sound])
        path = place / f"data.{kind}"
        path.write_bytes(spoilt(sound[kind].encode(), rng))
        yield (lambda path=path: read_texts(path)) if kind == "txt" else (lambda path=path: read_pairs(path))


def records(model: str, place: Path, rng: random.Random) -> Iterator[Callable[[], Any]]:
    """Yield reads of records."""
    sound = json.loads(json.dumps(record_of(spec("la"), matrix(0.1, 0.2, 0.3))))
    spots, path = list(damage.places(sound)), place / "record.json"
    while True:
        if rng.random() < 0.5:
            path.write_bytes(spoilt(json.dumps(sound).encode(), rng))
        else:
            path.write_text(
                json.dumps(damage.put(sound, rng.choice(spots), rng.choice((..., *damage.STRANGE))))
            )
        yield lambda: check_record(read_json(path))


def fuzz(inputs: int, model: str, place: Path) -> dict[str, Any]:
    """Read fuzzed files of all kinds; count what is read, refused, and everything else."""

    def late(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, late)
    found: Counter[str] = Counter()
    faults: list[str] = []
    for kind in (states, artefacts, data, records):
        folder = place / kind.__name__
        folder.mkdir()
        source = kind(model, folder, random.Random(kind.__name__))
        for number in range(inputs // 4):
            read = next(source)
            signal.alarm(HANG)
            try:
                read()
                found["read"] += 1
            except HoldfastError as error:
                found["refused"] += 1
                if "\n" in str(error):
                    faults.append(f"{kind.__name__} {number}: two lines: {error}")
            except Hang:
                faults.append(f"{kind.__name__} {number}: hangs")
            except Exception:
                faults.append(f"{kind.__name__} {number}: {traceback.format_exc()}")
            finally:
                signal.alarm(0)
        print(f"  {kind.__name__}: {inputs // 4} inputs, {len(faults)} faults so far", flush=True)
    for fault in faults[:5]:
        print(fault)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"inputs": sum(found.values()) + len(faults), **found, "faults": len(faults), "peak_memory": peak}


# ---- threads beside a writer --------------------------------------------------------------------------

WRITER = """
import sys, time
sys.path.insert(0, sys.argv[3])
from helpers.toys import KEYWORDS
from holdfast.learning.learner import Learner
learner = Learner.load(sys.argv[1])
for number in range(int(sys.argv[2])):
    words = [f"{word} {KEYWORDS['music'][number % 3]}" for word in ("the", "a", "of")]
    learner.learn(words, [f"label {number}"] * 3)
    learner.save(sys.argv[1])
    time.sleep(0.3)  # so that the reader sees most generations
"""


def threads(model: str, place: Path, predictions: int = PREDICTIONS) -> dict[str, Any]:
    """Predict in many threads while another process commits; return how many answers no generation gives.

    Each thread goes on after its `predictions` until all generations are committed.
    """
    root = place / "threads"
    taught(model, "slda", tasks=2, generations=COMMITS + 5).save(root)
    current = [Learner.load(root)]
    command = [sys.executable, "-c", WRITER, str(root), str(COMMITS), str(Path(__file__).parent)]
    writer, last = subprocess.Popen(command, env=environment()), threading.Event()

    def ask(thread: int) -> list[tuple[int, str, np.ndarray]]:
        found: list[tuple[int, str, np.ndarray]] = []
        while len(found) < predictions or not last.is_set():
            learner, text = current[0], TEXTS[(thread + len(found)) % len(TEXTS)]
            found.append((learner.generation, text, learner.predict_proba([text])))
        return found

    with ThreadPoolExecutor(THREADS) as pool:
        asked = [pool.submit(ask, thread) for thread in range(THREADS)]
        try:
            while writer.poll() is None or Store(root).current != current[0].generation:
                if Store(root).current != current[0].generation:
                    current[0] = Learner.load(root)
                time.sleep(0.01)
        finally:
            last.set()
        answers = [answer for one in asked for answer in one.result()]
    assert writer.wait() == 0
    expected: dict[tuple[int, str], np.ndarray] = {}
    for generation in sorted({generation for generation, _, _ in answers}):
        learner = Learner.load(root, generation)
        expected |= {(generation, text): learner.predict_proba([text]) for text in TEXTS}
    wrong = sum(not np.array_equal(found, expected[number, text]) for number, text, found in answers)
    seen = len({generation for generation, _, _ in answers})
    return {
        "answers": len(answers),
        "generations seen": seen,
        "committed": Store(root).current,
        "wrong": wrong,
    }


# ---- many lessons -------------------------------------------------------------------------------------


def lessons(
    model: str, place: Path, number: int = LESSONS, *, history: bool, method: str = "auto"
) -> dict[str, float]:
    """Teach and commit many lessons; return last fifty over first fifty: time, memory, size of the state.

    The history has an entry per lesson. Without `history`, only the last is kept.
    """
    root, rng = place / f"lessons {history} {method}", random.Random(0)
    labels = [label for label, _ in dict.fromkeys((label, 0) for _, label in [*rows_of(0), *rows_of(1)])]
    spent, memory, sizes = [], [], []
    taught(model, method, tasks=2).save(root)
    for lesson in range(-FILLING, number):
        rows = [
            (f"{rng.choice(KEYWORDS[label])} {rng.choice(KEYWORDS[label])}", label) for label in labels * 6
        ]
        began = time.process_time()
        learner = Learner.load(root)
        learner.history = learner.history if history else learner.history[-1:]
        learner.learn([text for text, _ in rows], [label for _, label in rows], f"lesson {lesson}")
        learner.save(root)
        if lesson < 0:  # the scatter of a label grows until it has as many sentences as columns
            continue
        spent.append(time.process_time() - began)
        size = (Store(root).path(Store(root).current or 0) / "state.safetensors").stat().st_size
        sizes.append(float(size))
        del learner
        gc.collect()
        memory.append(int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize())
    part = number // 6

    def growth(values: list[float]) -> float:
        return round(float(np.median(values[-part:]) / np.median(values[:part])), 3)

    return {"lessons": number, "time": growth(spent), "memory": growth(memory), "state": growth(sizes)}


def main() -> int:
    """Run all campaigns and compare them with the bars."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--inputs", type=int, default=20_000)
    inputs = options.parse_args().inputs
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        model = save_tiny_bert(place / "model", layers=1)
        found = {"fuzz": fuzz(inputs, model, place)}
        print(json.dumps(found), flush=True)
        found["threads"] = threads(model, place)
        print(json.dumps(found["threads"]), flush=True)
        found["lessons"] = lessons(model, place, history=False)
        print(json.dumps(found["lessons"]), flush=True)
        print("with its history:", json.dumps(lessons(model, place, history=True)), flush=True)
    bars = {
        "fuzzed files give no traceback and no hang": not found["fuzz"]["faults"],
        "fuzzing takes at most 1 GB": found["fuzz"]["peak_memory"] <= 2**30,
        "every answer is that of a committed generation": not found["threads"]["wrong"],
        "the answers come from at least half of them": found["threads"]["generations seen"] > COMMITS // 2,
        "300 lessons do not slow down or grow": max(found["lessons"][n] for n in ("time", "memory", "state"))
        <= 1.1,
    }
    for bar, held in bars.items():
        print(f"{'holds ' if held else 'MISSED'} {bar}")
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())

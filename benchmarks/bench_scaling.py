"""Measure how much faster two one-thread jobs finish a suite than one, on two cores.

    python benchmarks/bench_scaling.py

Runs the same small suite three times in empty folders: one job of one thread (the reference), two jobs of
one thread, one job of two threads. One warm-up run is not counted. Prints the times as ratios to the
reference, and exits with code 1 if two jobs take more than 0.6 of its time. Takes some minutes on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from holdfast.app.display import SuiteDisplay
from holdfast.bench.bench import bench
from holdfast.bench.engine import Local, cores
from holdfast.bench.spec import Spec
from holdfast.bench.suite import Suite

BAR = 0.6  # largest allowed time of two jobs / time of one
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--runs", type=int, default=4, help="number of runs in the suite")
parser.add_argument("--model", default="minilm")
parser.add_argument("--json", action="store_true")


def suite(model: str, runs: int, threads: int) -> Suite:
    """Return a suite of equally long runs, so that neither job waits for the other at the end."""
    specs = [
        Spec.create(method="seq", stream="home", preset="quick", model=model, seed=seed, threads=threads)
        for seed in range(runs)
    ]
    return Suite("scaling", tuple(specs), share=False)


def board(console: Console) -> Callable[[int, int], SuiteDisplay]:
    return lambda total, at_once: SuiteDisplay(console, total, at_once)


def timed(work: Suite, jobs: int, console: Console) -> float:
    """Return the seconds that a suite takes in an empty folder."""
    with tempfile.TemporaryDirectory() as place:
        began = time.monotonic()
        failures = bench(work, Path(place), Local(jobs), board(console))
        assert not failures, failures
        return time.monotonic() - began


def main() -> None:
    arguments = parser.parse_args()
    console = Console(stderr=True)
    times = {}
    timed(suite(arguments.model, 1, 1), 1, console)
    for name, jobs, threads in (
        ("one job, one thread", 1, 1),
        ("two jobs, one thread", 2, 1),
        ("one job, two threads", 1, 2),
    ):
        console.print(name, style="bold")
        times[name] = timed(suite(arguments.model, arguments.runs, threads), jobs, console)
    reference = times["one job, one thread"]
    found = {name: round(seconds / reference, 3) for name, seconds in times.items()}
    if arguments.json:
        print(json.dumps({"cores": len(cores()), "runs": arguments.runs, "ratios": found}))
    else:
        for name, ratio in found.items():
            print(f"{name}: {ratio:.2f} of the reference")
    sys.exit(found["two jobs, one thread"] > BAR)


if __name__ == "__main__":
    main()

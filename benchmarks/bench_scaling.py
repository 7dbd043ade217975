"""How much faster two jobs finish a suite than one, each of one thread, on two cores.

    python benchmarks/bench_scaling.py

runs the same small suite three times into empty folders: one job of one thread (the reference), two jobs of
one thread, one job of two threads; before them one run that is not counted, so that the reference does not
begin cold. Prints the times as ratios to the reference, and ends with code 1 where two jobs take more than
0.6 of its time. Takes some minutes on a machine that does nothing else.
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

from holdfast.app.board import Board
from holdfast.bench.bench import bench
from holdfast.bench.engine import Local, cores
from holdfast.bench.spec import Spec
from holdfast.bench.suite import Suite

BAR = 0.6  # of the time of one job, for two
parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--runs", type=int, default=4, help="runs of the suite; more even out their ends")
parser.add_argument("--model", default="minilm")
parser.add_argument("--json", action="store_true")


def suite(model: str, runs: int, threads: int) -> Suite:
    """The same work in every run, so that neither job waits for the other at the end."""
    specs = [
        Spec.create(method="seq", stream="home", preset="quick", model=model, seed=seed, threads=threads)
        for seed in range(runs)
    ]
    return Suite("scaling", tuple(specs), share=False)


def board(console: Console) -> Callable[[int, int], Board]:
    return lambda total, at_once: Board(console, total, at_once)


def timed(work: Suite, jobs: int, console: Console) -> float:
    """The seconds of a suite from nothing."""
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

"""Makes the records of a suite that are missing, shows how far it is, and leaves the others alone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.bench.board import Board
from holdfast.bench.engine import Engine
from holdfast.bench.run import pool_of
from holdfast.bench.spec import Spec
from holdfast.bench.suite import Suite
from holdfast.bench.worker import Job
from holdfast.errors import HoldfastError
from holdfast.files import read_json, write_json


@dataclass(frozen=True)
class Failure:
    """A run that could not be made, and why."""

    spec: Spec
    why: str


def bench(
    suite: Suite,
    out: Path,
    engine: Engine,
    board: Callable[[int, int], Board],
    *,
    data_dir: Path | None = None,
    track: str | None = None,
) -> list[Failure]:
    """Run what is missing; the failures that are left."""
    check_data(suite, data_dir)
    write_json(out / f"{suite.name}.suite.json", suite.manifest())
    missing, known = _sort_out(suite, out)
    failures: list[Failure] = []
    if not missing:
        return failures
    jobs = [
        Job(spec.to_json(), str(out), str(data_dir) if data_dir else None, suite.share, track)
        for spec in missing
    ]
    at_once = engine.at_once(max(spec.threads for spec in missing))
    with board(len(suite.specs), at_once) as show:
        show.start(missing, known)
        for report in engine.run(jobs):
            spec = missing[report.number]
            if report.event["kind"] == "failed":
                failures.append(Failure(spec, report.event["why"]))
            record = None
            if report.event["kind"] == "done":
                record = read_json(out / f"{spec.digest()}.json")
            show.event(report.number, report.event, record)
    if not failures:
        shutil.rmtree(pool_of(out), ignore_errors=True)
    return failures


def check_data(suite: Suite, data_dir: Path | None) -> None:
    """Read every stream once, so that missing data is said before hours of work."""
    for spec in {(spec.stream, spec.order): spec for spec in suite.specs}.values():
        stream = spec.load_stream(data_dir)
        if spec.tasks is not None and spec.tasks > len(stream):
            raise HoldfastError(f"{spec.stream} has {len(stream)} tasks, not {spec.tasks}")


def _sort_out(suite: Suite, out: Path) -> tuple[list[Spec], list[dict[str, Any]]]:
    """The runs to make, and the records that are there."""
    missing, known = [], []
    for spec in suite.specs:
        path = out / f"{spec.digest()}.json"
        if path.exists():
            try:
                known.append(read_json(path))
            except HoldfastError:
                missing.append(spec)  # its run will say so, and the others go on
        else:
            missing.append(spec)
    return missing, known

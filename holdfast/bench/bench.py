"""Run a suite: make the records that are missing, and show the progress."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.bench.engine import Engine
from holdfast.bench.records import Record, read_record, spec_of
from holdfast.bench.run import pool_of
from holdfast.bench.spec import Spec
from holdfast.bench.suite import Suite
from holdfast.bench.worker import Event, Job
from holdfast.errors import HoldfastError
from holdfast.models.sources import check_model_name
from holdfast.storage.files import locked, read_json, shared, write_json


class Titled(Protocol):
    """The spec of any kind of run, as a progress display needs it."""

    @property
    def title(self) -> str:
        """A short name of the run."""

    @property
    def like(self) -> str:
        """A key that runs of similar duration share."""


@dataclass(frozen=True)
class Missing:
    """A run without a record: its spec, the job that makes the record, and the record's path."""

    spec: Titled
    job: Job
    path: Path


@dataclass(frozen=True)
class Failure:
    """A failed run, and the reason."""

    spec: Titled
    why: str


class SuiteProgress(Protocol):
    """Listener for the events of a suite."""

    def start(self, missing: Sequence[Titled], known: Sequence[tuple[str, float]]) -> None:
        """Receive the runs to make, and `Titled.like` and seconds of each finished run."""

    def event(self, number: int, event: Event, record: Record | None) -> None:
        """Receive an event of a missing run. The record comes with the event "done"."""


BoardMaker = Callable[[int, int], AbstractContextManager[SuiteProgress]]
"""Makes the display, from the total number of runs and the number of parallel runs."""


def bench(
    suite: Suite,
    out: Path,
    engine: Engine,
    board: BoardMaker,
    *,
    data_dir: Path | None = None,
    track: str | None = None,
) -> list[Failure]:
    """Make the missing records of a suite; return the failures, unreadable records included."""
    check_data(suite, data_dir)
    failures: list[Failure] = []
    # Computed once: the digest depends on the user's files, which may be edited during the run.
    records = [out / f"{spec.digest()}.json" for spec in suite.specs]
    with shared(out / ".trials") as last:
        _keep_manifest(suite, out)
        missing, known = _sort_out(list(zip(suite.specs, records, strict=True)), failures)
        common = Job(
            {}, str(out), data_dir=_absolute(data_dir), share=suite.share, track=track, folder=str(Path.cwd())
        )
        wanted = [Missing(spec, replace(common, spec=spec.to_json()), path) for spec, path in missing]
        took = [(spec_of(record["spec"]).like, record["seconds"]) for record in known]
        failures += make(wanted, len(suite.specs), engine, board, took)
        if not failures and last():
            _tidy(out)
    return failures


def make(
    missing: Sequence[Missing],
    total: int,
    engine: Engine,
    board: BoardMaker,
    known: Sequence[tuple[str, float]] = (),
) -> list[Failure]:
    """Make the records of the missing runs; return the failures. `known` has the times of finished runs."""
    if not missing:
        return []
    failures: list[Failure] = []
    at_once = engine.at_once(max(one.job.spec["threads"] for one in missing))
    with board(total, at_once) as show:
        show.start([one.spec for one in missing], known)
        for said in engine.run([one.job for one in missing]):
            one = missing[said.number]
            event, record = _ended(said.event, one.path)
            if event["kind"] == "failed":
                failures.append(Failure(one.spec, event["why"]))
            show.event(said.number, event, record)
    return failures


def _tidy(out: Path) -> None:
    """Delete the intermediate files of finished runs."""
    for path in (out / ".trials").glob("*"):
        if path in (pool_of(out), _manifests(out)) or (out / f"{path.name}.json").exists():
            shutil.rmtree(path, ignore_errors=True)
    for half in out.glob(".*.json.*.tmp"):  # a process was killed while it wrote a record
        if (out / half.name[1:].rsplit(".", 2)[0]).exists():
            half.unlink(missing_ok=True)
    (out / ".trials" / ".users").unlink(missing_ok=True)


def _manifests(out: Path) -> Path:
    """Return the folder that is locked while a manifest is written."""
    return out / ".trials" / "manifests"


def _ended(event: Event, path: Path) -> tuple[Event, Any]:
    """Return the event, with the record if the run is done; a missing or unreadable one is a failure."""
    if event["kind"] != "done":
        return event, None
    if not path.exists():
        return {"kind": "failed", "why": f"wrote no {path.name}; were its files edited during the run?"}, None
    try:
        return event, read_json(path)
    except HoldfastError as error:
        return {"kind": "failed", "why": str(error)}, None


def _absolute(path: Path | None) -> str | None:
    """Return an absolute path: a worker may run in another folder."""
    return None if path is None else str(path.resolve())


def _keep_manifest(suite: Suite, out: Path) -> None:
    """Write the list of wanted runs, merged with that of earlier calls under the same suite name."""
    path, manifest = out / f"{suite.name}.suite.json", suite.manifest()
    with locked(_manifests(out), patience=10.0):  # other processes may run the same suite
        if path.exists():
            with suppress(HoldfastError, KeyError, TypeError):
                # The same spec under another digest belongs to an earlier version of the user's files.
                asked = [run["spec"] for run in manifest["runs"]]
                before = [run for run in read_json(path)["runs"] if run["spec"] not in asked]
                # Drop runs that the whole suite no longer names and that have no record.
                manifest["runs"] += [
                    run for run in before if suite.narrowed or (out / f"{run['digest']}.json").exists()
                ]
        write_json(path, manifest)


def check_data(suite: Suite, data_dir: Path | None) -> None:
    """Check every model name and read every stream, so that errors appear before the runs start."""
    for model in {spec.model for spec in suite.specs}:
        check_model_name(model)
    for spec in {_read_by(spec): spec for spec in suite.specs}.values():
        stream = spec.load_stream(data_dir)
        if spec.tasks is not None and spec.tasks > len(stream):
            raise HoldfastError(f"{spec.stream} has only {len(stream)} tasks, not {spec.tasks}; lower tasks")


def _read_by(spec: Spec) -> tuple[Any, ...]:
    """Return the settings that decide how the stream is read."""
    settings = spec.settings()
    return spec.stream, spec.order, spec.tasks, settings.text_column, settings.label_column


def _sort_out(
    runs: Sequence[tuple[Spec, Path]], failures: list[Failure]
) -> tuple[list[tuple[Spec, Path]], list[dict[str, Any]]]:
    """Return the missing runs and the existing records; add unreadable records to the failures."""
    missing, known = [], []
    for spec, path in runs:
        if not path.exists():
            missing.append((spec, path))
            continue
        try:
            known.append(read_record(path, spec))
        except HoldfastError as error:
            failures.append(Failure(spec, str(error)))
    return missing, known

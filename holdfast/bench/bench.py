"""Makes the records of a suite that are missing, shows how far it is, and leaves the others alone."""

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
    """The spec of a run, of whatever kind, as a person sees it."""

    @property
    def title(self) -> str:
        """The run in a few words."""

    @property
    def like(self) -> str:
        """The same for runs that take about as long."""


@dataclass(frozen=True)
class Missing:
    """A run to make: its spec, the job that makes it, and the file of its record."""

    spec: Titled
    job: Job
    path: Path


@dataclass(frozen=True)
class Failure:
    """A run that could not be made, and why."""

    spec: Titled
    why: str


class SuiteProgress(Protocol):
    """Listens to runs being made."""

    def start(self, missing: Sequence[Titled], known: Sequence[tuple[str, float]]) -> None:
        """Take note of the runs to make, and of the seconds that runs alike have taken."""

    def event(self, number: int, event: Event, record: Record | None) -> None:
        """Take note of what happened to a missing run; its record comes with its end."""


BoardMaker = Callable[[int, int], AbstractContextManager[SuiteProgress]]
"""Given how many runs there are in all and how many go on at once."""


def bench(
    suite: Suite,
    out: Path,
    engine: Engine,
    board: BoardMaker,
    *,
    data_dir: Path | None = None,
    track: str | None = None,
) -> list[Failure]:
    """Run what is missing; the failures that are left."""
    check_data(suite, data_dir)
    failures: list[Failure] = []
    # Once: a user's files, by which a run is named, may be edited while it goes on.
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
    """Make the records of these runs, of so many in all; the failures. `known` are seconds of runs alike."""
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
    """What runs have shared serves nobody any more, nor what one left that was killed at its very end."""
    for path in (out / ".trials").glob("*"):
        if path in (pool_of(out), _manifests(out)) or (out / f"{path.name}.json").exists():
            shutil.rmtree(path, ignore_errors=True)
    for half in out.glob(".*.json.*.tmp"):  # a kill came while a record was written, which is there by now
        if (out / half.name[1:].rsplit(".", 2)[0]).exists():
            half.unlink(missing_ok=True)
    (out / ".trials" / ".users").unlink(missing_ok=True)


def _manifests(out: Path) -> Path:
    """What is locked while a manifest is written."""
    return out / ".trials" / "manifests"


def _ended(event: Event, path: Path) -> tuple[Event, Any]:
    """What happened to a run, and its record where that is its end; one that is not there is a failure."""
    if event["kind"] != "done":
        return event, None
    if not path.exists():
        return {"kind": "failed", "why": f"left no {path.name}; were its files edited meanwhile?"}, None
    try:
        return event, read_json(path)
    except HoldfastError as error:
        return {"kind": "failed", "why": str(error)}, None


def _absolute(path: Path | None) -> str | None:
    """A worker may be at home in another folder."""
    return None if path is None else str(path.resolve())


def _keep_manifest(suite: Suite, out: Path) -> None:
    """Note which runs there should be, beside those that were asked for under this name before."""
    path, manifest = out / f"{suite.name}.suite.json", suite.manifest()
    with locked(_manifests(out), patience=10.0):  # others may be at the same suite
        if path.exists():
            with suppress(HoldfastError, KeyError, TypeError):
                # The same run under another digest is of a user's files as they were before.
                asked = [run["spec"] for run in manifest["runs"]]
                before = [run for run in read_json(path)["runs"] if run["spec"] not in asked]
                # What a suite no longer names, and nobody has made, is not wanted any more.
                manifest["runs"] += [
                    run for run in before if suite.narrowed or (out / f"{run['digest']}.json").exists()
                ]
        write_json(path, manifest)


def check_data(suite: Suite, data_dir: Path | None) -> None:
    """Read every stream once, and the names of models: what is missing is said before hours of work."""
    for model in {spec.model for spec in suite.specs}:
        check_model_name(model)
    for spec in {_read_by(spec): spec for spec in suite.specs}.values():
        stream = spec.load_stream(data_dir)
        if spec.tasks is not None and spec.tasks > len(stream):
            raise HoldfastError(f"{spec.stream} has {len(stream)} tasks, not {spec.tasks}")


def _read_by(spec: Spec) -> tuple[Any, ...]:
    """What decides how its stream is read."""
    settings = spec.settings()
    return spec.stream, spec.order, spec.tasks, settings.text_column, settings.label_column


def _sort_out(
    runs: Sequence[tuple[Spec, Path]], failures: list[Failure]
) -> tuple[list[tuple[Spec, Path]], list[dict[str, Any]]]:
    """The runs to make, and the records that are there; what is neither is a failure."""
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

"""Runs for a report: grouped by suite and by the setting that makes them comparable."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.bench.records import WRONG, NotARecord, Record, check_record, spec_of
from holdfast.bench.spec import BEFORE, NAMED, Spec
from holdfast.data import STREAMS
from holdfast.errors import HoldfastError
from holdfast.maths import metrics
from holdfast.methods import METHODS
from holdfast.methods.search import THRESHOLDS
from holdfast.storage.files import read_json

METRICS = {"Ov": "↑", "CF": "↓", "BWT+": "↑", "FWT": "↑"}
REPEATED = ("method", "set", "order", "seed")
"""Spec fields that are not part of a setting; of `set`, only the method's own hyper-parameters are not."""


@dataclass(frozen=True)
class Run:
    """One run: its digest, its spec and, if it is finished, its record."""

    digest: str
    spec: dict[str, Any]
    record: Record | None = None

    @property
    def method(self) -> str:
        """Name of the method."""
        return str(self.spec["method"])

    @cached_property
    def own(self) -> dict[str, Any]:
        """Hyper-parameters of the method that were set."""
        own = METHODS[self.method].hyper_parameters()
        return {name: value for name, value in self.spec["set"].items() if name in own}

    @property
    def label(self) -> str:
        """The method and the hyper-parameters that were set, even to defaults; a set value is not tuned."""
        return self.label_without("")

    def label_without(self, field: str) -> str:
        """Return the label without one field, for a table with a column for it."""
        values = ", ".join(f"{name} {value}" for name, value in self.own.items() if name != field)
        return f"{self.method} ({values})" if values else self.method

    @cached_property
    def setting(self) -> dict[str, Any]:
        """Fields that compared runs must share.

        The spec without method, hyper-parameters, order and seed, plus the tasks if the order names them.
        """
        shared = {name: value for name, value in self.spec.items() if name not in REPEATED}
        order, _ = self.where
        if not order.isdigit():
            shared["tasks"] = ", ".join(sorted(order.split(",")))
        rest = {name: value for name, value in self.spec["set"].items() if name not in self.own}
        return shared | BEFORE | rest

    @property
    def where(self) -> tuple[str, int]:
        """Order and seed."""
        return str(self.spec["order"] or "1"), int(self.spec["seed"])

    @property
    def share(self) -> float | None:
        """thr, the share of the gold score that the search must keep; None if unknown."""
        stream = STREAMS.get(str(self.spec["stream"]))
        scenario = stream.scenario if stream else (self.record or {}).get("scenario")
        usual = next((thr for known, thr in THRESHOLDS.items() if known == scenario), None)
        found: float | None = self.own.get("thr", usual)
        return found

    @property
    def matrix(self) -> metrics.Matrix:
        """The score matrix F on test sentences; empty without a record."""
        return self.record["scores"]["test"] if self.record else []

    def after(self, tasks: int) -> metrics.Matrix:
        """Return F after the first `tasks` tasks."""
        return [list(row[:tasks]) for row in self.matrix[:tasks]]

    @property
    def sentences(self) -> list[int]:
        """Number of test sentences of each task; empty if the record does not tell."""
        found = (self.record or {}).get("predictions") or []
        return [len(own) for own in found] if len(found) == len(self.matrix) and all(found) else []

    @property
    def joint(self) -> bool:
        """Whether all tasks were learnt at once; then F has only its last row."""
        return any(row[0] is None for row in self.matrix)


@dataclass(frozen=True)
class Section:
    """The runs of a suite with the same setting, and the view that shows them."""

    view: str
    title: str
    about: str
    runs: list[Run] = field(default_factory=list)
    around: list[Run] = field(default_factory=list, repr=False)
    """All runs with a record in the folder: the `seq` run may belong to another suite, or to none."""

    @property
    def made(self) -> list[Run]:
        """Runs with a record."""
        return [run for run in self.runs if run.record is not None]

    @property
    def missing(self) -> list[Run]:
        """Runs without a record."""
        return [run for run in self.runs if run.record is None]

    def by_label(self) -> dict[str, list[Run]]:
        """Return the runs by label, in the order of the method registry."""
        order = list(METHODS)
        found: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (order.index(run.method), run.where)):
            found.setdefault(run.label, []).append(run)
        return found

    def naive(self, run: Run) -> Run | None:
        """Return the `seq` run that FWT is relative to: the only one with the same order, seed and data.

        Runs of this section are preferred, then those without own hyper-parameters. None if none or several
        are left.
        """
        alike = (one for one in self.around if one.setting == run.setting)
        beside = [other for other in self.made if other.method == "seq" and other.where == run.where]
        beside = beside or [other for other in alike if other.method == "seq" and other.where == run.where]
        beside = [other for other in beside if not other.own] or beside
        if len(beside) != 1 or run.record is None or beside[0].record is None:
            return None
        # The data may have changed between the two runs.
        same = all(one == two for one, two in zip(_data(beside[0]), _data(run), strict=True) if one and two)
        return beside[0] if same else None

    def references(self, methods: Sequence[str]) -> list[Run]:
        """Return runs of methods that this section lacks, on its sentences and orders, in another setting.

        Only runs without own hyper-parameters count.
        """
        have = {run.method for run in self.made}
        known = {(run.where, _sentences(run)) for run in self.made}
        return [
            run
            for run in self.around
            if run.method in methods
            and run.method not in have
            and not run.own
            and run.record is not None
            and (run.where, _sentences(run)) in known
        ]

    def metric(self, run: Run, name: str, tasks: int | None = None) -> float | None:
        """Return a metric of a run after `tasks` tasks (default all); None if it is unknown."""
        if run.record is None:
            return None
        F = run.after(tasks or len(run.matrix))
        if name == "Ov":
            return metrics.overall(F)
        if run.joint:
            return None
        if name == "FWT":
            naive = None if run.method == "seq" else self.naive(run)
            return None if naive is None else metrics.forward_transfer(F, naive.after(len(F)))
        return {"CF": metrics.forgetting, "BWT+": metrics.positive_backward_transfer}[name](F)


def load_sections(directory: Path, *, alone: bool = True) -> tuple[list[Section], list[str]]:
    """Return the sections of a folder, suite by suite, and complaints about its files.

    Records that name a study are no runs and skipped. A folder without runs is an error, if runs are `alone`.
    """
    if not directory.is_dir():
        raise HoldfastError(f"{directory} is not a folder; give a folder of records")
    runs: dict[str, Run] = {}
    suites: list[Section] = []
    complaints: list[str] = []
    for path in sorted(directory.glob("*.json")):
        try:
            content = read_json(path)
            if path.name.endswith(".suite.json"):
                suites.append(_manifest(path, content, complaints))
            elif not (isinstance(content, dict) and isinstance(content.get("study"), str)):
                runs[path.stem] = Run(path.stem, check_record(content).to_json(), content)
        except NotARecord as error:
            complaints.append(f"{path} left out: {error}")
        except HoldfastError:
            complaints.append(f"{path} left out: not readable JSON")
    if not runs and not suites and alone:
        raise HoldfastError(f"{directory} holds no records; make some with `holdfast run --out {directory}`")
    # Records of earlier versions of the user's files have the same spec. Keep one: preferably one that a
    # suite lists, then one named by its digest, then the newest.
    asked = {run.digest for suite in suites for run in suite.runs}
    first: dict[str, str] = {}
    for digest in sorted(runs, key=lambda one: (one not in asked, *_newest_first(directory, runs[one]))):
        same = json.dumps(runs[digest].spec, sort_keys=True)
        if first.setdefault(same, digest) != digest:
            complaints.append(f"{directory / digest}.json left out: the same run as {first[same]}.json")
            del runs[digest]
    sections: list[Section] = []
    told: set[str] = set()
    for suite in suites:
        # The user's files may have moved: the manifest has their current path.
        members = [replace(runs.get(run.digest, run), spec=run.spec) for run in suite.runs]
        sections += _split(replace(suite, runs=members))
        told |= {run.digest for run in suite.runs}
    rest = [run for digest, run in runs.items() if digest not in told]
    sections += _split(Section("main", "", "", rest))
    for section in sections:
        known = {(run.where[0], one) for run in section.made if (one := _data(run)[1])}
        if len(known) > len({order for order, _ in known}):
            complaints.append(f"{section.title}: runs of the same order used different sentences")
    return [replace(section, around=list(runs.values())) for section in sections], complaints


def _data(run: Run) -> tuple[Any, Any]:
    """Return the task names and the data hash of a run; older records have no hash."""
    record = run.record or {}
    return record.get("tasks"), record.get("data")


def _sentences(run: Run) -> str:
    """Return what decides which sentences a run learns and is tested on, as text."""
    named = ("stream", "preset", "model", "per_class", "tasks")
    caps = {name: value for name, value in run.spec["set"].items() if name.endswith("_per_class")}
    tested = (run.record or {}).get("tasks")
    return json.dumps([{name: run.spec.get(name) for name in named}, caps, tested], sort_keys=True)


def _newest_first(directory: Path, run: Run) -> tuple[bool, float]:
    """Return a sort key: records named by the digest of their spec come first, then newer files."""
    named = run.spec["stream"] in STREAMS and Spec.from_json(run.spec).digest() == run.digest
    return not named, -(directory / f"{run.digest}.json").stat().st_mtime


def _manifest(path: Path, content: Any, complaints: list[str]) -> Section:
    """Return the planned runs of a suite's manifest, or raise `NotARecord`."""
    planned = []
    try:
        view, name, about = (content[key] for key in ("view", "suite", "about"))
        for number, run in enumerate(content["runs"], start=1):
            try:
                planned.append(Run(str(run["digest"]), spec_of(run["spec"]).to_json()))
            except NotARecord as error:
                complaints.append(f"{path}: run {number} left out: {error}")
    except WRONG as error:
        raise NotARecord(f"not a list of runs ({error})") from None
    if not all(isinstance(text, str) for text in (view, name, about)):
        raise NotARecord("not a list of runs (a name is not text)")
    return Section(view, name, about, planned)


def _split(suite: Section) -> list[Section]:
    """Return one section for each setting of a suite's runs."""
    groups: dict[str, list[Run]] = {}
    for run in suite.runs:
        groups.setdefault(json.dumps(run.setting, sort_keys=True), []).append(run)
    sections = []
    for group in groups.values():
        title = ", ".join(filter(None, [suite.title, _words(group[0])]))
        sections.append(replace(suite, title=title, runs=group))
    return sections


def _words(run: Run) -> str:
    """Return the setting of a run in a few words."""
    setting = dict(run.setting)
    words = [str(setting.pop("stream")), f"preset {setting.pop('preset')}"]
    if setting.get("head") == "preallocated" and setting.get("logits") == "all":
        del setting["head"], setting["logits"]
        words.append("printed setting")
    usual = {"model": "minilm", "threads": 1, "per_class": None} | NAMED
    left = {name: value for name, value in setting.items() if usual.get(name, ...) != value}
    return ", ".join(words + [f"{name} {'none' if value is None else value}" for name, value in left.items()])

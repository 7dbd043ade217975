"""Records as a report sees them: runs, the settings that make them comparable, and the suites they are of."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast.bench.records import WRONG, NotARecord, Record, check_record, spec_of
from holdfast.bench.spec import Spec
from holdfast.data import STREAMS
from holdfast.errors import HoldfastError
from holdfast.maths import metrics
from holdfast.methods import METHODS
from holdfast.methods.search import THRESHOLDS
from holdfast.storage.files import read_json

METRICS = {"Ov": "↑", "CF": "↓", "BWT+": "↑", "FWT": "↑"}
REPEATED = ("method", "set", "order", "seed")
"""What may differ between runs of one setting: methods are compared, orders and seeds averaged over."""


@dataclass(frozen=True)
class Run:
    """One run as its spec tells it; its record, if there is one yet."""

    digest: str
    spec: dict[str, Any]
    record: Record | None = None

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.spec["method"])

    @cached_property
    def own(self) -> dict[str, Any]:
        """What was set of the method itself."""
        own = METHODS[self.method].hyper_parameters()
        return {name: value for name, value in self.spec["set"].items() if name in own}

    @property
    def label(self) -> str:
        """The method and what was set of it: what is set is not searched, so that even a default counts."""
        return self.label_without("")

    def label_without(self, field: str) -> str:
        """The same but for one field, which a table has a column for."""
        values = ", ".join(f"{name} {value}" for name, value in self.own.items() if name != field)
        return f"{self.method} ({values})" if values else self.method

    @cached_property
    def setting(self) -> dict[str, Any]:
        """What compared runs must share: all of the spec but method, order, seed; and the tasks learnt."""
        shared = {name: value for name, value in self.spec.items() if name not in REPEATED}
        order, _ = self.where
        if not order.isdigit():  # tasks by name, and perhaps not all of them
            shared["tasks"] = ", ".join(sorted(order.split(",")))
        return shared | {name: value for name, value in self.spec["set"].items() if name not in self.own}

    @property
    def where(self) -> tuple[str, int]:
        """Order and seed."""
        return str(self.spec["order"] or "1"), int(self.spec["seed"])

    @property
    def share(self) -> float | None:
        """thr: the share of the gold score that its search keeps; None where the record does not tell."""
        stream = STREAMS.get(str(self.spec["stream"]))
        scenario = stream.scenario if stream else (self.record or {}).get("scenario")
        usual = next((thr for known, thr in THRESHOLDS.items() if known == scenario), None)
        found: float | None = self.own.get("thr", usual)
        return found

    @property
    def matrix(self) -> metrics.Matrix:
        """F on test sentences."""
        return self.record["scores"]["test"] if self.record else []

    def after(self, tasks: int) -> metrics.Matrix:
        """F of the first tasks only: what it was when they were learnt."""
        return [list(row[:tasks]) for row in self.matrix[:tasks]]

    @property
    def joint(self) -> bool:
        """Whether all tasks were learnt at once: then only the last row is there."""
        return any(row[0] is None for row in self.matrix)


@dataclass(frozen=True)
class Section:
    """Runs of one setting of a suite, and how they are to be shown."""

    view: str
    title: str
    about: str
    runs: list[Run] = field(default_factory=list)
    around: list[Run] = field(default_factory=list, repr=False)
    """All that the folder holds: `seq` may have been run with another suite, or by itself."""

    @property
    def made(self) -> list[Run]:
        """Those that have a record."""
        return [run for run in self.runs if run.record is not None]

    @property
    def missing(self) -> list[Run]:
        """Those that have none yet."""
        return [run for run in self.runs if run.record is None]

    def by_label(self) -> dict[str, list[Run]]:
        """The runs of each method, in the order of the registry."""
        order = list(METHODS)
        found: dict[str, list[Run]] = {}
        for run in sorted(self.runs, key=lambda run: (order.index(run.method), run.where)):
            found.setdefault(run.label, []).append(run)
        return found

    def naive(self, run: Run) -> Run | None:
        """The `seq` run that forward transfer is measured against: the plain one, or the only one."""
        alike = (one for one in self.around if one.setting == run.setting)
        beside = [other for other in self.made if other.method == "seq" and other.where == run.where]
        beside = beside or [other for other in alike if other.method == "seq" and other.where == run.where]
        beside = [other for other in beside if not other.own] or beside
        if len(beside) != 1 or run.record is None or beside[0].record is None:
            return None
        # Data may have changed between the two.
        same = all(one == two for one, two in zip(_data(beside[0]), _data(run), strict=True) if one and two)
        return beside[0] if same else None

    def metric(self, run: Run, name: str, tasks: int | None = None) -> float | None:
        """A metric of a run, after so many tasks; None where it cannot be told."""
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


def load_sections(directory: Path) -> tuple[list[Section], list[str]]:
    """What a folder holds, suite by suite, and a line for each file that is not what it should be."""
    if not directory.is_dir():
        raise HoldfastError(f"{directory} is not a folder")
    runs: dict[str, Run] = {}
    suites: list[Section] = []
    complaints: list[str] = []
    for path in sorted(directory.glob("*.json")):
        try:
            content = read_json(path)
            if path.name.endswith(".suite.json"):
                suites.append(_manifest(path, content, complaints))
            else:
                runs[path.stem] = Run(path.stem, check_record(content).to_json(), content)
        except NotARecord as error:
            complaints.append(f"{path} left out: {error}")
        except HoldfastError:
            complaints.append(f"{path} left out: not readable JSON")
    if not runs and not suites:
        raise HoldfastError(f"{directory} holds no records; make some with `holdfast run --out {directory}`")
    # Records of a user's files as they were before have the same spec: what was asked for last counts.
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
        # A user's files may have moved since: where they are now is in the plan.
        members = [replace(runs.get(run.digest, run), spec=run.spec) for run in suite.runs]
        sections += _split(replace(suite, runs=members))
        told |= {run.digest for run in suite.runs}
    rest = [run for digest, run in runs.items() if digest not in told]
    sections += _split(Section("main", "", "", rest))
    for section in sections:
        known = {(run.where[0], one) for run in section.made if (one := _data(run)[1])}
        if len(known) > len({order for order, _ in known}):
            complaints.append(f"{section.title}: runs of one order are of different sentences")
    return [replace(section, around=list(runs.values())) for section in sections], complaints


def _data(run: Run) -> tuple[Any, Any]:
    """What tells one content of a stream from another; the second not in older records."""
    record = run.record or {}
    return record.get("tasks"), record.get("data")


def _newest_first(directory: Path, run: Run) -> tuple[bool, float]:
    """What bears the name of its spec goes before a copy; where files name it, the newest."""
    named = run.spec["stream"] in STREAMS and Spec.from_json(run.spec).digest() == run.digest
    return not named, -(directory / f"{run.digest}.json").stat().st_mtime


def _manifest(path: Path, content: Any, complaints: list[str]) -> Section:
    """What a suite has planned, if that is what it is."""
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
    """A section for each setting that the runs of a suite have."""
    groups: dict[str, list[Run]] = {}
    for run in suite.runs:
        groups.setdefault(json.dumps(run.setting, sort_keys=True), []).append(run)
    sections = []
    for group in groups.values():
        title = ", ".join(filter(None, [suite.title, _words(group[0])]))
        sections.append(replace(suite, title=title, runs=group))
    return sections


def _words(run: Run) -> str:
    """The setting of a run in a few words."""
    setting = dict(run.setting)
    words = [str(setting.pop("stream")), f"preset {setting.pop('preset')}"]
    if setting.get("head") == "preallocated" and setting.get("logits") == "all":
        del setting["head"], setting["logits"]
        words.append("printed setting")
    usual = {"model": "minilm", "threads": 1, "per_class": None}
    left = {name: value for name, value in setting.items() if usual.get(name, ...) != value}
    return ", ".join(words + [f"{name} {'none' if value is None else value}" for name, value in left.items()])

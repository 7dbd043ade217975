"""Records as a report sees them: runs, the settings that make them comparable, and the suites they are of."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from holdfast import metrics
from holdfast.bench.spec import Spec
from holdfast.data import STREAMS
from holdfast.errors import HoldfastError
from holdfast.files import read_json
from holdfast.methods import METHODS
from holdfast.methods.strength import THRESHOLDS

Record = dict[str, Any]
METRICS = {"Ov": "↑", "CF": "↓", "BWT+": "↑", "FWT": "↑"}
KNOBS = ("lr", "lam", "lam_a", "down", "up")
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
        usual = None if stream is None else THRESHOLDS[stream.scenario]
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
        beside = [other for other in self.made if other.method == "seq" and other.where == run.where]
        beside = [other for other in beside if not other.own] or beside
        if len(beside) != 1 or run.record is None or beside[0].record is None:
            return None
        # A user's own files may have changed between the two.
        return beside[0] if beside[0].record["tasks"] == run.record["tasks"] else None

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
        return metrics.forgetting(F) if name == "CF" else metrics.positive_backward_transfer(F)


def load_sections(directory: Path) -> tuple[list[Section], list[str]]:
    """What a folder holds, suite by suite, and a line for each file that is not what it should be."""
    if not directory.is_dir():
        raise HoldfastError(f"{directory} is not a folder")
    runs: dict[str, Run] = {}
    suites: list[dict[str, Any]] = []
    complaints: list[str] = []
    for path in sorted(directory.glob("*.json")):
        try:
            content = read_json(path)
            if path.name.endswith(".suite.json"):
                suites.append({key: content[key] for key in ("suite", "about", "view", "runs")})
            else:
                runs[path.stem] = _run(path, content)
        except (HoldfastError, KeyError, TypeError, AttributeError, ValueError) as error:
            why = "not readable JSON" if isinstance(error, HoldfastError) else "not a record of Holdfast"
            complaints.append(f"{path} left out: {why}")
    if not runs and not suites:
        raise HoldfastError(f"{directory} holds no records; make some with `holdfast run --out {directory}`")
    # Records of a user's files as they were before have the same spec: what was asked for last counts.
    asked = {str(run.get("digest")) for suite in suites for run in suite["runs"] if isinstance(run, dict)}
    first: dict[str, str] = {}
    for digest in sorted(runs, key=lambda one: (one not in asked, *_newest_first(directory, runs[one]))):
        same = json.dumps(runs[digest].spec, sort_keys=True)
        if first.setdefault(same, digest) != digest:
            complaints.append(f"{directory / digest}.json left out: the same run as {first[same]}.json")
            del runs[digest]
    sections: list[Section] = []
    told: set[str] = set()
    for suite in suites:
        try:
            planned = [_planned(run["digest"], run["spec"]) for run in suite["runs"]]
            # A user's files may have moved since: where they are now is in the plan.
            members = [replace(runs.get(run.digest, run), spec=run.spec) for run in planned]
            sections += _split(suite["view"], suite["suite"], suite["about"], members)
        except (HoldfastError, KeyError, TypeError, AttributeError, ValueError):
            complaints.append(f"{suite['suite']}.suite.json left out: not a list of runs")
            continue
        told |= {run.digest for run in planned}
    sections += _split("main", "", "", [run for digest, run in runs.items() if digest not in told])
    return sections, complaints


def _newest_first(directory: Path, run: Run) -> tuple[bool, float]:
    """What bears the name of its spec goes before a copy; where files name it, the newest."""
    named = run.spec["stream"] in STREAMS and Spec.from_json(run.spec).digest() == run.digest
    return not named, -(directory / f"{run.digest}.json").stat().st_mtime


def _run(path: Path, content: Any) -> Run:
    """The run of a record, if it is one: whole, and of one piece."""
    F, tasks, trials = content["scores"]["test"], content["tasks"], content["trials"]
    _check_types(content)
    joint = all(cell is None for row in F[:-1] for cell in row)
    for k, row in enumerate(F):
        known = [cell is not None for cell in row]
        expected = [i <= k for i in range(len(F))] if k == len(F) - 1 or not joint else [False] * len(F)
        if known != expected:
            raise ValueError(f"row {k + 1} of the score matrix")
    if (
        not F
        or len(tasks) != len(F)
        or len(trials) != len(content["chosen"])
        or len(trials) not in (1, len(F))
    ):
        raise ValueError("tasks and scores do not fit")
    return replace(_planned(path.stem, content["spec"]), record=content)


def _check_types(content: dict[str, Any]) -> None:
    """What the tables and figures read is what it should be: a record may have been edited by hand."""
    numbers = [content["seconds"], content["peak_memory"]]
    numbers += [cell for row in content["scores"]["test"] for cell in row if cell is not None]
    numbers += [n for phase in content["passes"]["chosen"].values() for n in phase.values()]
    texts = [*content["tasks"]]
    choices: list[dict[str, Any]] = []
    for lesson in content["trials"]:
        texts.append(lesson["task"])
        for trial in lesson["trials"]:
            choices.append(trial["choice"])
            numbers += [] if trial["score"] is None else [trial["score"]]
    for one in content["chosen"]:
        texts += [one["task"], *one.get("flags", ())]
        choices.append(one)
        numbers += [] if one["score"] is None else [one["score"]]
        for tensor in (one.get("spread") or {}).values():
            numbers += [*tensor["bins"], tensor["mean"], tensor["tau"]]
    for choice in choices:
        known = (choice.get(name) for name in KNOBS)
        numbers += [value for value in known if value is not None and value != "inf"]
    if not all(isinstance(n, int | float) and not isinstance(n, bool) and math.isfinite(n) for n in numbers):
        raise TypeError("a number is none")
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("a name is none")


def _planned(digest: str, spec: dict[str, Any]) -> Run:
    """A run as its spec tells it, if that is one."""
    run = Run(digest, Spec.from_json(spec).to_json())
    kinds = {"set": dict, "seed": int, "stream": str, "preset": str, "order": str | None}
    if run.method not in METHODS or not all(isinstance(run.spec[name], kinds[name]) for name in kinds):
        raise ValueError(run.method)
    return run


def _split(view: str, name: str, about: str, runs: Sequence[Run]) -> list[Section]:
    """A section for each setting that the runs of a suite have."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(run.setting, sort_keys=True), []).append(run)
    sections = []
    for group in groups.values():
        title = ", ".join(filter(None, [name, _words(group[0])]))
        sections.append(Section(view, title, about, group))
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

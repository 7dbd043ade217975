"""Runs the study: a training is one JSON record, named by a hash of its spec; none is made twice."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.bench.records import Record
from holdfast.bench.spec import digest_of
from holdfast.lm.artefact import PARTIAL, Importance, measure
from holdfast.lm.baselines import flow_weights, wise_ft
from holdfast.lm.evaluate import output_loss
from holdfast.lm.finetune import Collapsed, Recipe, finetune
from holdfast.lm.protect import Protect
from holdfast.lm.text import Sequences
from holdfast.lm.weighing import relatively
from holdfast.maths.equations import merge
from holdfast.maths.params import Params, kind_of, layer_of, restore, snapshot, trainable
from holdfast.storage.files import Busy, locked, read_json, write_json
from holdfast.storage.generations import read_tensors, write_tensors
from holdfast.studies.lm_plan import LMSpec, StudyPlan, follow

Told = Callable[[str], None]
LOST = "collapsed.json"
PAUSE = 5.0  # seconds between looks at what other processes have made
COLLAPSED = 99.0  # the loss that is noted of a model whose loss is no number any more


@dataclass(frozen=True)
class Ability:
    """Something a model can do or shall learn, as sequences of its three parts."""

    name: str
    train: Sequences
    valid: Sequences
    test: Sequences


@dataclass(frozen=True)
class Size:
    """How much of everything; part of every spec."""

    steps: int = 60
    batch: int = 4
    max_tokens: int = 160
    items: int = 60
    """Items of each ability for its loss, and sequences for an importance."""


class Study:
    """A model, an old and a new ability, and a folder of records."""

    def __init__(
        self,
        load: Callable[[torch.dtype], nn.Module],
        name: str,
        pad: int,
        old: Ability,
        new: Ability,
        out: Path,
        size: Size,
        told: Told = lambda line: None,
    ) -> None:
        self.load, self.name, self.pad = load, name, pad
        self.old, self.new, self.out, self.size, self.told = old, new, out, size, told
        # What trainings share belongs to a model, two abilities and a size.
        self.about = {"model": name, "old": old.name, "new": new.name, **asdict(size)}
        parts = {one.name: [part.digest() for part in (one.train, one.valid, one.test)] for one in (old, new)}
        self.about |= {"tokens": parts, "threads": torch.get_num_threads()}
        self.work = out / ".trials" / digest_of(self.about)

    def run(self, plan: StudyPlan) -> dict[str, Any]:
        """Follow a plan to its end; what it chose. Several processes may: each takes what nobody is at."""
        return follow(plan, self.records) or {}

    def records(self, trials: Sequence[LMSpec]) -> list[Record]:
        """The records of some trainings, by this process or by others."""
        pace = Pace(self.told)
        while left := [trial for trial in trials if not self.path(trial).exists()]:
            before = len(left)
            for number, trial in enumerate(left):
                try:
                    with locked(self.work / self.path(trial).stem):
                        if not self.path(trial).exists():
                            with pace.of(trial, len(trials) - before + number, len(trials)):
                                self.record(trial)
                except Busy:
                    continue
            if all(not self.path(trial).exists() for trial in left):
                time.sleep(PAUSE)  # others are at all of them
        return [read_json(self.path(trial)) for trial in trials]

    def record(self, trial: LMSpec) -> None:
        """Make the record of a training."""
        began = time.monotonic()
        try:
            found = self.train(trial)
        except Collapsed as error:  # that it did is the result
            lost = {"loss": COLLAPSED, "accuracy": 0.0, "tokens": 0}
            found = {ability: {"valid": lost, "test": lost} for ability in ("old", "new")}
            found["collapsed"] = str(error)
        seconds = round(time.monotonic() - began, 1)
        write_json(self.path(trial), {"spec": self.spec(trial), **found, "seconds": seconds})

    def path(self, trial: LMSpec) -> Path:
        """Where the record of a training is, or is going to be."""
        return self.out / f"{digest_of(self.spec(trial))}.json"

    def spec(self, trial: LMSpec) -> dict[str, Any]:
        """Everything that decides a record."""
        return {**self.about, **trial.spec()}

    # ---- one training -------------------------------------------------------------------------------------

    def train(self, trial: LMSpec) -> Record:
        """Train and test."""
        self.prepare(trial)
        model = self.load(getattr(torch, trial.dtype))
        start = snapshot(model)
        if trial.kind == "naive":
            restore(model, self.naive(trial))
        elif trial.kind == "wise":
            restore(model, wise_ft(start, self.naive(trial), trial.strength))
        elif trial.kind == "la-merge":
            past, new = self.importance(trial).values, self.ahead(trial).values
            restore(model, merge(start, self.naive(trial), past, new, trial.strength))
        elif trial.kind != "untouched":
            self.tune(model, trial)
        record: Record = {"old": self.losses(model, self.old), "new": self.losses(model, self.new)}
        record["moved"] = _distance(start, model)
        if _correlates(trial):
            record["correlation"] = correlation(start, snapshot(model), self.ahead(trial).values)
        return record

    def prepare(self, trial: LMSpec) -> None:
        """Make what a training needs of others, or find another process at it, before anything is spent."""
        if trial.kind in ("naive", "wise", "la-merge", "la"):
            self.naive(trial)
        if trial.kind in ("la-merge", "la", "mas"):
            self.importance(trial)
        if trial.kind in ("la-merge", "la") or _correlates(trial):
            self.ahead(trial)

    def tune(self, model: nn.Module, trial: LMSpec) -> None:
        """Fine-tune as the trial says."""
        recipe = Recipe(
            trial.lr, steps=self.size.steps, batch=self.size.batch, clip=trial.clip, seed=trial.seed
        )
        seen = self.new.train.first(self.size.steps * self.size.batch)  # one epoch of what is seen at all
        weights = flow_weights(model, seen, self.pad, trial.strength) if trial.kind == "flow" else None
        finetune(
            model, seen, self.pad, recipe, self.work / "trainer",
            protect=self.protection(model, trial), weights=weights,
            on_step=lambda step, steps, loss: self.told(f"  step {step}/{steps} loss {loss:.3f}"),
        )  # fmt: skip

    def protection(self, model: nn.Module, trial: LMSpec) -> Protect | None:
        """What holds the old ability, if anything does."""
        if trial.kind == "l2":
            return Protect(model, Importance.equal(model), trial.strength)
        if trial.kind == "la":
            past = self.importance(trial)
            weights = relatively(past.values, self.ahead(trial).values, lam=trial.strength)
            return Protect(model, Importance(weights, past.card), trial.strength, normalise="none", cap=None)
        if trial.kind != "mas":
            return None
        cap = None if trial.normalise == "none" else 1e4
        found = self.importance(trial)
        return Protect(model, found, trial.strength, mode=trial.mode, normalise=trial.normalise, cap=cap)

    def losses(self, model: nn.Module, ability: Ability) -> dict[str, Any]:
        """On validation items, by which things are chosen, and on test items, by which nothing is."""
        parts = {"valid": ability.valid, "test": ability.test}
        found = {
            part: asdict(output_loss(model, items.first(self.size.items), self.pad))
            for part, items in parts.items()
        }
        for one in found.values():
            one["loss"] = one["loss"] if math.isfinite(one["loss"]) else COLLAPSED
        return found

    # ---- what several trainings share ---------------------------------------------------------------------

    def importance(self, trial: LMSpec) -> Importance:
        """Of the untouched model for the old ability."""
        place = self.work / f"importance{'-squared' if trial.squared else ''}"
        return self._measured(place, self.old, squared=trial.squared)

    def ahead(self, trial: LMSpec) -> Importance:
        """Of what plain fine-tuning comes to, for the new ability."""
        place = self.work / f"ahead-{_plain_name(trial)}"
        return self._measured(place, self.new, at=self.naive(trial))

    def naive(self, trial: LMSpec) -> Params:
        """The weights after plain fine-tuning at the trial's rate, with its seed."""
        place = self.work / f"naive-{_plain_name(trial)}"
        path = place / "weights.safetensors"
        if path.exists():
            return read_tensors(path)[0]["weights"]
        with locked(place):  # where another process is just training it, this one has other things to do
            if (place / LOST).exists():
                raise Collapsed(read_json(place / LOST))
            if not path.exists():
                plain = LMSpec("naive", trial.lr, seed=trial.seed, clip=trial.clip, dtype=trial.dtype)
                model = self.load(getattr(torch, trial.dtype))
                try:
                    self.tune(model, plain)
                except Collapsed as error:
                    write_json(place / LOST, f"plain fine-tuning, which it starts from: {error}")
                    raise
                write_tensors(path, {"weights": snapshot(model)}, None)
        return read_tensors(path)[0]["weights"]

    def _measured(
        self, place: Path, ability: Ability, *, squared: bool = False, at: Params | None = None
    ) -> Importance:
        if (place / "importance.safetensors").exists() and not (place / PARTIAL).exists():
            return Importance.load(place)
        with locked(place):
            if not (place / "importance.safetensors").exists():
                model = self.load(torch.float32)
                if at is not None:
                    restore(model, at)
                self.told(f"  importance for {ability.name}")
                some = ability.train.first(self.size.items)
                measure(model, some, name=self.name, data=ability.name, squared=squared, directory=place)
        return Importance.load(place)


def _correlates(trial: LMSpec) -> bool:
    """Whether it is one of those of which it is told how weights moved."""
    return trial.kind == "naive" and (trial.clip, trial.dtype) == (1.0, "float32")


def correlation(start: Params, end: Params, importance: Params) -> dict[str, Any]:
    """Between |θ_ft - θ_0| and the importance for what was learnt.

    In each layer; summed up over the layers; and for each kind of weight, over the tensors of that kind.
    """
    layers: dict[str, list[tuple[Tensor, Tensor]]] = {}
    kinds: dict[str, list[float]] = {}
    for name, value in importance.items():
        pair = (end[name] - start[name]).abs().flatten().float(), value.flatten().float()
        layers.setdefault(layer_of(name), []).append(pair)
        kinds.setdefault(kind_of(name), []).append(_pearson([pair]))
    found = {layer: _pearson(pairs) for layer, pairs in layers.items()}
    shown = {layer: value if math.isfinite(value) else None for layer, value in found.items()}
    each = {kind: _summary(values) for kind, values in kinds.items()}
    return {"layers": shown, "kinds": each, **_summary(list(found.values()))}


def _pearson(pairs: Sequence[tuple[Tensor, Tensor]]) -> float:
    moved, mattered = (torch.cat([pair[i] for pair in pairs]) for i in (0, 1))
    return float(torch.corrcoef(torch.stack([moved, mattered]))[0, 1])


def _summary(values: Sequence[float]) -> dict[str, float | None]:
    """Of those that are defined: a tensor that did not move at all has no correlation."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return dict.fromkeys(("min", "median", "mean", "max"))
    return {"min": min(known), "median": median(known), "mean": fmean(known), "max": max(known)}


class Pace:
    """Says what is trained, how much is left, and for how long if no other process helps."""

    def __init__(self, told: Told) -> None:
        self.told = told
        self.seconds: list[float] = []
        self.said: set[LMSpec] = set()

    @contextmanager
    def of(self, trial: LMSpec, done: int, total: int) -> Iterator[None]:
        """Around one training."""
        left = f", about {(total - done) * fmean(self.seconds) / 60:.0f} min left" if self.seconds else ""
        if trial not in self.said:  # otherwise what it needs is still being made by another process
            self.told(f"{trial.stage}: {words(trial)} ({done + 1} of {total}{left})")
        self.said.add(trial)
        began = time.monotonic()
        yield
        self.seconds.append(time.monotonic() - began)


def words(trial: LMSpec) -> str:
    """A training in a few words."""
    plain = asdict(LMSpec("naive"))
    changed = {name: value for name, value in trial.spec().items() if value != plain[name] and name != "kind"}
    return " ".join([trial.kind, *(f"{name} {value}" for name, value in changed.items())])


def _plain_name(trial: LMSpec) -> str:
    """What names the plain fine-tuning a training refers to."""
    half = "" if trial.dtype == "float32" else f"-{trial.dtype}"
    return f"{trial.lr:g}-{trial.seed}-{trial.clip:g}{half}"


def _distance(start: Params, model: nn.Module) -> float:
    total = sum(
        float((w.detach().cpu().float() - start[n].cpu().float()).square().sum())
        for n, w in trainable(model).items()
    )
    return float(total**0.5)


def records_of(out: Path, about: Mapping[str, Any] | None = None) -> list[Record]:
    """The records of a study's folder, each with the name of its file; only those whose spec says `about`."""
    found = []
    for path in sorted(out.glob("*.json")):
        record = read_json(path)
        spec = record.get("spec") if isinstance(record, dict) else None
        if isinstance(spec, dict) and all(spec.get(key) == value for key, value in (about or {}).items()):
            found.append({**record, "digest": path.stem})
    return found

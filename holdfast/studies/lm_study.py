"""Run the language model study. Each trial is one JSON record, named by the hash of its spec."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from torch import Tensor, nn

from holdfast.bench.bench import BoardMaker, Missing, make
from holdfast.bench.engine import Engine
from holdfast.bench.records import Record
from holdfast.bench.spec import digest_of
from holdfast.bench.worker import Job
from holdfast.errors import HoldfastError
from holdfast.events import Progress
from holdfast.lm.abilities import sequences_of
from holdfast.lm.artefact import PARTIAL, Importance, measure
from holdfast.lm.baselines import flow_weights, wise_ft
from holdfast.lm.evaluate import output_loss
from holdfast.lm.finetune import Collapsed, Recipe, finetune
from holdfast.lm.protect import Protect
from holdfast.lm.tasks import AbilityPart
from holdfast.lm.text import Sequences
from holdfast.lm.weighing import relatively
from holdfast.maths.equations import merge
from holdfast.maths.params import Params, kind_of, layer_of, restore, snapshot, trainable
from holdfast.models.sources import load_lm
from holdfast.storage.files import locked, read_json, write_json
from holdfast.storage.tensors import read_tensors, write_tensors
from holdfast.studies.lm_plan import LMSpec, StudyPlan, follow

LOST = "collapsed.json"
COLLAPSED = 99.0  # recorded instead of a NaN or infinite loss


@dataclass(frozen=True)
class Ability:
    """The training, validation and test sequences of an ability."""

    name: str
    train: Sequences
    valid: Sequences
    test: Sequences


@dataclass(frozen=True)
class Size:
    """Sizes of training and tests; part of every spec."""

    steps: int = 60
    batch: int = 4
    max_tokens: int = 160
    items: int = 60
    """Maximum number of sequences for each loss and each importance."""


class Study:
    """A study of one model with an old and a new ability, and its folder of records."""

    def __init__(
        self,
        load: Callable[[torch.dtype], nn.Module],
        name: str,
        pad: int,
        old: Ability,
        new: Ability,
        out: Path,
        size: Size,
        *,
        data_dir: Path | None = None,
        progress: Progress | None = None,
    ) -> None:
        self.load, self.name, self.pad = load, name, pad
        self.old, self.new, self.out, self.size = old, new, out, size
        self.data_dir, self.progress = data_dir, progress or Progress()
        self.about = {"model": name, "old": old.name, "new": new.name, **asdict(size)}
        parts = {one.name: [part.digest() for part in (one.train, one.valid, one.test)] for one in (old, new)}
        self.about |= {"tokens": parts, "threads": torch.get_num_threads()}
        self.work = out / ".trials" / digest_of(self.about)

    def run(self, plan: StudyPlan, engine: Engine, board: BoardMaker) -> dict[str, Any]:
        """Run a plan to its end with an engine; return its choices."""
        return follow(plan, lambda trials: self.records(trials, engine, board)) or {}

    def records(self, trials: Sequence[LMSpec], engine: Engine, board: BoardMaker) -> list[Record]:
        """Return the records of some trials; first run those that are missing."""
        first = {self.path(trial): trial for trial in reversed(trials)}
        missing = [Missing(t, self.job(t), path) for path, t in reversed(first.items()) if not path.exists()]
        if failures := make(missing, len(first), engine, board):
            why = f"{failures[0].spec.title}: {failures[0].why}"
            raise HoldfastError(
                f"{len(failures)} of {len(missing)} training runs failed (the first: {why}); "
                "run the same command to try again"
            )
        return [read_json(self.path(trial)) for trial in trials]

    def job(self, trial: LMSpec) -> Job:
        """Return the worker job of one trial."""
        data_dir = None if self.data_dir is None else str(self.data_dir.resolve())
        return Job(self.spec(trial), str(self.out), f"{__name__}:run_job", data_dir=data_dir)

    def record(self, trial: LMSpec) -> None:
        """Run a trial and write its record, unless the record exists."""
        with locked(self.work / self.path(trial).stem, patience=math.inf):
            if self.path(trial).exists():
                return
            began = time.monotonic()
            try:
                found = self.train(trial)
            except Collapsed as error:  # the collapse is the result
                lost = {"loss": COLLAPSED, "accuracy": 0.0, "tokens": 0}
                found = {ability: {"valid": lost, "test": lost} for ability in ("old", "new")}
                found["collapsed"] = str(error)
            seconds = round(time.monotonic() - began, 1)
            write_json(self.path(trial), {"spec": self.spec(trial), **found, "seconds": seconds})

    def path(self, trial: LMSpec) -> Path:
        """Return the path of a trial's record."""
        return self.out / f"{digest_of(self.spec(trial))}.json"

    def spec(self, trial: LMSpec) -> dict[str, Any]:
        """Return everything that determines a result."""
        return {**self.about, **trial.spec()}

    # ---- one trial ----------------------------------------------------------------------------------------

    def train(self, trial: LMSpec) -> Record:
        """Run a trial and return its results."""
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
        """Create the shared results that a trial needs, before its own model is loaded."""
        if trial.kind in ("naive", "wise", "la-merge", "la"):
            self.naive(trial)
        if trial.kind in ("la-merge", "la", "mas"):
            self.importance(trial)
        if trial.kind in ("la-merge", "la") or _correlates(trial):
            self.ahead(trial)

    def tune(self, model: nn.Module, trial: LMSpec) -> None:
        """Fine-tune the model in place with the settings of a trial."""
        recipe = Recipe(
            trial.lr, steps=self.size.steps, batch=self.size.batch, clip=trial.clip, seed=trial.seed
        )
        seen = self.new.train.first(self.size.steps * self.size.batch)  # one epoch if there is enough data
        weights = flow_weights(model, seen, self.pad, trial.strength) if trial.kind == "flow" else None
        finetune(
            model, seen, self.pad, recipe, self.work / "trainer",
            protect=self.protection(model, trial), weights=weights,
            on_step=lambda step, steps, loss: self.progress.looked(step, steps),
        )  # fmt: skip

    def protection(self, model: nn.Module, trial: LMSpec) -> Protect | None:
        """Return the protection of a trial, or None if it has none."""
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
        """Return the results on validation items, for choices, and on test items, for reports only."""
        parts = {"valid": ability.valid, "test": ability.test}
        found = {
            part: asdict(output_loss(model, items.first(self.size.items), self.pad))
            for part, items in parts.items()
        }
        for one in found.values():
            one["loss"] = one["loss"] if math.isfinite(one["loss"]) else COLLAPSED
        return found

    # ---- results shared by several trials -----------------------------------------------------------------

    def importance(self, trial: LMSpec) -> Importance:
        """Return the importance for the old ability, measured on the untouched model."""
        place = self.work / f"importance{'-squared' if trial.squared else ''}"
        return self._measured(place, self.old, squared=trial.squared)

    def ahead(self, trial: LMSpec) -> Importance:
        """Return the importance for the new ability, measured after plain fine-tuning."""
        place = self.work / f"ahead-{_plain_name(trial)}"
        return self._measured(place, self.new, at=self.naive(trial))

    def naive(self, trial: LMSpec) -> Params:
        """Return the weights after plain fine-tuning with the trial's rate, seed, clipping and dtype."""
        place = self.work / f"naive-{_plain_name(trial)}"
        path = place / "weights.safetensors"
        if path.exists():
            return read_tensors(path)[0]["weights"]
        with locked(place, patience=math.inf):  # another process may be training the same model
            if (place / LOST).exists():
                raise Collapsed(read_json(place / LOST))
            if not path.exists():
                plain = LMSpec("naive", trial.lr, seed=trial.seed, clip=trial.clip, dtype=trial.dtype)
                model = self.load(getattr(torch, trial.dtype))
                try:
                    self.tune(model, plain)
                except Collapsed as error:
                    write_json(place / LOST, f"plain fine-tuning failed: {error}")
                    raise
                write_tensors(path, {"weights": snapshot(model)}, None)
        return read_tensors(path)[0]["weights"]

    def _measured(
        self, place: Path, ability: Ability, *, squared: bool = False, at: Params | None = None
    ) -> Importance:
        if (place / "importance.safetensors").exists() and not (place / PARTIAL).exists():
            return Importance.load(place)
        with locked(place, patience=math.inf):
            if not (place / "importance.safetensors").exists():
                model = self.load(torch.float32)
                if at is not None:
                    restore(model, at)
                self.progress.note(f"importance for {ability.name}")
                some = ability.train.first(self.size.items)
                measure(model, some, name=self.name, data=ability.name, squared=squared, directory=place)
        return Importance.load(place)


def _correlates(trial: LMSpec) -> bool:
    """Return whether the correlation is recorded: for naive trials with default clipping and dtype."""
    return trial.kind == "naive" and (trial.clip, trial.dtype) == (1.0, "float32")


def correlation(start: Params, end: Params, importance: Params) -> dict[str, Any]:
    """Compute the correlation between |θ_ft - θ_0| and the importance for the new task.

    Return it for each layer, with summaries over the layers and over the tensors of each kind of weight.
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
    """Summarise the finite values; an unchanged tensor has no correlation."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return dict.fromkeys(("min", "median", "mean", "max"))
    return {"min": min(known), "median": median(known), "mean": fmean(known), "max": max(known)}


def named_study(
    model: str,
    old: str,
    new: str,
    out: Path,
    size: Size,
    data_dir: Path | None,
    progress: Progress | None = None,
) -> Study:
    """Create the study of a model and two abilities from their names."""
    tokenizer = load_lm(model, torch.float32)[1]

    def ability(name: str) -> Ability:
        parts: tuple[AbilityPart, ...] = ("train", "valid", "test")
        read = (sequences_of(name, part, tokenizer, size.max_tokens, data_dir, split=True) for part in parts)
        return Ability(name, *read)

    return Study(
        lambda dtype: load_lm(model, dtype)[0],
        model,
        tokenizer.pad_token_id,
        ability(old),
        ability(new),
        out,
        size,
        data_dir=data_dir,
        progress=progress,
    )


def run_job(job: Job, progress: Progress) -> None:
    """Run the trial of a worker job and write its record."""
    spec = job.spec
    size = Size(**{one.name: spec[one.name] for one in fields(Size)})
    data_dir = Path(job.data_dir) if job.data_dir else None
    study = named_study(spec["model"], spec["old"], spec["new"], Path(job.out), size, data_dir, progress)
    trial = LMSpec.of(spec)
    if study.spec(trial) != spec:
        raise HoldfastError("the data has changed since the study began; start the study again")
    study.record(trial)


def outcome(record: Record) -> str:
    """Return a short summary of a record: the test losses of both abilities."""
    return ", ".join(f"{ability} {record[ability]['test']['loss']:.3f}" for ability in ("old", "new"))


def _plain_name(trial: LMSpec) -> str:
    """Return a name for plain fine-tuning with a trial's rate, seed, clipping and dtype."""
    half = "" if trial.dtype == "float32" else f"-{trial.dtype}"
    return f"{trial.lr:g}-{trial.seed}-{trial.clip:g}{half}"


def _distance(start: Params, model: nn.Module) -> float:
    total = sum(
        float((w.detach().cpu().float() - start[n].cpu().float()).square().sum())
        for n, w in trainable(model).items()
    )
    return float(total**0.5)


def records_of(out: Path, about: Mapping[str, Any] | None = None) -> list[Record]:
    """Return the records of a folder whose specs contain `about`, each with its file stem as `digest`."""
    found = []
    for path in sorted(out.glob("*.json")):
        record = read_json(path)
        spec = record.get("spec") if isinstance(record, dict) else None
        if isinstance(spec, dict) and all(spec.get(key) == value for key, value in (about or {}).items()):
            found.append({**record, "digest": path.stem})
    return found

"""Runs the study: a training is one JSON record, named by a hash of its spec; none is made twice."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.files import locked, read_json, write_json
from holdfast.lm.artefact import Importance, measure
from holdfast.lm.baselines import flow_weights, la_merge, wise_ft
from holdfast.lm.evaluate import output_loss
from holdfast.lm.finetune import Collapsed, Recipe, finetune
from holdfast.lm.plan import Plan, Record, Trial
from holdfast.lm.protect import Protect, relatively
from holdfast.lm.text import Sequences
from holdfast.params import Params, layer_of, restore, snapshot, trainable
from holdfast.store import read_tensors, write_tensors

Told = Callable[[str], None]
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
        self.about["tokens"] = [old.train.digest(), new.train.digest()]
        self.work = out / ".trials" / _digest(self.about)

    def run(self, plan: Plan) -> dict[str, Any]:
        """Follow a plan to its end; what it chose."""
        with locked(self.work):
            answer: Record | None = None
            while True:
                try:
                    trial = plan.send(answer)  # type: ignore[arg-type]
                except StopIteration as end:
                    choices: dict[str, Any] = end.value
                    write_json(self.out / "choices.json", choices)
                    return choices
                answer = self.record(trial)

    def record(self, trial: Trial) -> Record:
        """The record of a training, made if it is not there."""
        spec = self.spec(trial)
        path = self.out / f"{_digest(spec)}.json"
        if not path.exists():
            began = time.monotonic()
            self.told(f"{trial.stage}: {words(trial)}")
            try:
                found = self.train(trial)
            except Collapsed as error:  # that it did is the result
                lost = {"loss": COLLAPSED, "accuracy": 0.0, "tokens": 0}
                found = {ability: {"valid": lost, "test": lost} for ability in ("old", "new")}
                found["collapsed"] = str(error)
            write_json(path, {"spec": spec, **found, "seconds": round(time.monotonic() - began, 1)})
        made: Record = read_json(path)
        return made

    def spec(self, trial: Trial) -> dict[str, Any]:
        """Everything that decides a record."""
        return {**self.about, **trial.spec()}

    # ---- one training -------------------------------------------------------------------------------------

    def train(self, trial: Trial) -> Record:
        """Train and test; nothing of it is kept but numbers."""
        model = self.load(getattr(torch, trial.dtype))
        start = snapshot(model)
        if trial.kind in ("wise", "la-merge"):
            tuned = self.naive(trial)
            if trial.kind == "wise":
                merged = wise_ft(start, tuned, trial.strength)
            else:
                new = self.ahead(trial).values
                merged = la_merge(start, tuned, self.importance(trial).values, new, trial.strength)
            restore(model, merged)
        elif trial.kind != "untouched":
            self.tune(model, trial)
        if trial.kind == "naive":
            write_tensors(self._naive_path(trial), {"weights": snapshot(model)}, None)
        record: Record = {"old": self.losses(model, self.old), "new": self.losses(model, self.new)}
        record["moved"] = _distance(start, model)
        if trial.kind == "naive":
            record["correlation"] = correlation(start, snapshot(model), self.ahead(trial).values)
        return record

    def tune(self, model: nn.Module, trial: Trial) -> None:
        """Fine-tune as the trial says."""
        recipe = Recipe(
            trial.lr, steps=self.size.steps, batch=self.size.batch, clip=trial.clip, seed=trial.seed
        )
        seen = self.new.train.first(self.size.steps * self.size.batch)  # one epoch of what is seen at all
        weights = flow_weights(model, seen, self.pad) if trial.kind == "flow" else None
        finetune(
            model, seen, self.pad, recipe, self.work / "trainer",
            protect=self.protection(model, trial), weights=weights,
            on_step=lambda step, steps, loss: self.told(f"  step {step}/{steps} loss {loss:.3f}"),
        )  # fmt: skip

    def protection(self, model: nn.Module, trial: Trial) -> Protect | None:
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

    def importance(self, trial: Trial) -> Importance:
        """Of the untouched model for the old ability."""
        place = self.work / f"importance{'-squared' if trial.squared else ''}"
        return self._measured(place, lambda: None, self.old, squared=trial.squared)

    def ahead(self, trial: Trial) -> Importance:
        """Of what plain fine-tuning comes to, for the new ability."""
        weights = self.naive(trial)
        return self._measured(self.work / f"ahead-{trial.lr:g}-{trial.seed}", lambda: weights, self.new)

    def naive(self, trial: Trial) -> Params:
        """The weights after plain fine-tuning at the trial's rate, with its seed."""
        path = self._naive_path(trial)
        if not path.exists():
            plain = Trial("naive", trial.lr, seed=trial.seed, clip=trial.clip)
            model = self.load(torch.float32)
            self.tune(model, plain)
            write_tensors(path, {"weights": snapshot(model)}, None)
        return read_tensors(path)[0]["weights"]

    def _naive_path(self, trial: Trial) -> Path:
        return self.work / f"naive-{trial.lr:g}-{trial.seed}-{trial.clip:g}.safetensors"

    def _measured(
        self, place: Path, weights: Callable[[], Params | None], ability: Ability, *, squared: bool = False
    ) -> Importance:
        if not (place / "importance.safetensors").exists():
            model = self.load(torch.float32)
            if (given := weights()) is not None:
                restore(model, given)
            self.told(f"  importance for {ability.name}")
            some = ability.train.first(self.size.items)
            measure(model, some, name=self.name, data=ability.name, squared=squared, directory=place)
        return Importance.load(place)


def correlation(start: Params, end: Params, importance: Params) -> dict[str, Any]:
    """Between |θ_ft - θ_0| and the importance for what was learnt: in each layer, and over the layers."""
    layers: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for name, value in importance.items():
        moved = (end[name] - start[name]).abs().flatten().float()
        layers.setdefault(layer_of(name), []).append((moved, value.flatten().float()))
    found = {}
    for layer, pieces in layers.items():
        moved, mattered = (torch.cat([piece[i] for piece in pieces]) for i in (0, 1))
        found[layer] = float(torch.corrcoef(torch.stack([moved, mattered]))[0, 1])
    known = torch.tensor([value for value in found.values() if math.isfinite(value)])
    if not len(known):
        return {"layers": {}, **dict.fromkeys(("min", "median", "mean", "max"))}
    summary = {"min": known.min(), "median": known.median(), "mean": known.mean(), "max": known.max()}
    shown = {layer: value if math.isfinite(value) else None for layer, value in found.items()}
    return {"layers": shown, **{name: float(value) for name, value in summary.items()}}


def words(trial: Trial) -> str:
    """A training in a few words."""
    plain = asdict(Trial("naive"))
    changed = {name: value for name, value in trial.spec().items() if value != plain[name] and name != "kind"}
    return " ".join([trial.kind, *(f"{name} {value}" for name, value in changed.items())])


def _distance(start: Params, model: nn.Module) -> float:
    total = sum(
        float((w.detach().float() - start[n].float()).square().sum()) for n, w in trainable(model).items()
    )
    return float(total**0.5)


def _digest(spec: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]


def records_of(out: Path) -> list[Record]:
    """The records of a study's folder."""
    found: Sequence[Any] = [read_json(path) for path in sorted(out.glob("*.json")) if path.stem != "choices"]
    return [record for record in found if isinstance(record, dict) and "spec" in record]

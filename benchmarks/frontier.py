"""Measure the stability-plasticity frontier of `mas` and `la`: what each keeps at equal plasticity.

Pairs of tasks in the printed setting (a preallocated head, all logits), or with --ours in Holdfast's own
conventions (a growing head, labels seen so far; give it another --out). The old task is trained once, then
the new one at every λ of a geometric path, from the same weights and with the same batches:

mas              plain importance
la               relative importance, λ_up = 1/τ and λ_down = 1
la, head         the same with `modulate_head=true`

λ = 0 is sequential fine-tuning and belongs to every path. Each training is one JSON record under --out and
is not repeated; weights are kept in --out/.trials, which may be deleted at the end. The curves of a pair
and seed are compared over the new scores that both reach (`gap` in `holdfast/maths/frontier.py`), on
validation sentences and, for the final word, on test sentences of the old task. The interval resamples
pairs, then seeds within them.

    python benchmarks/frontier.py --data-dir DATA
    python benchmarks/frontier.py --report
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from holdfast.bench.run import code_hash, versions
from holdfast.data import load_stream
from holdfast.data.tasks import Stream
from holdfast.learning.at_hand import AtHand
from holdfast.learning.learner import Learner
from holdfast.maths.frontier import Gap, Point, bootstrap, gap
from holdfast.methods import METHODS
from holdfast.models import build_classifier
from holdfast.settings import Settings, preset
from holdfast.storage.files import read_json, write_json

Record = dict[str, Any]
RULES: dict[str, dict[str, Any]] = {
    "mas": {"down": None, "modulate_head": False},
    "la": {"down": 1.0, "up": 0.0, "modulate_head": False},
    "la, head": {"down": 1.0, "up": 0.0, "modulate_head": True},
}
"""Hyper-parameters of `la`, which without λ_down is `mas`; m = 0 puts λ_up at its lower bound 1/τ."""
PAIRS = (
    *("Split3>Split0", "Split7>Split10", "Split9>Split2"),
    *("Split1>Split8", "Split6>Split5", "Split11>Split4"),
)
"""Pairs that no order of the paper teaches one after the other."""


def settings_of(stream: str, chosen: argparse.Namespace) -> Settings:
    """Return the setting with one learning rate."""
    changes: dict[str, Any] = {"rates": (chosen.lr,), "sgd_rates": (chosen.lr,)}
    changes |= {"optimizer": chosen.optimizer}
    if stream != "annomi" and not chosen.ours:  # on annomi all labels come with the first task
        changes |= {"head": "preallocated", "logits": "all"}
    if chosen.epochs:
        changes |= {"epochs": chosen.epochs}
    return dataclasses.replace(preset("small"), **changes)


class Pair:
    """Two tasks under one seed, the old one learnt when a training first needs it."""

    def __init__(self, stream: Stream, seed: int, chosen: argparse.Namespace) -> None:
        settings = settings_of(stream.name, chosen)
        self.whole = stream
        stream = stream.capped(train=settings.train_per_class, valid=settings.valid_per_class)
        self.old, self.new = stream.tasks
        self.seed, self.chosen, self.hand = seed, chosen, None
        self.settings = settings

    def begun(self) -> AtHand:
        """Return the new task, begun by a learner that has learnt the old one."""
        if self.hand is None:
            method = METHODS["la"](lr=self.chosen.lr, penalty=self.chosen.penalty)
            labels = self.whole.labels
            model = build_classifier(
                self.chosen.model, self.settings, seed=self.seed, labels=labels, method=method
            )
            fixed = frozenset({"lr", "penalty"})
            learner = Learner(
                model,
                method,
                self.whole.scenario,
                self.settings,
                seed=self.seed,
                fixed=fixed,
                workspace=self.chosen.out / ".trials",
            )
            learner.learn(self.old)
            self.hand = learner.begin(self.new)
        return self.hand

    def record(self, name: str, lam: float) -> Record:
        """Train the new task at one λ; return the record."""
        hand, chosen = self.begun(), self.chosen
        rule = RULES.get(name, RULES["mas"])
        trial = hand.trial(self.new, {"lr": chosen.lr, "lam": lam, **rule})
        with hand.using(trial):
            scores = {
                f"{which}_{part}": hand.learner.score(getattr(task, part))
                for which, task in (("new", self.new), ("old", self.old))
                for part in ("valid", "test")
            }
        return {
            "study": "frontier",
            "stream": self.whole.name,
            "old": self.old.name,
            "new": self.new.name,
            "seed": self.seed,
            "method": name.partition(",")[0],
            "modulate_head": rule["modulate_head"],
            "lambda": lam,
            **scores,
            **{key: trial.fit[key] for key in ("epochs", "best_epoch", "diverged")},
            **trial.evidence,
            "seconds": round(trial.seconds, 2),
            "preset": "small",
            "head": self.settings.head,
            "logits": self.settings.logits,
            "optimizer": chosen.optimizer,
            "lr": chosen.lr,
            "penalty": chosen.penalty,
            "model": chosen.model,
            "threads": 1,
            **{package: versions()[package] for package in ("torch", "transformers")},
            "code": code_hash()[:12],
        }


def paths(lams: Sequence[float], names: Iterable[str]) -> Iterator[tuple[str, float]]:
    """Yield the trainings of a pair: λ = 0, then every λ with each method."""
    yield "seq", 0.0
    for lam in lams:
        for name in names:
            yield name, lam


def file_of(out: Path, tasks: Sequence[str], stream: str, seed: int, name: str, lam: float) -> Path:
    """Return the file of a record."""
    words = (stream, *tasks, f"seed{seed}", name.replace(", ", "-"), f"{lam:g}")
    return out / f"{'_'.join(words)}.json"


def measure(chosen: argparse.Namespace) -> None:
    """Make the records that are missing, seed by seed and pair by pair."""
    for seed in chosen.seeds:
        for words in chosen.pairs:
            tasks = words.split(">")
            stream = load_stream(chosen.stream, order=",".join(tasks), data_dir=chosen.data_dir)
            pair = Pair(stream, seed, chosen)
            for name, lam in paths(chosen.lams, chosen.rules):
                path = file_of(chosen.out, tasks, stream.name, seed, name, lam)
                if path.exists():
                    continue
                record = pair.record(name, lam)
                write_json(path, record)
                print(
                    f"{words} seed {seed} {name} λ {lam:g}: new {record['new_valid']:.3f}, "
                    f"old {record['old_valid']:.3f}, {record['seconds']:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )


# ---- the comparison ---------------------------------------------------------------------------------------


def records_in(out: Path) -> list[Record]:
    """Return all records of a folder."""
    found = [read_json(path) for path in sorted(out.glob("*.json"))]
    return [record for record in found if record.get("study") == "frontier"]


def curves(records: Iterable[Record], old: str) -> dict[tuple[str, str, int], dict[str, list[Point]]]:
    """Return the points of each method, by old task, new task and seed; `old` names the old task's score."""
    found: dict[tuple[str, str, int], dict[str, list[Point]]] = {}
    for record in records:
        own = found.setdefault((record["old"], record["new"], record["seed"]), {name: [] for name in RULES})
        point = (record["new_valid"], record[old])
        if record["lambda"] == 0:
            for points in own.values():
                points.append(point)
        else:
            own[named(record)].append(point)
    return found


def compared(
    records: Sequence[Record], name: str, *, against: str = "mas", old: str = "old_valid", share: float = 0.0
) -> dict[str, Any]:
    """Return the gap between two methods for each pair and seed, and its mean with an interval.

    `share` is the share of the best new score of a pair from which new scores count.
    """
    gaps: dict[tuple[str, str], dict[int, Gap]] = {}
    for (first, second, seed), own in curves(records, old).items():
        if len(own[name]) < 3 or len(own[against]) < 3:
            continue
        least = share * max(new for points in own.values() for new, _ in points)
        if (found := gap(own[name], own[against], least=least)) is not None:
            gaps.setdefault((first, second), {})[seed] = found
    groups = [[one.mean for one in seeds.values()] for seeds in gaps.values()]
    values = [value for group in groups for value in group]
    areas = [[one.area for one in seeds.values()] for seeds in gaps.values()]
    return {
        "each": {
            f"{first}>{second} seed {seed}": dataclasses.asdict(one) | {"mean": one.mean}
            for (first, second), seeds in gaps.items()
            for seed, one in sorted(seeds.items())
        },
        "pairs": len(groups),
        "count": len(values),
        "mean": fmean(map(fmean, groups)) if groups else None,  # every pair counts the same
        "interval": bootstrap(groups) if values else None,
        "area": fmean(map(fmean, areas)) if areas else None,
        "area_interval": bootstrap(areas) if values else None,
    }


def at_threshold(records: Sequence[Record], name: str, *, old: str, share: float) -> dict[str, Any]:
    """Return how much more of the old task than `mas` a method keeps where a search by thr would stop.

    That is the largest measured λ with which the new score keeps a share of that of λ = 0.
    """
    groups: dict[tuple[str, str], list[float]] = {}
    for pair in sorted({(one["old"], one["new"], one["seed"]) for one in records}):
        own = [one for one in records if (one["old"], one["new"], one["seed"]) == pair]
        free = [one for one in own if one["lambda"] == 0]
        kept = []
        for method in (name, "mas"):
            path = [one for one in own if one["lambda"] > 0 and named(one) == method]
            enough = [one for one in path if free and one["new_valid"] >= share * free[0]["new_valid"]]
            if path and free:
                kept.append(max(enough or free, key=lambda one: one["lambda"])[old])
        if len(kept) == 2:
            groups.setdefault(pair[:2], []).append(kept[0] - kept[1])
    values = [value for group in groups.values() for value in group]
    return {
        "pairs": len(groups),
        "count": len(values),
        "better": sum(value > 0 for value in values),
        "mean": fmean(map(fmean, groups.values())) if groups else None,
        "interval": bootstrap(list(groups.values())) if values else None,
    }


def named(record: Record) -> str:
    """Return the name in `RULES` of a record's method."""
    return str(record["method"]) + (", head" if record["modulate_head"] else "")


def report(records: Sequence[Record]) -> dict[str, Any]:
    """Return every comparison: the streams, both heads, validation and test, all scores and high scores."""
    found: dict[str, Any] = {}
    for stream in sorted({record["stream"] for record in records}):
        own = [record for record in records if record["stream"] == stream]
        found[stream] = {"curves": {}, "thr": {}}
        for name in ("la", "la, head"):
            for part in ("valid", "test"):
                for label, share in (("all scores", 0.0), ("from 0.9 of the best", 0.9)):
                    row = compared(own, name, old=f"old_{part}", share=share)
                    found[stream]["curves"][f"{name}, {part}, {label}"] = row
                for share in (0.85, 0.9, 0.95):
                    row = at_threshold(own, name, old=f"old_{part}", share=share)
                    found[stream]["thr"][f"{name}, {part}, thr {share}"] = row
    return found


def written(found: dict[str, Any]) -> str:
    """Return the comparisons as Markdown: points of macro-F1 of the old task that `la` keeps beyond `mas`."""
    lines = ["| stream | comparison with `mas` | measured on | points kept more, 95 % | area, 95 % |"]
    lines.append("|---|---|---|---|---|")
    for stream, comparisons in found.items():
        for name, row in comparisons["curves"].items():
            if row["mean"] is None:
                continue
            values = [100 * row["mean"], *(100 * end for end in row["interval"])]
            areas = [row["area"], *row["area_interval"]]
            cells = [stream, name, f"{row['pairs']} pairs, {row['count']} curves"]
            cells += [
                "{:+.1f}, {:+.1f} to {:+.1f}".format(*values),
                "{:+.3f}, {:+.3f} to {:+.3f}".format(*areas),
            ]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| stream | pair | new scores compared, la | valid | test | the same, la with head | valid | test |",
    ]
    lines.append("|---|---|---|---:|---:|---|---:|---:|")
    for stream, comparisons in found.items():
        curves = comparisons["curves"]
        for curve in curves["la, valid, all scores"]["each"]:
            cells = [stream, curve]
            for name in ("la", "la, head"):
                valid = curves[f"{name}, valid, all scores"]["each"].get(curve)
                test = curves[f"{name}, test, all scores"]["each"].get(curve)
                cells += [f"{100 * valid['low']:.1f} to {100 * valid['high']:.1f}"] if valid else ["-"]
                cells += [f"{100 * one['mean']:+.1f}" if one else "-" for one in (valid, test)]
            lines.append(f"| {' | '.join(cells)} |")
    lines += [
        "",
        "| stream | at the largest λ that keeps thr, against `mas` | more in | points kept more, 95 % |",
    ]
    lines.append("|---|---|---|---|")
    for stream, comparisons in found.items():
        for name, row in comparisons["thr"].items():
            if row["mean"] is not None:
                values = [100 * row["mean"], *(100 * end for end in row["interval"])]
                cells = [stream, name, f"{row['better']} of {row['count']}"]
                lines.append(f"| {' | '.join(cells)} | {'{:+.1f}, {:+.1f} to {:+.1f}'.format(*values)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, then print the comparison."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--data-dir", type=Path, help="default: HOLDFAST_DATA, or the cache")
    arguments.add_argument("--stream", default="hwu64")
    arguments.add_argument("--pairs", nargs="+", default=list(PAIRS), help="old>new")
    arguments.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    arguments.add_argument("--lams", nargs="+", type=float, default=[0.1, 0.3, 1.0, 3.0, 10.0])
    arguments.add_argument("--rules", nargs="+", choices=list(RULES), default=list(RULES))
    arguments.add_argument("--lr", type=float, default=3e-3)
    arguments.add_argument("--optimizer", choices=("adamw", "sgd"), default="adamw")
    arguments.add_argument("--penalty", choices=("loss", "proximal"), default="loss")
    arguments.add_argument("--epochs", type=int, help="default: the preset's")
    arguments.add_argument("--ours", action="store_true", help="not in the printed setting")
    arguments.add_argument("--model", default="minilm")
    arguments.add_argument("--out", type=Path, default=Path("results/frontier"))
    arguments.add_argument("--report", action="store_true", help="only compare the records that exist")
    arguments.add_argument("--json", action="store_true")
    chosen = arguments.parse_args()
    torch.set_num_threads(1)
    if not chosen.report:
        measure(chosen)
    found = report(records_in(chosen.out))
    print(json.dumps(found) if chosen.json else written(found))


if __name__ == "__main__":
    main()

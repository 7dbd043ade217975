"""The plan of the language model study, as a generator.

It yields lists of independent trials and receives their records. It chooses rates and strengths by
validation loss only. It does no training itself, so it can be replayed from the records.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Literal

from holdfast.bench.records import Record

Kind = Literal["untouched", "naive", "l2", "mas", "la", "flow", "wise", "la-merge"]
Stage = Literal["", "rates", "harsh", "sweep", "frontier", "elimination"]

RATES = (2e-5, 5e-5, 1e-4, 2e-4, 4e-4)
LAMBDAS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FINE = (0.0001, 0.001, 0.01)
HARM = 0.05  # nats on the old ability; the harsh rate is the lowest that costs this much, or else the highest
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class LMSpec:
    """One trial of the study."""

    kind: Kind
    lr: float = 0.0
    strength: float = 0.0
    """λ of a penalty, g of WiSE-FT, m of la-merge, or FLOW's temperature in units of the median loss."""
    seed: int = 0
    mode: Literal["proximal", "loss"] = "proximal"
    normalise: Literal["global", "none"] = "global"
    clip: float = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    squared: bool = False
    stage: Stage = ""
    """The table it belongs to; no effect on the result."""

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> LMSpec:
        """Return the trial of a record's spec, without a stage."""
        return cls(**{one.name: spec[one.name] for one in fields(cls) if one.name != "stage"})

    @property
    def title(self) -> str:
        """The stage, if any, and a short description."""
        return f"{self.stage}: {self.words}" if self.stage else self.words

    @property
    def words(self) -> str:
        """A short description: the kind and the settings that differ from their defaults."""
        plain = asdict(LMSpec("naive"))
        changed = {n: value for n, value in self.spec().items() if value != plain[n] and n != "kind"}
        return " ".join([self.kind, *(f"{name} {value}" for name, value in changed.items())])

    @property
    def like(self) -> str:
        """A key shared by trials that take about the same time."""
        return f"{self.kind} {self.dtype}"

    def spec(self) -> dict[str, Any]:
        """Return all settings except the stage."""
        return {name: value for name, value in asdict(self).items() if name != "stage"}


StudyPlan = Generator[list[LMSpec], list[Record], dict[str, Any]]


def follow(plan: StudyPlan, answer: Callable[[list[LMSpec]], list[Record] | None]) -> dict[str, Any] | None:
    """Run a plan and return its choices, or None as soon as `answer` returns None."""
    found: list[Record] | None = None
    while True:
        try:
            trials = plan.send(found)  # type: ignore[arg-type]
        except StopIteration as end:
            chosen: dict[str, Any] = end.value
            return chosen
        found = answer(trials)
        if found is None:
            return None


def loss(record: Record, ability: str, part: str = "valid") -> float:
    """Return the loss of an ability on one part of its data."""
    return float(record[ability][part]["loss"])


def study(
    rates: Sequence[float] = RATES, lambdas: Sequence[float] = LAMBDAS, seeds: Sequence[int] = SEEDS
) -> StudyPlan:
    """Plan the study: the stage `rates` first, then all other stages together."""
    untouched, *naive = yield [
        LMSpec("untouched", stage="rates"),
        *(LMSpec("naive", rate, stage="rates") for rate in rates),
    ]
    best, _ = min(zip(rates, naive, strict=True), key=lambda pair: loss(pair[1], "new"))
    harm = [loss(record, "old") - loss(untouched, "old") for record in naive]
    harsh = min((rate for rate, nats in zip(rates, harm, strict=True) if nats >= HARM), default=max(rates))

    trials = [*_harsh(harsh, seeds), *_sweep(best, lambdas, seeds), *_elimination(best), *_frontier(harsh)]
    records = yield trials
    # The chosen λ minimises MAS's validation losses at the harsh rate, summed over abilities and seeds.
    both = dict.fromkeys(FINE, 0.0)
    for trial, record in zip(trials, records, strict=True):
        if (trial.kind, trial.stage) == ("mas", "harsh"):
            both[trial.strength] += loss(record, "old") + loss(record, "new")
    return {"best rate": best, "harsh rate": harsh, "chosen lambda": min(both, key=lambda lam: both[lam])}


def _harsh(rate: float, seeds: Sequence[int]) -> list[LMSpec]:
    """Return naive, MAS and LA at the harsh rate, for all seeds."""
    kinds: tuple[Kind, ...] = ("mas", "la")
    found = []
    for seed in seeds:
        found.append(LMSpec("naive", rate, seed=seed, stage="harsh"))
        found += [LMSpec(kind, rate, lam, seed, stage="harsh") for lam in FINE for kind in kinds]
    return found


def _sweep(rate: float, lambdas: Sequence[float], seeds: Sequence[int]) -> list[LMSpec]:
    """Return plain fine-tuning, and MAS at all strengths, as a proximal step and in the paper's loss form."""
    naive = [LMSpec("naive", rate, seed=seed, stage="sweep") for seed in seeds]
    proximal = [LMSpec("mas", rate, lam, seed, stage="sweep") for seed in seeds for lam in lambdas]
    raw = [LMSpec("mas", rate, lam, mode="loss", normalise="none", stage="sweep") for lam in lambdas]
    return naive + raw + proximal


def _frontier(rate: float) -> list[LMSpec]:
    """Return other methods and strengths at the harsh rate.

    L2 gives every weight importance 1, which is the mean of a normalised importance before capping.
    """
    l2 = [LMSpec("l2", rate, lam, stage="frontier") for lam in FINE]
    flow = [LMSpec("flow", rate, heat, stage="frontier") for heat in (0.5, 1.0, 2.0)]
    merging: tuple[Kind, ...] = ("wise", "la-merge")
    merged = [LMSpec(kind, rate, share, stage="frontier") for kind in merging for share in (0.25, 0.5, 0.75)]
    # la-merge at its full amount (WiSE-FT's 1 is plain fine-tuning), and one λ above FINE.
    ends = [LMSpec("la-merge", rate, 1.0, stage="frontier"), LMSpec("mas", rate, 0.1, stage="frontier")]
    return l2 + flow + merged + ends


def _elimination(rate: float) -> list[LMSpec]:
    """Return the paper's loss form at λ = 1, variants with one change each and controls without a penalty."""
    changes: tuple[dict[str, Any], ...] = (
        {"clip": 0.0},
        {"normalise": "global"},
        {"squared": True},
        {"dtype": "bfloat16"},
    )
    raw = LMSpec("mas", rate, 1.0, mode="loss", normalise="none", stage="elimination")
    plain = LMSpec("naive", rate, stage="elimination")
    controls = [plain, replace(plain, clip=0.0), replace(plain, dtype="bfloat16")]
    return [raw, *(replace(raw, **change) for change in changes), *controls]

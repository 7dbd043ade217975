"""What the study on language models asks, as a generator: it yields trainings, is sent their records, and
chooses rates and strengths by validation losses only. Whoever drives it trains; records make it resumable.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Kind = Literal["untouched", "naive", "l2", "mas", "la", "flow", "wise", "la-merge"]
Record = dict[str, Any]

RATES = (5e-5, 1e-4, 2e-4, 4e-4)
LAMBDAS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
FINE = (0.0001, 0.001, 0.01)
HARM = 0.05  # nats of damage to the old ability from which a rate is called harsh
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Trial:
    """One training of the study."""

    kind: Kind
    lr: float = 0.0
    strength: float = 0.0
    """λ of a penalty, the share of WiSE-FT, the amount of la-merge."""
    seed: int = 0
    mode: Literal["proximal", "loss"] = "proximal"
    normalise: Literal["global", "none"] = "global"
    clip: float = 1.0
    dtype: Literal["float32", "bfloat16"] = "float32"
    squared: bool = False
    stage: str = ""
    """Where it is first asked for: it names a table, and decides nothing."""

    def spec(self) -> dict[str, Any]:
        """What decides its numbers."""
        return {name: value for name, value in asdict(self).items() if name != "stage"}


Plan = Generator[Trial, Record, dict[str, Any]]


def loss(record: Record, ability: str, part: str = "valid") -> float:
    """The loss of an ability."""
    return float(record[ability][part]["loss"])


def study(
    rates: Sequence[float] = RATES, lambdas: Sequence[float] = LAMBDAS, seeds: Sequence[int] = SEEDS
) -> Plan:
    """Rates, the sweep of the paper, its collapse by elimination, the harsh rate, the frontier."""
    untouched = yield Trial("untouched", stage="rates")
    naive = {}
    for rate in rates:
        naive[rate] = yield Trial("naive", rate, stage="rates")
    best = min(rates, key=lambda rate: loss(naive[rate], "new"))
    harmed = [rate for rate in rates if loss(naive[rate], "old") - loss(untouched, "old") >= HARM]
    harsh = min(harmed) if harmed else max(rates)

    for lam in lambdas:
        yield Trial("mas", best, lam, mode="loss", normalise="none", stage="sweep")
        for seed in seeds:
            yield Trial("mas", best, lam, seed, stage="sweep")
    for seed in seeds[1:]:
        yield Trial("naive", best, seed=seed, stage="sweep")

    changes: tuple[dict[str, Any], ...] = (
        {"clip": 0.0},
        {"normalise": "global"},
        {"dtype": "bfloat16"},
        {"squared": True},
    )
    for change in changes:
        settings: dict[str, Any] = {"mode": "loss", "normalise": "none", "stage": "elimination"} | change
        yield Trial("mas", best, 1.0, **settings)

    found: dict[float, list[Record]] = {}
    for seed in seeds:
        yield Trial("naive", harsh, seed=seed, stage="harsh")
        for lam in FINE:
            found.setdefault(lam, []).append((yield Trial("mas", harsh, lam, seed, stage="harsh")))
    # The λ to report: the best sum of both abilities on validation items.
    chosen = min(FINE, key=lambda lam: sum(loss(one, "old") + loss(one, "new") for one in found[lam]))

    for lam in FINE:
        for seed in seeds:
            yield Trial("la", harsh, lam, seed, stage="frontier")
    for lam in (1.0, 10.0, 100.0):
        yield Trial("l2", harsh, lam, stage="frontier")
    yield Trial("flow", harsh, stage="frontier")
    for share in (0.25, 0.5, 0.75):
        yield Trial("wise", harsh, share, stage="frontier")
        yield Trial("la-merge", harsh, share, stage="frontier")
    return {"best rate": best, "harsh rate": harsh, "chosen lambda": chosen}

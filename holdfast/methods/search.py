"""Replay-free hyper-parameter search (CHSF, De Lange et al. 2021, as the paper extends it), as generators.

A plan yields hyper-parameters, receives the finished trial, and returns its decision. It never trains, never
sees a test score, and never sees data of an earlier task. Its caller trains, and a cache of trials makes a
plan resumable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from holdfast.maths.params import Params
from holdfast.settings import Settings

Choice = dict[str, Any]
GridWalk = Literal["bisect", "linear"]
At = Callable[[float], Choice]
Accept = Callable[["Trial"], bool]


class Trial(Protocol):
    """A finished training run: its hyper-parameters, its score, its final state."""

    @property
    def choice(self) -> Choice:
        """The hyper-parameters."""

    @property
    def score(self) -> float:
        """Validation macro-F1 of the current task, in [0, 1]."""

    @property
    def params(self) -> Params:
        """The final weights."""

    @property
    def state(self) -> Mapping[str, Any]:
        """Numbers of the method's final state."""

    @property
    def fit(self) -> Mapping[str, Any]:
        """How the training went, and what the head noted."""

    def read(self) -> dict[str, Params]:
        """Return the final weights, the head's memory and the tensors of the method's state."""


@dataclass(frozen=True)
class Decision:
    """The trial that becomes the model, and notes about it for the record."""

    trial: Trial
    notes: dict[str, Any] = field(default_factory=dict)


def best_rate(rates: Sequence[float], rest: Choice) -> Generator[Choice, Trial, Trial]:
    """Find the best trial over the learning rates, the earliest on ties."""
    best: Trial | None = None
    for lr in rates:
        trial = yield {"lr": lr, **rest}
        if best is None or trial.score > best.score:
            best = trial
    assert best is not None, "no learning rate to try"
    return best


def smallest(
    points: Sequence[float], at: At, holds: Callable[[Trial], bool]
) -> Generator[Choice, Trial, tuple[float, bool]]:
    """Bisect for the smallest of ascending points from which `holds` is true; (last point, False) if none."""
    low, high = 0, len(points)
    while low < high:
        middle = (low + high) // 2
        trial = yield at(points[middle])
        if holds(trial):
            high = middle
        else:
            low = middle + 1
    return points[min(low, len(points) - 1)], low < len(points)


DEEPEST = 4  # powers of ten below the lowest candidate for λ_max


def further_down(
    point: float, at: At, holds: Callable[[Trial], bool]
) -> Generator[Choice, Trial, tuple[float, bool]]:
    """Divide by 10 while `holds` is true; return the last point where it was, and whether it ended."""
    for _ in range(DEEPEST):
        trial = yield at(rounded(point / 10))
        if not holds(trial):
            return point, True
        point = rounded(point / 10)
    return point, False


@dataclass(frozen=True)
class Strongest:
    """The strongest accepted value (0 if none), its trial, and flags about the search."""

    value: float
    trial: Trial
    flags: tuple[str, ...] = ()


def strongest(
    start: float,
    at: At,
    accept: Accept,
    free: Trial,
    *,
    decay: float = 0.9,
    steps: int = 175,
    limit: int | None = None,
    engine: GridWalk = "bisect",
    known: Mapping[float, Trial] | None = None,
) -> Generator[Choice, Trial, Strongest]:
    """Find the strongest value on the grid start * decay^j that is accepted (stability decay).

    `free` is the unregularised trial: value 0, accepted by definition, and returned if no grid point is.
    `known` are trials already made, by value; they cost nothing and do not count against `limit`.
    """
    grid = [rounded(start * decay**j) for j in range(steps + 1)]
    seen = {j: known[value] for j, value in enumerate(grid) if known and value in known}
    made = 0

    def spent() -> bool:
        return limit is not None and made >= limit

    def found(j: int, *flags: str) -> Strongest:
        if any(weaker > j and not accept(trial) for weaker, trial in seen.items()):
            flags += ("non-monotone",)
        return Strongest(grid[j], seen[j], flags) if j <= steps else Strongest(0.0, free, flags)

    def ask(j: int) -> Generator[Choice, Trial, bool]:
        nonlocal made
        if j not in seen:
            made += 1
            seen[j] = yield at(grid[j])
        return accept(seen[j])

    if (yield from ask(0)):
        return found(0)
    if engine == "linear":
        for j in range(1, steps + 1):
            if j not in seen and spent():
                return found(min((k for k in seen if accept(seen[k])), default=steps + 1), "limit")
            if (yield from ask(j)):
                return found(j)
        return found(steps + 1)

    # Invariant: `failed` was rejected, `passed` was accepted, and nothing stronger than `passed` was.
    passed = min((j for j in seen if accept(seen[j])), default=steps + 1)
    failed = max(j for j in seen if j < passed)
    while passed - failed > 1:
        if spent():
            return found(passed, "limit")
        middle = (failed + passed) // 2
        if (yield from ask(middle)):
            passed = middle
        else:
            failed = middle
    return found(passed)


def lam_grid(settings: Settings) -> dict[str, Any]:
    """Return the settings of the search down the λ grid, as arguments of `strongest`."""
    return {
        "decay": settings.lam_decay,
        "steps": settings.lam_steps,
        "limit": settings.lam_trials,
        "engine": settings.engine,
    }


THRESHOLDS = {"class-incremental": 0.90, "domain-incremental": 0.95}


def share_to_keep(thr: float | None, scenario: str) -> float:
    """Return the share of the gold score that a hold must keep: as set, or the paper's for the scenario."""
    return THRESHOLDS.get(scenario, 0.90) if thr is None else thr


def keeps_enough(gold: Trial, share: float) -> Accept:
    """Return the acceptance rule: a trial must keep this share of the gold score."""
    return lambda trial: trial.score >= share * gold.score


def strongest_lam(
    points: Sequence[float],
    at: At,
    gold: Trial,
    *,
    accept: Accept,
    previous: float,
    movement: Callable[[Trial], float] | None,
    settings: Settings,
) -> Generator[Choice, Trial, Decision]:
    """Find λ_max among ascending points, then the strongest accepted λ from λ_max or the previous λ down.

    λ_max is the weakest point without plasticity: a score of at most 0.02 (paper: 0) if `movement` is None.
    Otherwise new head rows always learn a little, and score and movement must be close to the last point's.
    """
    top: Trial | None = None if movement is None else (yield at(points[-1]))
    tried: dict[float, Trial] = {} if top is None else {points[-1]: top}

    def still(trial: Trial) -> bool:
        tried[trial.choice["lam"]] = trial
        if movement is None or top is None:
            return trial.score <= 0.02
        # The strongest moves too: inside Adam a penalty of any strength lets weights jitter by the step size.
        further = movement(trial) - movement(top)
        return abs(trial.score - top.score) <= 0.01 and further <= 0.01 * movement(gold)

    below = points if top is None else points[:-1]
    lam_max, reached = yield from smallest(below, at, still)
    lam_max = lam_max if reached else points[-1]
    notes: dict[str, Any] = {"gold": gold.score, "lam_max": lam_max, "flags": [] if reached else ["ceiling"]}
    if lam_max == points[0]:
        lam_max, bounded = yield from further_down(lam_max, at, still)
        notes["lam_max"] = lam_max
        notes["flags"] += [] if bounded else ["floor"]
    if top is not None and accept(top):
        # Even under the strongest hold the task is learnt well enough: letting go gains nothing. λ_max scores
        # within 0.01 of the strongest, which may be just too low.
        notes["flags"].append("saturated")
        return Decision(tried[lam_max] if accept(tried[lam_max]) else top, notes)
    found = yield from strongest(
        min(previous, lam_max) if previous > 0 else lam_max,
        at,
        accept,
        gold,
        known=tried,
        **lam_grid(settings),
    )
    notes["flags"] += found.flags
    return Decision(found.trial, notes)


def first_gain(
    points: Iterable[float], at: At, base: Trial, target: float
) -> Generator[Choice, Trial, tuple[Trial, bool]]:
    """Return the first trial that beats `base` or reaches the target, and True; else (`base`, False)."""
    for point in points:
        trial = yield at(point)
        if trial.score > base.score or trial.score >= target:
            return trial, True
    return base, False


def unfixed(grid: Iterable[Choice], fixed: Collection[str]) -> list[Choice]:
    """Return the points of a grid without the hyper-parameters that the user has set, each point once."""
    found: list[Choice] = []
    for point in grid:
        left = {name: value for name, value in point.items() if name not in fixed}
        if left not in found:
            found.append(left)
    return found


def best_of_grid(
    rates: Sequence[float], grid: Sequence[Choice], *, product: bool
) -> Generator[Choice, Trial, Trial]:
    """Find the best trial over rates and grid; unless `product`, try all rates only at the first point."""
    best = yield from best_rate(rates, grid[0])
    for lr in rates if product else (best.choice["lr"],):
        for point in grid[1:]:
            trial = yield {"lr": lr, **point}
            if trial.score > best.score:
                best = trial
    return best


LooseningPath = Callable[[Sequence[float]], Iterable[tuple[float, float]]]


def paper_path(
    scores: Sequence[float], *, budget: int = 40, drop: float = 0.1, up_matters: bool = True
) -> Iterator[tuple[float, float]]:
    """Yield the paper's trials of (λ_down, m): shrink λ_down until scores are flat, then m, which sets λ_up.

    `scores` is the caller's growing list; it is flat if it has more than 15 values and the last 10 hardly
    rise. The path ends after `budget` trials or when scores are flat: at once if not `up_matters`, otherwise
    when m < 0.1.
    """
    down = multiplier = 1.0
    for _ in range(budget):
        yield down, multiplier
        flat = len(scores) > 15 and slope(scores[-10:]) < 0.003
        if multiplier == 1.0 and not flat:
            down *= 1 - drop
        elif not up_matters or (flat and multiplier < 0.1):
            return
        else:
            multiplier *= 1 - drop


def short_path(scores: Sequence[float], *, up_matters: bool = True) -> Iterator[tuple[float, float]]:
    """Yield five trials, or three where λ_up has no room, for small machines."""
    for down, multiplier in ((1.0, 1.0), (0.3, 1.0), (0.1, 1.0), (0.1, 0.3), (0.1, 0.1)):
        if multiplier == 1.0 or up_matters:
            yield down, multiplier


def loosen(
    path: LooseningPath, at: Callable[[float, float], Choice], target: float
) -> Generator[Choice, Trial, tuple[Trial, bool]]:
    """Follow a path of (λ_down, m) to the first trial that reaches the target; else (best trial, False)."""
    scores: list[float] = []
    best: Trial | None = None
    for down, multiplier in path(scores):
        trial = yield at(down, multiplier)
        scores.append(trial.score)
        if best is None or trial.score > best.score:
            best = trial
        if trial.score >= target:
            return trial, True
    assert best is not None, "a path has at least one trial"
    return best, False


def slope(values: Sequence[float]) -> float:
    """Return the least-squares slope against the index; infinity for a single value, which is not flat."""
    n = len(values)
    if n < 2:
        return math.inf
    centre, mean = (n - 1) / 2, sum(values) / n
    return sum((i - centre) * (v - mean) for i, v in enumerate(values)) / sum(
        (i - centre) ** 2 for i in range(n)
    )


def rounded(value: float) -> float:
    """Round to ten significant digits, so that a grid point reached in two ways is one point."""
    return float(f"{value:.10g}")

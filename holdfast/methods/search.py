"""Replay-free hyper-parameter search (CHSF, De Lange et al. 2021, as the paper extends it), as generators.

A plan yields hyper-parameters, receives the finished trial, and returns its decision. It never trains, never
sees a test score, and never sees data of an earlier task. Its caller trains, and a cache of trials makes a
plan resumable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from holdfast.maths.metrics import standard_error
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


class Searcher(Protocol):
    """The part of a learner that a search sees."""

    @property
    def settings(self) -> Settings:
        """Settings of every training run."""

    @property
    def tasks_seen(self) -> int:
        """Number of tasks that were learnt before this one."""

    @property
    def scenario(self) -> str:
        """The scenario of the stream."""

    @property
    def valid(self) -> Sized:
        """Validation sentences of the task."""

    def rates(self, *, own: bool = False) -> tuple[float, ...]:
        """Return the learning rates to try."""

    def aim_at(self, score: float) -> None:
        """Stop training runs that cannot reach a score any more."""


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


def chosen_rate(learner: Searcher, rest: Choice, *, own: bool = False) -> Generator[Choice, Trial, Trial]:
    """Find the trial of the learning rate that the run's plan chooses: the best, or the gentlest."""
    rates = learner.rates(own=True) if own else learner.rates()
    if learner.settings.plan == "stable":
        return (yield from gentlest_rate(rates, rest, len(learner.valid)))[0]
    return (yield from best_rate(rates, rest))


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


# ---- plan=stable ----------------------------------------------------------------------------------------

FINE = 1.3  # factor to which a strength is refined
WIDE = 4  # steps of FINE in the first jump; jumps double until the edge is between two trials
FARTHEST = 24  # steps of FINE above the start beyond which the limit is tried instead
DEEP = 120  # steps of FINE below the start at which the search gives up
SEEN = 48  # steps of FINE around the start among which a prediction may choose
RAISE = 4.0  # factor between two values of λ_up


@dataclass(frozen=True)
class Target:
    """The least score that a hold must keep, and the standard error of a score."""

    gold: float
    least: float
    sentences: int

    def met(self, trial: Trial) -> bool:
        """Return whether a trial keeps enough."""
        return trial.score >= self.least

    def alike(self, one: Trial, other: Trial) -> bool:
        """Return whether two scores differ by less than a standard error."""
        return abs(one.score - other.score) < standard_error(self.least, self.sentences)


@dataclass(frozen=True)
class Hold:
    """The strengths of a hold at the chosen learning rate."""

    at: At
    start: float
    limit: Choice | None = None
    """The limit of ever stronger holds, if it can be trained."""
    limit_first: bool = False
    """Whether the limit is likely to keep enough."""


def target_of(learner: Searcher, thr: float | None, gold: float) -> Target:
    """Return thr · gold; with plan=stable, gold less its standard error if that is lower."""
    least, sentences = share_to_keep(thr, learner.scenario) * gold, len(learner.valid)
    if learner.settings.plan == "stable":
        least = min(least, gold - standard_error(gold, sentences))
    return Target(gold, least, sentences)


def gentlest_rate(
    rates: Sequence[float], rest: Choice, sentences: int
) -> Generator[Choice, Trial, tuple[Trial, float]]:
    """Find the smallest rate within one standard error of the best; return its trial and the best score.

    Larger rates are not tried once none can be better by more than a standard error.
    """
    made: list[Trial] = []
    for lr in sorted(rates):
        made.append((yield {"lr": lr, **rest}))
        if made[-1].score >= 1 - standard_error(1.0, sentences):
            break
    best = max(trial.score for trial in made)
    least = best - standard_error(best, sentences)
    return next(trial for trial in made if trial.score >= least), best


def foreseen(start: float, predicted: Callable[[float], float | None], least: float) -> tuple[float, bool]:
    """Return the strongest value around the start that is predicted to reach a score, and if the limit is.

    No training is needed. Without predictions it is the start.
    """
    top = predicted(math.inf)
    if top is None:
        return start, False
    low, high = -SEEN, SEEN
    while high - low > 1:
        middle = (low + high) // 2
        score = predicted(start * FINE**middle)
        if score is not None and score >= least:
            low = middle
        else:
            high = middle
    return start * FINE**low, top >= least


def edge(
    hold: Hold, target: Target, free: Trial, *, limit: int | None = None
) -> Generator[Choice, Trial, Strongest]:
    """Find the strongest value that meets the target, to a factor of `FINE`, if scores fall with strength.

    Jumps from the start double until the edge is bracketed; then the scores at both ends say where it is. The
    search ends early where the two ends score alike. `limit` is the number of trainings after which a met
    target is enough; `free`, the trial without a hold, is returned if no value meets it.
    """
    seen: dict[int, Trial] = {}
    passed: int | None = None
    failed: int | None = None
    flags: tuple[str, ...] = ()
    if hold.limit is not None and hold.limit_first:
        top = yield hold.limit
        if target.met(top):
            return Strongest(math.inf, top, ("saturated",))
    j, jump = 0, WIDE
    while True:
        seen[j] = yield hold.at(rounded(hold.start * FINE**j))
        if target.met(seen[j]):
            passed = j
        else:
            failed = j
        if failed is None:
            j, jump = j + jump, 2 * jump
            if j > FARTHEST:
                if hold.limit is None:
                    flags = ("ceiling",)
                    break
                top = yield hold.limit
                if target.met(top):
                    return Strongest(math.inf, top, ("saturated",))
                seen[j], failed = top, j
        elif passed is None:
            j, jump = j - jump, 2 * jump
            if j < -DEEP:
                return Strongest(0.0, free, ("none",))
        if passed is not None and failed is not None:
            if failed - passed == 1 or target.alike(seen[passed], seen[failed]):
                break
            if limit is not None and len(seen) >= limit:
                flags = ("limit",)
                break
            j = _between(passed, failed, seen[passed].score, seen[failed].score, target.least)
    assert passed is not None
    return Strongest(rounded(hold.start * FINE**passed), seen[passed], flags)


def _between(passed: int, failed: int, above: float, below: float, least: float) -> int:
    """Return the step at which a line between two scores meets the target, in the middle half of the gap."""
    gap = failed - passed
    share = (above - least) / (above - below)
    return passed + min(max(round(share * gap), math.ceil(gap / 4)), math.floor(3 * gap / 4))


def stable(
    learner: Searcher, thr: float | None, off: Choice, hold: Callable[[Trial, Target], Hold | Choice]
) -> Generator[Choice, Trial, tuple[Decision, Target]]:
    """Find the gentlest learning rate, then, if there is a past, the strongest hold that keeps thr of gold.

    `hold` gets the trial without a hold at that rate; it returns a choice instead if the strength is set.
    """
    gold, best = yield from gentlest_rate(learner.rates(), off, len(learner.valid))
    target = target_of(learner, thr, best)
    notes: dict[str, Any] = {"gold": best, "target": target.least, "flags": []}
    if not learner.tasks_seen:
        return Decision(gold, notes), target
    strengths = hold(gold, target)
    if not isinstance(strengths, Hold):
        return Decision((yield strengths), notes), target
    # Accuracy, which early rejection watches, may lie a little above macro-F1.
    learner.aim_at(target.least - standard_error(target.least, target.sentences))
    found = yield from edge(strengths, target, gold, limit=learner.settings.lam_trials)
    return Decision(found.trial, notes | {"flags": list(found.flags)}), target


def raised(
    factors: Iterable[float], at: At, target: Target, base: Trial, cost: Callable[[float], float]
) -> Generator[Choice, Trial, Trial]:
    """Return the last trial along the factors that meets the target; `base` if the first does not.

    `cost` predicts by how much a factor lowers the score of `base`. Where that is more than `base` has to
    spare, the factor is not trained.
    """
    spare = base.score - target.least
    for factor in factors:
        if cost(factor) > spare:
            break
        trial = yield at(factor)
        if not target.met(trial):
            break
        base = trial
    return base


# ---- Algorithm 1: λ_down and λ_up -----------------------------------------------------------------------

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

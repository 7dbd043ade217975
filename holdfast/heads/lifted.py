"""Discriminant analysis on sentence vectors and on random features of them: the head of `auto`.

One set of sums serves several heads. The lifted vector x is the sentence vector z, scaled, followed by random
rectified features relu(zP), as in RanPAC (McDonnell et al. 2023). Its sums contain those of z in their first
columns. Left-out sentences of every lesson choose how many columns are used and how much is shrunk.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

import numpy
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.heads import calibration
from holdfast.heads.base import Taught
from holdfast.heads.calibration import Seen
from holdfast.heads.closed import UNTOLD, Option, SumsHead
from holdfast.heads.discriminant import WEIGHTINGS, SLDAHead, Weighting, shrunk
from holdfast.heads.far import RelativeDistance, gain_without
from holdfast.heads.sums import ClassSums, Scatter, factored
from holdfast.maths.metrics import macro_f1
from holdfast.maths.params import Params
from holdfast.maths.products import gram

SCALE = 4.0  # weight of z beside the random features; the discriminant on z alone does not depend on it
SHARE = 1.5  # random features for each column of z, if there is room
MOST = 256  # sentences of a lesson that are left out in turn
FADE = 0.95  # what MOST sentences leave of the weight of earlier ones in the calibration
STALE = 3.0  # power of the share of sentences known before, by which a lesson fades earlier ones too
FEW = 20  # left-out sentences, over all lessons, from which their difference from drawn ones counts
DRAWS = 1000  # sentences drawn from the class Gaussians to calibrate
STEPS = (-1.0, 0.0, 1.0)  # powers of ten by which the shrinkage may differ from `usual`
PLAIN, RICH = 0.7, 0.1  # the usual e/(1-e) at as many sentences as columns, without and with random features
MANY = 0.4  # sentences for each column from which random features are the usual choice
LEAST = 1e-4
ALONE = 0.046  # the temperature while no label has two sentences, from training sentences of the same streams
LAST = 1.5  # weight of the last layer while no label has two sentences
PRIOR = 0.1  # share of the trace of the covariance of the means that regularises it then
PROBES = 64  # random vectors that estimate a trace
LEFT = 0.2  # least 1 - (1-e) T/f, which nears 0 where the shrinkage is weak for so few sentences
# What `load_statistics` keeps of the statistics that it leaves, with all that was solved from them.
SOLVED = (
    "past",
    "chosen",
    "evidence",
    "offsets",
    "marks",
    "_solved",
    "_factored",
    "_spreads",
    "_far",
    "_noises",
)
FAR = 0.1  # least shrinkage of the two covariances that measure how far out a sentence lies


def usual(columns: int, free: float, lifted: bool) -> float:
    """Return the e/(1-e) that suits a covariance of d columns and f degrees of freedom.

    It is c (d/f)^2.5, but at most 9 or 0.4 d/f: with few sentences e tends to 1, so that the f directions in
    which they differ do not count for nothing. Found on training sentences of CLINC150 and HWU64, of which 2
    to 100 a label were learnt.
    """
    ratio = columns / max(free, 1.0)
    return min((RICH if lifted else PLAIN) * math.pow(ratio, 2.5), max(9.0, 0.4 * ratio))


class Scored(NamedTuple):
    """The scores of sentences that took no part in them, and the rows of their labels."""

    scores: Tensor
    rows: Tensor


class Tried(NamedTuple):
    """What an option makes of left-out sentences, and how many of them it gets right."""

    scored: Scored
    right: float


class LiftedHead(SLDAHead):
    """Score_k = μ_kᵀ Σ_e⁻¹ x - ½ μ_kᵀ Σ_e⁻¹ μ_k on the leading columns of x = [z, relu(zP)].

    `columns` limits the width of x. With scatter="per-class", or once the encoder has moved, x is z alone.
    `normalised` says that the vector of each layer in z has length 1.
    """

    kind: ClassVar[str] = "lifted"
    _far: RelativeDistance | None = None
    _noises: tuple[Option, float] | None = None
    _left: tuple[Params, dict[str, Any]] | None = None

    def __init__(
        self,
        width: int,
        *,
        normalised: bool = False,
        columns: int = 0,
        seed: int = 0,
        shrinkage: float | None = None,
        weighting: Weighting = "equal",
        scatter: Scatter = "pooled",
    ) -> None:
        random = 0 if scatter == "per-class" else max(0, min(columns - width, int(SHARE * width)))
        super().__init__(
            width, seed=seed, lifted=width + random, shrinkage=shrinkage, weighting=weighting, scatter=scatter
        )
        self.normalised, self.shrinkage = normalised, shrinkage
        self.whole = self.past.width
        self.scale = SCALE if random else 1.0
        kinds = list(dict.fromkeys(option[1] for option in self.options))
        steps = STEPS if shrinkage is None else (0.0,)
        self.options = tuple(
            (step, kind, float(used))
            for used in dict.fromkeys((width, width + random))
            for step in steps
            for kind in kinds
        )
        self.chosen = self.options[0]
        # Summed over lessons: how many sentences were left out, and how many of them each option got right.
        self.evidence = torch.zeros(1 + len(self.options), dtype=torch.float64)
        # Summed over lessons, later ones counting more: n, and n times the difference between real and drawn
        # sentences in each measure.
        self.offsets = torch.zeros(1 + calibration.MEASURES, dtype=torch.float64)
        # The temperature and the thresholds under the present statistics; 0 before there are any.
        self.marks = torch.zeros(calibration.MEASURES, dtype=torch.float64)
        # numpy has frozen what RandomState draws, so that P need not be stored.
        draws = numpy.random.RandomState(seed).standard_normal((width, random))
        self.projection = torch.from_numpy(draws).float()

    # ---- features -----------------------------------------------------------------------------------------

    @property
    def rich(self) -> bool:
        """Whether the sums hold random features."""
        return self.past.width > self.width

    @override
    def lift(self, features: Tensor) -> Tensor:
        """Return x."""
        z = self.scale * features
        if not self.rich:
            return z
        random = (features @ self.projection.to(features)).relu()
        return torch.cat([z, random / math.sqrt(self.blocks)], 1)

    def _columns(self, features: Tensor, option: Option) -> Tensor:
        """Return the columns of x that an option uses."""
        return self.lift(features) if option[2] > self.width else self.scale * features

    @override
    def forward(self, features: Tensor) -> Tensor:
        if self._solved is None or self._solved[0] != self.chosen:
            self._solved = (self.chosen, *self.solve(self.chosen))
        _, weight, bias = self._solved
        return functional.linear(self._columns(features, self.chosen), weight.to(features), bias.to(features))

    @override
    def carry(self, move: Tensor) -> None:
        """Move the sums of z with the encoder; rectified features cannot follow and are dropped."""
        if self.rich:
            self.past = self.past.leading(self.width)
            self.evidence, self.offsets = torch.zeros_like(self.evidence), torch.zeros_like(self.offsets)
            self.chosen = self.options[0]
        super().carry(move)

    # ---- scores -------------------------------------------------------------------------------------------

    def amount(self, option: Option) -> float:
        """Return an option's shrinkage e: the given one, or e/(1-e) is 10^step times the usual one."""
        if self.shrinkage is not None:
            return self.shrinkage
        odds = usual(int(option[2]), self.free, option[2] > self.width) * 10 ** option[0]
        return max(odds / (1 + odds), LEAST)

    @override
    def solve(self, option: Option) -> tuple[Tensor, Tensor]:
        """Return W = Σ_e⁻¹ (μ - m) and b = -½ (μ + m)ᵀ W: up to a constant, the same scores for any m.

        With m the mean of μ, numbers stay small enough for single precision. While no label has two sentences
        there is no covariance; see `_alone`.
        """
        if self.alone:
            return self._alone(option)
        means = self.past.means()[:, : int(option[2])]
        middle = means[self.visible_rows()].mean(0)
        weight = torch.cholesky_solve((means - middle).T, self._factor(option)).T
        return weight, -0.5 * (weight * (means + middle)).sum(1) + self._prior(option)

    @property
    def alone(self) -> bool:
        """Whether no label has a second sentence."""
        return self.free < 1

    def _alone(self, option: Option) -> tuple[Tensor, Tensor]:
        """Return W and b of the nearest class mean by an angle: aᵀA (x - m) / √(aᵀA a) with a = μ - m.

        A = c (GᵀG + cI)⁻¹ counts directions less in which the means G differ much anyway; c is `PRIOR` times
        the trace of GᵀG. The last layer counts more. Single sentences are nearer to everything the closer
        they are to m; dividing by the length removes that. The unit is the length of the means, so that
        scores are about as large for every encoder.
        """
        used, visible = int(option[2]), self.visible_rows()
        means = self.past.means()[:, :used]
        middle, size = means[visible].mean(0), means[visible].square().sum(1).mean().sqrt()
        scale = torch.ones(used, dtype=means.dtype)
        if self.blocks > 1:
            scale[self.width - self.width // self.blocks : self.width] = LAST
        away = (means - middle) * scale
        g = away[visible]
        c = PRIOR * g.square().sum().clamp(min=1e-12)
        inner = gram(g.T) + c * torch.eye(len(g), dtype=g.dtype)
        turned = away - torch.linalg.solve(inner, g @ away.T).T @ g  # A a, by Woodbury's identity
        length = (turned * away).sum(1).clamp(min=1e-30).sqrt()
        weight = turned * scale / (length * size.clamp(min=1e-12))[:, None]
        return weight, -(weight @ middle) + self._log_prior(option)

    def _prior(self, option: Option) -> Tensor:
        """Return what is added to the scores: the log prior, and what the noise of the means costs them."""
        if self._noises is None or self._noises[0] != option:
            self._noises = (option, self._noise(option, self._factor(option)))
        return self._log_prior(option) + self._noises[1] / self.past.counts.clamp(min=1)

    def _log_prior(self, option: Option) -> Tensor:
        """Return log n_k/N for the weighting "counts", otherwise 0."""
        counts = self.past.counts.clamp(min=1)
        prior = WEIGHTINGS[int(option[1])] == "counts"
        return (counts / counts.sum()).log() if prior else torch.zeros_like(counts)

    def _noise(self, option: Option, factor: Tensor) -> float:
        """Return t/2: the noise in a mean of n sentences lowers its scores by t/(2n) on average.

        t = T / (1 - (1-e) T/f) with T = tr(Σ_e⁻¹ Σ), since E |μ̂ - μ|² is T/n in the metric of Σ_e. The
        denominator is for Σ, which is estimated from the same sentences. Without this, labels with few
        sentences are hardly ever the answer; if all have as many it changes nothing.

        (1-e) T = d - e v tr(Σ_e⁻¹), v the mean variance that Σ is shrunk towards. tr(Σ_e⁻¹) is estimated as
        the mean of |L⁻¹ s|² over vectors s of random signs, LLᵀ = Σ_e (Hutchinson 1990).
        """
        e, d = self.amount(option), len(factor)
        signs = numpy.random.RandomState(0).randint(0, 2, (d, PROBES)) * 2.0 - 1.0
        solved: Tensor = torch.linalg.solve_triangular(
            factor, torch.from_numpy(signs).to(factor), upper=False
        )
        variance = float(self._covariance(option).diagonal().mean())
        kept = max(d - e * variance * float(solved.square().sum()) / PROBES, 0.0)  # (1-e) T
        trace = kept / (1 - e) if e < 1 else float(d)
        return 0.5 * trace / max(1 - kept / max(self.free, 1.0), LEFT)

    @override
    def _factor(self, option: Option) -> Tensor:
        if self._factored is None or self._factored[0] != option:
            self._factored = (option, factored(shrunk(self._covariance(option), self.amount(option))))
        return self._factored[1]

    def _covariance(self, option: Option) -> Tensor:
        """Return Σ on the option's columns."""
        used = int(option[2])
        return self._spread(balanced=WEIGHTINGS[int(option[1])] == "covariance")[:used, :used]

    def outside(
        self, held: Taught, learnt: Taught, option: Option, covariance: Tensor | None = None
    ) -> Scored:
        """Return the scores of held-out sentences, then of learnt ones, each as if it had not been learnt.

        Without a sentence of class k, u = x - μ_k from its mean, μ_k loses u/(n-1) and Σ_e loses β u uᵀ with
        β = (1-e) n / ((n-1)(N-K)); its inverse follows from Sherman and Morrison. N - K and the trace towards
        which Σ is shrunk stay as they are. For held-out sentences β is 0, and μ_k loses nothing. `covariance`
        is Σ in the precision to compute in, by default double.
        """
        rows, counts = self.rows([*held.labels, *learnt.labels]), self.past.counts
        precision = torch.float64 if covariance is None else covariance.dtype
        x = self._columns(torch.cat([held.features, learnt.features]).to(precision), option).double()
        if self.alone:  # then no learnt sentence can be left out
            weight, bias = self._alone(option)
            return Scored(functional.linear(x, weight, bias), rows)
        means = self.past.means()[:, : int(option[2])]
        middle = means[self.visible_rows()].mean(0)
        both = (torch.cat([means, x]) - middle).to(precision)
        if covariance is None:
            factor = self._factor(option)
        else:
            factor = factored(shrunk(covariance, self.amount(option)))
        white = torch.linalg.solve_triangular(factor, both.T, upper=False).T
        m, w = white[: len(means)], white[len(means) :]
        known = torch.arange(len(rows)) >= len(held.labels)
        n, q = counts[rows], w - m[rows]
        inner, cross, length = (w @ m.T).double(), (q @ m.T).double(), m.double().square().sum(1)
        m, w, q = m[rows].double(), w.double(), q.double()
        gain = torch.zeros_like(n)
        balanced = WEIGHTINGS[int(option[1])] == "covariance"  # Σ is the mean of the classes' own
        over = n[known] * len(self.visible_rows()) if balanced else max(self.free, 1.0)
        gain[known] = gain_without(q[known], n[known], (1 - self.amount(option)) / over)
        gain, along = gain[:, None], (q * w).sum(1, keepdim=True)

        def score(inner: Tensor, cross: Tensor, length: Tensor) -> Tensor:
            """Return μᵀAx - ½ μᵀAμ, A the inverse without the sentence, from products with Σ_e⁻¹."""
            found: Tensor = inner + gain * cross * along - 0.5 * (length + gain * cross.square())
            return found

        scores = score(inner, cross, length)
        left = m.clone()
        left[known] -= q[known] / (n[known] - 1)[:, None]
        own = score(*((left * other).sum(1, keepdim=True) for other in (w, q, left)))
        noise, counted = self._noise(option, factor), counts.clamp(min=1)
        more = torch.zeros_like(n)  # a mean with a sentence less is noisier
        more[known] = noise / (n[known] * (n[known] - 1))
        scores = scores.scatter(1, rows[:, None], own + more[:, None])
        return Scored(scores + self._log_prior(option) + noise / counted, rows)

    # ---- choosing -----------------------------------------------------------------------------------------

    @override
    def fitness(self, option: Option) -> float:
        """Prefer the usual shrinkage, and random features from as many sentences as columns on."""
        fits = (option[2] > self.width) == (self.rich and self.free >= MANY * self.past.width)
        return -abs(option[0]) - 10.0 * (not fits) - 1e-6 * option[1]

    @override
    def settle(self, valid: Taught, learnt: Taught | None = None) -> dict[str, float]:
        """Count how many left-out sentences each option gets right, choose one, calibrate.

        The fittest option is chosen unless another is better by more than a standard error, the square root
        of the number of errors. The count is made in single precision, which takes half the time.
        """
        visible = torch.tensor(self.visible_rows(), dtype=torch.long)
        valid = self._among(valid, self.past.counts > 0)
        none = Taught(valid.features[:0], [])
        new = 0 if learnt is None else len(learnt.labels)
        learnt = none if learnt is None else self._among(spread_over(learnt, MOST), self.past.counts > 1)
        open_ = self.options[: self._open()]
        outcomes: dict[Option, Tried] = {}
        if n := len(valid.labels) + len(learnt.labels):
            outcomes = self._outcomes(valid, learnt)
            # What is not tried counts as its nearest neighbour that was: neither for nor against it.
            near = [
                next(
                    other
                    for other in (one, (0.0, *one[1:]), (*one[:2], float(self.width)))
                    if other in outcomes
                )
                for one in self.options
            ]
            right = [outcomes[one].right for one in near]
            self.evidence = self.evidence + torch.tensor([n, *right], dtype=torch.float64)
        total, *every = self.evidence.tolist()
        count = dict(zip(self.options, every, strict=True))
        fittest = max(open_, key=self.fitness)
        best = max(open_, key=lambda one: (count[one], self.fitness(one)))
        clear = count[best] - count[fittest] > math.sqrt(max(total - count[fittest], 0.0))
        self.chosen = best if clear else fittest
        notes = {"shrinkage": self.amount(self.chosen), "columns": self.chosen[2]}
        if not outcomes:
            self._renew()
            return notes
        tried = outcomes.get(self.chosen)
        found = self.outside(valid, learnt, self.chosen) if tried is None else tried.scored
        self._calibrate(valid, learnt, found, 1 - new / float(self.past.counts.sum()))
        return notes | self._quality(found, visible)

    def _outcomes(self, valid: Taught, learnt: Taught) -> dict[Option, Tried]:
        """Return what each option that is worth trying makes of left-out sentences, in single precision.

        Random features cost most. They are tried with the usual shrinkage, and with that of the two others
        which did better without them; but not if they are so many more than sentences that they cannot win.
        """
        visible = torch.tensor(self.visible_rows(), dtype=torch.long)
        single: dict[tuple[float, ...], Tensor | None] = {}
        outcomes: dict[Option, Tried] = {}

        def tried(option: Option) -> Tried:
            if option[1:] not in single:
                single[option[1:]] = None if self.alone else self._covariance(option).float()
            found = self.outside(valid, learnt, option, single[option[1:]])
            right = visible[found.scores[:, visible].argmax(1)] == found.rows
            return Tried(found, float(right.sum()))

        for option in self.options[: self._open()]:  # those without random features come first
            step, kind, columns = option
            if columns == self.width:
                outcomes[option] = tried(option)
            elif self.free >= columns / 4:
                same, opposite = (outcomes[sign * step, kind, float(self.width)].right for sign in (1, -1))
                if step == 0 or (same, step) > (opposite, -step):
                    outcomes[option] = tried(option)
        return outcomes

    def _among(self, data: Taught, there: Tensor) -> Taught:
        """Return the sentences whose labels are known and marked in `there`."""
        known = {label for label, ok in zip(self.labels, there.tolist(), strict=True) if ok}
        places = [i for i, label in enumerate(data.labels) if label in known]
        return Taught(data.features[places], [data.labels[i] for i in places])

    def _quality(self, found: Scored, visible: Tensor) -> dict[str, float]:
        """Return the macro-F1 of left-out sentences and the standard error of their accuracy."""
        best = visible[found.scores[:, visible].argmax(1)]
        share, n = float((found.rows == best).double().mean()), len(best)
        names = [[self.labels[row] for row in rows.tolist()] for rows in (found.rows, best)]
        return {"left_out": macro_f1(*names), "left_out_error": math.sqrt(share * (1 - share) / n)}

    # ---- calibration --------------------------------------------------------------------------------------

    def _calibrate(self, valid: Taught, learnt: Taught, found: Scored, before: float) -> None:
        """Compare left-out sentences with drawn ones of the same labels, then renew the marks.

        `before` is the share of sentences that were known before. Real and drawn sentences differ by the
        error of the covariance, which falls with the number of sentences: a lesson that adds many of them
        makes earlier differences stale.
        """
        if not self.drawable:
            return self._renew()
        visible = self.visible_rows()
        place = torch.zeros(len(self.labels), dtype=torch.long)
        place[visible] = torch.arange(len(visible))
        left_out = self.relative.of(self._far_columns(learnt.features), self.rows(learnt.labels))
        far = [self.distances(valid.features), left_out]
        real = Seen(found.scores[:, visible], place[found.rows], torch.cat(far))
        drawn = self._drawn()
        n = len(real.gold)
        own = sorted({*real.gold.tolist()})
        like = (drawn if len(own) == len(visible) else self._drawn(torch.tensor(own))).parts(n)
        self.offsets = before**STALE * FADE ** (n / MOST) * self.offsets
        self.offsets[0] += n
        self.offsets[1] += n * (calibration.warmth(real) - fmean(map(calibration.warmth, like)))
        warmth = calibration.warmth(drawn) + float(self.offsets[1] / self.offsets[0])
        drawn_like = torch.stack([calibration.measured(one, warmth) for one in like]).mean(0)
        self.offsets[2:] += n * (calibration.measured(real, warmth) - drawn_like)
        self._renew(drawn)

    def _renew(self, drawn: Seen | None = None) -> None:
        """Set the marks for the present statistics."""
        self.marks = torch.zeros_like(self.marks)
        if self.drawable:
            drawn = drawn or self._drawn()
            mean = self.offsets[1:] / self.offsets[0].clamp(min=1) * self.tested
            warmth = calibration.warmth(drawn) + float(mean[0])
            found = calibration.measured(drawn, warmth) + mean[1:]
            far, sets = (part.cummax(0).values for part in found.chunk(2))
            self.marks = torch.cat([mean.new_tensor([math.exp(warmth)]), far, sets.clamp(0, 1)])

    @property
    def tested(self) -> bool:
        """Whether enough sentences were left out to say how real and drawn ones differ."""
        return float(self.offsets[0]) >= FEW

    @property
    def drawable(self) -> bool:
        """Whether there are at least two labels, and sentences to tell how those of one label differ."""
        return len(self.visible_rows()) > 1 and self.free >= 1

    def _drawn(self, places: Tensor | None = None) -> Seen:
        """Return sentences drawn from the Gaussian of each class, as many of each; `places` limits them."""
        visible = self.visible_rows()
        places = torch.arange(len(visible)) if places is None else places
        some = places[:: math.ceil(len(places) / DRAWS)]
        gold = some.repeat_interleave(DRAWS // len(some))
        noise = numpy.random.RandomState(self.seed).standard_normal((len(gold), self.width))
        within = self._spread(balanced=False)[: self.width, : self.width]
        # A few sentences differ in a few directions; further ones differ in others too.
        spread = factored(shrunk(within, self._plain_amount(self.width))).float()
        means = self.past.means()[visible][:, : self.width].float()
        drawn = (means[gold] + torch.from_numpy(noise).float() @ spread.T) / self.scale
        if self.normalised:
            layers = drawn.chunk(self.blocks, dim=1)
            drawn = torch.cat([functional.normalize(one, dim=1) for one in layers], 1)
        return Seen(self(drawn)[:, visible].double(), gold, self.distances(drawn))

    @property
    @override
    def temperature(self) -> float:
        return ALONE if self.alone else float(self.marks[0]) or UNTOLD

    @property
    @override
    def calibrated(self) -> bool:
        return bool(self.marks[0])

    @override
    def warm(self, valid: Taught) -> None:
        """Do nothing: `settle` calibrates."""

    # ---- unknown inputs -----------------------------------------------------------------------------------

    @override
    def distances(self, features: Tensor) -> Tensor:
        """Return the relative Mahalanobis distance on the last layer."""
        return self.relative.of(self._far_columns(features))

    @property
    def relative(self) -> RelativeDistance:
        """The distance of z on the last layer under the present statistics."""
        if self._far is None:
            last = self._last
            spread = self._spread(balanced=False)[last, last]
            self._far = RelativeDistance(self.past, last, spread, max(FAR, self._plain_amount(len(spread))))
        return self._far

    @property
    def _last(self) -> slice:
        """The columns of the last layer."""
        return slice(self.width - self.width // self.blocks, self.width)

    def _far_columns(self, features: Tensor) -> Tensor:
        return self.scale * features.double().cpu()[:, self._last]

    def _plain_amount(self, columns: int) -> float:
        """Return the usual shrinkage of so many columns of z."""
        odds = usual(columns, self.free, lifted=False)
        return odds / (1 + odds)

    @override
    def threshold(self, keep: float) -> float:
        return self._mark(keep, 1, "rejection")

    @override
    def set_threshold(self, cover: float) -> float:
        return self._mark(cover, 1 + len(calibration.LEVELS), "sets")

    def _mark(self, level: float, first: int, what: str) -> float:
        levels = calibration.LEVELS
        if not levels[0] <= level <= levels[-1]:
            raise HoldfastError(
                f"{what} can keep between {levels[0]} and {levels[-1]} of known inputs, not {level}"
            )
        if not self.calibrated:
            raise HoldfastError(f"{what} needs two labels, one of them with two sentences; learn more first")
        if not self.tested:
            raise HoldfastError(
                f"{what} needs about {FEW} sentences of labels with two or more, to know how far known "
                "sentences lie; learn more first"
            )
        marks = self.marks[first : first + len(levels)].tolist()
        return float(numpy.interp(level, levels, marks))

    # ---- statistics ---------------------------------------------------------------------------------------

    @override
    def statistics(self) -> Params:
        chosen = torch.tensor(self.chosen, dtype=torch.float64)
        own = {"evidence": self.evidence, "offsets": self.offsets, "marks": self.marks}
        return {**self.past.state(), "chosen": chosen, **own}

    @override
    def become(self, labels: Sequence[str], seen: Sequence[str]) -> None:
        self.past = ClassSums(self.whole, self.past.scatter)
        super().become(labels, seen)

    @override
    def misfit(self, statistics: Params) -> str:
        """Once the encoder has moved the sums are those of z alone."""
        own, sums = self.past, statistics.get("sums")
        if sums is not None and sums.dim() == 2 and sums.shape[1] == self.width:
            self.past = ClassSums(self.width, own.scatter)
            self.past.grow(len(self.labels))
        try:
            if wrong := super().misfit(statistics):
                return wrong
            if tuple(statistics["chosen"].tolist()) not in self.options[: self._open()]:
                return "chosen"
        finally:
            self.past = own
        evidence, offsets, marks = (statistics[name] for name in ("evidence", "offsets", "marks"))
        if len(evidence) != len(self.evidence) or (evidence < 0).any():
            return "evidence"
        if offsets[0] < 0 or offsets[1].abs() > 20 * offsets[0]:
            return "offsets"
        return "marks" if marks[0] < 0 else ""

    def _open(self) -> int:
        """Return how many of the options fit the width of the sums."""
        return sum(option[2] <= self.past.width for option in self.options)

    @override
    def load_statistics(self, statistics: Params) -> None:
        own = self.statistics()
        if _equal(own, statistics):
            return  # what has been solved stays valid
        if self._left is not None and _equal(self._left[0], statistics):
            vars(self).update(self._left[1])
            self._left = None
            return
        # A trial is left for the start of its task, and is loaded again if it is adopted.
        left = own, {name: vars(self)[name] for name in SOLVED}
        self.past = ClassSums(statistics["sums"].shape[1], self.past.scatter)
        self.past.load(statistics)
        self.chosen = tuple(statistics["chosen"].tolist())
        self.evidence, self.offsets, self.marks = (
            statistics[name].cpu() for name in ("evidence", "offsets", "marks")
        )
        self.changed()
        self._left = left

    @override
    def drop(self, row: int) -> str:
        found = super().drop(row)
        self._renew()
        return found

    @override
    def merge(self, other: SumsHead) -> None:
        assert isinstance(other, LiftedHead)
        if self.options != other.options or self.shrinkage != other.shrinkage:
            raise HoldfastError("learners with different shrinkage or weighting cannot be merged")
        self.offsets = self.offsets + other.offsets
        super().merge(other)

    @override
    def changed(self) -> None:
        super().changed()
        self._far = self._noises = self._left = None


def _equal(some: Params, others: Params) -> bool:
    """Return whether two statistics are the same to the bit."""
    return some.keys() == others.keys() and all(
        some[name].shape == other.shape and torch.equal(some[name], other.cpu())
        for name, other in others.items()
    )


def spread_over(data: Taught, most: int) -> Taught:
    """Return at most `most` of the sentences, spread over the labels, whatever their order."""
    if len(data.labels) <= most:
        return data
    leading = data.features[:, :4].tolist()
    order = sorted(range(len(data.labels)), key=lambda i: (data.labels[i], leading[i]))
    places = [order[i * len(order) // most] for i in range(most)]
    return Taught(data.features[places], [data.labels[i] for i in places])

"""Class sums, the memory of a computed head: independent of order, and exact.

Per label k: n_k, s_k = Σ z, and the second moments. Sums do not depend on order or batching: learning a class
later equals learning it jointly, two states can be added, and a class can be removed as if it had never been
learnt.

With one scatter per class, a class of at most d sentences keeps a factor of it: R_k, upper trapezoidal with
n_k - 1 rows, R_kᵀ R_k = Σ (z - μ_k)(z - μ_k)ᵀ. It is smaller than the matrix and, being around the mean,
loses nothing to cancellation. A larger class keeps S_k = Σ z zᵀ, of which the upper triangle is stored.
A pooled scatter is a factor of Σ_k R_kᵀ R_k in the same way, up to d / `FEWER` sentences beyond the first of
each class; then it is S = Σ z zᵀ.
Factors are rounded to six bytes a number whenever they change, so that saving and loading change nothing.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from holdfast.errors import HoldfastError
from holdfast.maths.params import Params, misfit
from holdfast.maths.products import cholesky, gram, half_gram, mirrored

JITTERS = (0.0, 1e-12, 1e-10, 1e-8, 1e-6, 1e-4)  # shares of the mean diagonal
FEWER = 4  # with more rows than a quarter of d, updating a pooled factor takes longer than updating S
FOREIGN = 1e-3  # relative error of removed vectors that is still taken for an encoder's rounding
NO_SQUARES = "the sums of the head are no sums of squares; restore the state, or go back a generation"
Scatter = Literal["per-class", "pooled"]


class ClassSums:
    """n_k, s_k and the scatter of every label; `pooled` keeps one S for all, without exact removal of labels.

    Nothing is changed in place: `state` and copies share tensors.
    """

    names = ("counts", "sums", "triangles", "ranks", "factors")
    """The tensors that `state` may hold."""

    def __init__(self, width: int, scatter: Scatter = "per-class") -> None:
        self.width = width
        self.scatter = scatter
        self.counts = torch.zeros(0, dtype=torch.float64)
        self.sums = torch.zeros(0, width, dtype=torch.float64)
        # Per class, or one of all: a matrix is the factor R_k, a vector the packed triangle of S_k.
        self._scatters = [self.sums.new_zeros(0, width)] if scatter == "pooled" else []
        self._within: Tensor | None = None
        # Rows that `left_out` has taken from the counts and sums of a class, but not yet from its scatter.
        self._gone: dict[int, Tensor] = {}

    @property
    def bytes_per_label(self) -> int:
        """Memory that one more label takes, at most: that of a label with more than d sentences."""
        own = 1 + self._triangle if self.scatter == "per-class" else 0
        return self.sums.element_size() * (1 + self.width + own)

    # ---- adding, removing, moving -------------------------------------------------------------------------

    def grow(self, classes: int) -> None:
        """Add zeros for new labels."""
        self.counts = torch.cat([self.counts, self.counts.new_zeros(classes)])
        self.sums = torch.cat([self.sums, self.sums.new_zeros(classes, self.width)])
        if self.scatter == "per-class":
            self._scatters = [*self._scatters, *(self.sums.new_zeros(0, self.width) for _ in range(classes))]

    def add(self, features: Tensor, rows: Tensor, sign: int = 1) -> None:
        """Add vectors to their classes, or remove them again (sign = -1)."""
        z = features.detach().double().cpu()
        counts, sums = self._counted(z, rows, sign)
        if self.scatter == "pooled":
            self._replace(counts, sums, [self._pooled(z, rows, sign, counts, sums)])
            return
        scatters = [self._scatter(row) for row in range(len(self.counts))]
        for row in sorted(set(rows.tolist())):
            own, old = z[rows == row], scatters[row]
            if sign < 0:
                scatters[row] = self._less(old, counts[row], sums[row], own)
            elif old.dim() == 1:
                scatters[row] = old + packed(half_gram(own))
            else:
                more = torch.cat([old, steps(self.counts[row], self.sums[row], own)])
                scatters[row] = self._stored(more, counts[row], sums[row])
        self._replace(counts, sums, scatters)

    def left_out(self, features: Tensor, rows: Tensor) -> ClassSums:
        """Return the sums without these rows, for a while: a scatter is recomputed only if it is used."""
        other = copy.copy(self)
        if self.scatter == "pooled":
            other.add(features, rows, -1)
            return other
        z = features.detach().double().cpu()
        counts, sums = self._counted(z, rows, -1)
        other._replace(counts, sums, list(self._scatters))
        found = {row: z[rows == row] for row in sorted(set(rows.tolist()))}
        taken = [steps(counts[row], sums[row], own) for row, own in found.items()]
        other._within = self.within() - gram(torch.cat([z[:0], *taken]))
        other._gone = self._gone | {
            row: torch.cat([self._gone.get(row, own[:0]), own]) for row, own in found.items()
        }
        return other

    def merge(self, other: ClassSums, rows: Sequence[int]) -> None:
        """Add the sums of `other`; `rows` are the rows of its classes in this object, and may repeat."""
        where = torch.tensor(rows, dtype=torch.long)
        counts = self.counts.index_add(0, where, other.counts)
        sums = self.sums.index_add(0, where, other.sums)
        if self.scatter == "pooled":
            self._replace(counts, sums, [self._united(other, rows)])
            return
        scatters = [self._scatter(row) for row in range(len(self.counts))]
        number, total = self.counts.clone(), self.sums.clone()  # of what is in `scatters` already
        for its, row in enumerate(rows):
            mine, theirs = scatters[row], other._scatter(its)
            n, m, mine_sum, their_sum = (
                number[row].clone(),
                other.counts[its],
                total[row].clone(),
                other.sums[its],
            )
            number[row] += m
            total[row] += their_sum
            if not n:
                scatters[row] = theirs
            elif not m:
                continue
            elif mine.dim() == theirs.dim() == 2:
                between = (n * m / (n + m)).sqrt() * (mine_sum / n - their_sum / m)
                more = torch.cat([mine, theirs, between[None]])
                scatters[row] = self._stored(more, number[row], total[row])
            else:
                scatters[row] = raw(mine, mine_sum, n) + raw(theirs, their_sum, m)
        self._replace(counts, sums, scatters)

    def remove(self, row: int) -> None:
        """Remove a class: completely with one scatter per class; a pooled S keeps its share."""
        kept = [i for i in range(len(self.counts)) if i != row]
        counts, sums = self.counts[kept], self.sums[kept]
        if self.scatter == "per-class":
            scatters = [self._scatter(i) for i in kept]
        elif kept:
            # The covariance around the class means stays as it is; the mean of the class leaves S.
            before, after = (max(float(n.sum()) - int((n > 0).sum()), 1.0) for n in (self.counts, counts))
            if self._scatters[0].dim() == 2:
                scatters = [rounded(self._scatters[0] * math.sqrt(after / before))]
            else:
                scaled = sums / counts.clamp(min=1).sqrt()[:, None]
                scatters = [packed(self.within() * (after / before) + gram(scaled))]
        else:
            scatters = [self.sums.new_zeros(0, self.width)]
        self._replace(counts, sums, scatters)

    def carry(self, move: Tensor) -> None:
        """Move the sums with the features, z -> z (I + T): s_k (I + T), R_k (I + T), (I + T)ᵀ S_k (I + T)."""
        along = torch.eye(self.width, dtype=torch.float64) + move.double()
        scatters = [
            trapezoid(one @ along) if one.dim() == 2 else packed(along.T @ square(one, self.width) @ along)
            for one in map(self._scatter, range(len(self._scatters)))
        ]
        self._replace(self.counts, self.sums @ along, scatters)

    # ---- what heads are computed from ---------------------------------------------------------------------

    def means(self) -> Tensor:
        """Return μ_k of every class; 0 for a class without samples."""
        return self.sums / self.counts.clamp(min=1)[:, None]

    def moments(self) -> Tensor:
        """Return S = Σ z zᵀ over all classes."""
        if self._raw:
            return square(self._scatters[0], self.width)
        return self.within() + gram(self._scaled())

    def within(self) -> Tensor:
        """Return Σ_k Σ_z (z - μ_k)(z - μ_k)ᵀ, over the classes k and their vectors z."""
        if self._within is None:
            if self._raw:
                self._within = self.moments() - gram(self._scaled())
            elif self.scatter == "pooled":
                self._within = gram(self._scatters[0])
            else:
                self._within = self._summed(torch.ones_like(self.counts))
        return self._within

    def covariance(self, *, balanced: bool = False) -> Tensor:
        """Return Σ = within / max(N - K, 1), the covariance around the class means; identity if it is 0.

        `balanced`, if not pooled, gives every class the same weight: the mean of the class covariances.
        """
        present = int((self.counts > 0).sum())
        if balanced and self.scatter == "per-class":
            total = self._summed(1 / (self.counts.clamp(min=1) * present))
        else:
            total = self.within() / max(float(self.counts.sum()) - present, 1.0)
        # A covariance of pure rounding error (one sample per class) counts as 0.
        size = float(self.within().trace() + self._scaled().square().sum())
        rounding = 1e-12 * size / max(float(self.counts.sum()), 1.0)
        if float(self.counts.sum()) <= present or float(total.trace()) <= rounding:
            return torch.eye(self.width, dtype=torch.float64)
        return total

    def size(self) -> float:
        """Return Σ |z|² over all vectors."""
        every = [self._scatter(row) for row in range(len(self._scatters))]
        diagonal = torch.arange(self.width, 0, -1).cumsum(0) - torch.arange(self.width, 0, -1)
        around = sum(float((one[diagonal] if one.dim() == 1 else one.square()).sum()) for one in every)
        # A factor is around the means.
        factors = torch.tensor([one.dim() == 2 for one in every], dtype=torch.bool)
        inside = factors if self.scatter == "per-class" else factors.expand(len(self.counts))
        return around + float(self._scaled()[inside].square().sum())

    def sound(self, size: float) -> bool:
        """Return whether the scatters can be those of real vectors, up to an encoder's rounding of `size`.

        Removing vectors that were never added may leave a matrix that is no sum of squares. Factors are
        checked when vectors are removed. With far more vectors than dimensions not every mistake shows.
        """
        if self.scatter == "pooled":
            return not self._raw or _is_sum_of_squares(self.within(), size)
        whole = [row for row in range(len(self.counts)) if self._scatter(row).dim() == 1]
        return all(_is_sum_of_squares(self._centred(row), size) for row in whole)

    def deviations(self, row: int) -> Tensor:
        """Return rows R with RᵀR = Σ (z - μ_k)(z - μ_k)ᵀ, as few as are known to do."""
        scatter = self._scatter(row)
        if scatter.dim() == 2:
            return scatter
        values, vectors = eigen(self._centred(row))
        found: Tensor = (vectors * values.clamp(min=0).sqrt()).T
        return found

    def leading(self, width: int) -> ClassSums:
        """Return the sums of the first columns, of a pooled scatter."""
        found = ClassSums(width, self.scatter)
        scatter = packed(self.moments()[:width, :width])
        if not self._raw and len(self._scatters[0]) <= found.most:
            scatter = trapezoid(self._scatters[0][:, :width])
        found._replace(self.counts, self.sums[:, :width], [scatter])
        return found

    # ---- saving -------------------------------------------------------------------------------------------

    def state(self) -> Params:
        """Return the sums by name.

        `ranks` holds the number of rows of each factor, or -1 for a scatter whose triangle is in `triangles`;
        `factors` holds the factors without their zeros, six bytes a number. A pooled triangle needs neither.
        """
        every = [self._scatter(row) for row in range(len(self._scatters))]
        whole = [one for one in every if one.dim() == 1]
        triangles = torch.stack(whole) if whole else self.sums.new_zeros(0, self._triangle)
        found = {"counts": self.counts, "sums": self.sums, "triangles": triangles}
        if self._raw:
            return found
        ranks = torch.tensor([len(one) if one.dim() == 2 else -1 for one in every], dtype=torch.long)
        flat = torch.cat([self.counts[:0], *(packed(one) for one in every if one.dim() == 2)])
        return {**found, "ranks": ranks, "factors": six_bytes(flat)}

    def load(self, state: Params) -> None:
        """Restore the result of `state`. Older states hold the triangle of every class."""
        triangles = iter(state["triangles"].cpu())
        if "ranks" not in state:
            scatters = list(triangles)
        else:
            ranks = state["ranks"].tolist()
            sizes = [_size(max(rank, 0), self.width) for rank in ranks]
            flat = torch.split(eight_bytes(state["factors"].cpu()), sizes)
            scatters = [
                next(triangles) if rank < 0 else unpacked(part, rank, self.width)
                for rank, part in zip(ranks, flat, strict=True)
            ]
        self._replace(state["counts"].cpu(), state["sums"].cpu(), scatters)

    def misfit(self, state: Params) -> str:
        """Return the name of the first tensor that cannot belong to sums of these classes, or ''."""
        found = {name: state[name] for name in self.names if name in state}
        expected = {"counts": self.counts, "sums": self.sums}
        whole = len(self._scatters)
        if not {"ranks", "factors"}.isdisjoint(state):
            expected["ranks"] = torch.zeros(whole, dtype=torch.long)
            counted = {name: found[name] for name in expected if name in found}
            if wrong := misfit(expected, counted):
                return wrong
            ranks = found["ranks"]
            full = found["counts"].sub(1).clamp(min=0)
            possible = (ranks == full) & (ranks < self.width)
            if self.scatter == "pooled":  # more than `full` once a class was removed, whose share stays
                possible = (ranks >= full.sum()) & (ranks <= self.most)
            if not ((ranks == -1) | possible).all():
                return "ranks"
            whole = int((ranks < 0).sum())
            numbers = sum(_size(rank, self.width) for rank in ranks.tolist() if rank > 0)
            expected["factors"] = torch.empty(numbers, 3, dtype=torch.int16, device="meta")
        expected["triangles"] = torch.empty(whole, self._triangle, dtype=torch.float64, device="meta")
        if wrong := misfit(expected, found):
            return wrong
        exponent = 0x7FF0
        strange = "factors" in found and ((found["factors"][:, 2] & exponent) == exponent).any()
        return "factors" if strange else ""

    # ---- scatters -----------------------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """Number of rows up to which a pooled scatter is a factor."""
        return self.width // FEWER

    @property
    def _raw(self) -> bool:
        """Whether there is one S for all."""
        return self.scatter == "pooled" and self._scatters[0].dim() == 1

    @property
    def _triangle(self) -> int:
        return _size(self.width, self.width)

    def _replace(self, counts: Tensor, sums: Tensor, scatters: list[Tensor]) -> None:
        self.counts, self.sums, self._scatters = counts, sums, scatters
        self._within, self._gone = None, {}

    def _pooled(self, z: Tensor, rows: Tensor, sign: int, counts: Tensor, sums: Tensor) -> Tensor:
        """Return the pooled scatter with these vectors; `counts` and `sums` are those with them."""
        old, known = self._scatters[0], sorted(set(rows.tolist()))
        if old.dim() == 1:
            return old + sign * packed(half_gram(z))
        if sign > 0 and len(old) + len(z) - int((self.counts[known] == 0).sum()) > self.most:
            return self._moments(z)
        before = (self.counts, self.sums) if sign > 0 else (counts, sums)
        more = [steps(before[0][row], before[1][row], z[rows == row]) for row in known]
        changed = torch.cat([z[:0], *more])
        if not len(changed):
            return old
        if sign > 0:
            return trapezoid(torch.cat([old, changed]))
        size = float(old.square().sum() + z.square().sum() + sums.square().sum(1) @ (1 / counts.clamp(min=1)))
        return trapezoid(lowered(old, changed, len(old) - len(changed), size))

    def _united(self, other: ClassSums, rows: Sequence[int]) -> Tensor:
        """Return the pooled scatter with that of `other`, see `merge`."""
        if not self._raw and not other._raw:
            number, total = self.counts.clone(), self.sums.clone()
            between = [self.sums[:0]]
            for its, row in enumerate(rows):
                n, m = number[row].clone(), other.counts[its]
                if n and m:
                    apart = total[row] / n - other.sums[its] / m
                    between.append(((n * m / (n + m)).sqrt() * apart)[None])
                number[row] += m
                total[row] += other.sums[its]
            more = torch.cat([self._scatters[0], other._scatters[0], *between])
            if len(more) <= self.most:
                return trapezoid(more)
        return self._moments() + other._moments()

    def _moments(self, *more: Tensor) -> Tensor:
        """Return the packed triangle of a pooled S, with more vectors."""
        if self._raw:
            return self._scatters[0]
        return packed(half_gram(torch.cat([self._scatters[0], self._scaled(), *more])))

    def _counted(self, z: Tensor, rows: Tensor, sign: int) -> tuple[Tensor, Tensor]:
        """Return the counts and sums with these vectors added or removed."""
        counts = self.counts.index_add(0, rows, z.new_ones(len(rows)), alpha=sign)
        if (counts < 0).any():
            raise HoldfastError("more sentences would be removed than were learnt; check their labels")
        return counts, self.sums.index_add(0, rows, z, alpha=sign)

    def _scaled(self) -> Tensor:
        """Return s_k / √n_k: ΣΣ over their products is what class means add to S."""
        return self.sums / self.counts.clamp(min=1).sqrt()[:, None]

    def _scatter(self, row: int) -> Tensor:
        """Return the factor or the triangle of a class, or of all."""
        if row in self._gone:
            gone = self._gone.pop(row)
            self._scatters[row] = self._less(self._scatters[row], self.counts[row], self.sums[row], gone)
        return self._scatters[row]

    def _less(self, old: Tensor, count: Tensor, total: Tensor, gone: Tensor) -> Tensor:
        """Return a scatter without some vectors; `count` and `total` are those of the vectors that stay."""
        if not count:
            return gone[:0]
        if old.dim() == 1:
            return old - packed(half_gram(gone))
        taken = steps(count, total, gone)
        size = float(old.square().sum() + gone.square().sum() + total.square().sum() / count)
        return trapezoid(lowered(old, taken, int(count) - 1, size))

    def _stored(self, rows: Tensor, count: Tensor, total: Tensor) -> Tensor:
        """Return the scatter of a class with these deviations: a factor while it is the smaller form."""
        if len(rows) < self.width:
            return trapezoid(rows)
        return packed(gram(rows) + torch.outer(total, total) / count)

    def _centred(self, row: int) -> Tensor:
        """Return Σ (z - μ_k)(z - μ_k)ᵀ."""
        scatter = self._scatter(row)
        if scatter.dim() == 2:
            return gram(scatter)
        total = self.sums[row]
        return square(scatter, self.width) - torch.outer(total, total) / self.counts[row].clamp(min=1)

    def _summed(self, weights: Tensor) -> Tensor:
        """Return Σ_k weight_k Σ_z (z - μ_k)(z - μ_k)ᵀ, with one product for all factors."""
        every = [self._scatter(row) for row in range(len(self.counts))]
        whole = [row for row, one in enumerate(every) if one.dim() == 1]
        factors = [one * weights[row].sqrt() for row, one in enumerate(every) if one.dim() == 2]
        total = gram(torch.cat([self.sums[:0], *factors]))
        if whole:
            some = torch.tensor(whole)
            triangle = sum((weights[row] * every[row] for row in whole), start=torch.zeros(()))
            total += square(triangle, self.width)
            total -= gram(self._scaled()[some] * weights[some].sqrt()[:, None])
        return total


def steps(count: Tensor, total: Tensor, new: Tensor) -> Tensor:
    """Return the rows that new vectors add to the scatter of a class of this count and sum.

    Welford's update, vector by vector: √(n / (n + 1)) (z - μ), where n and μ are those before z. The first
    vector of a class adds none.
    """
    before = torch.cat([total[None], total + new.cumsum(0)])[:-1]
    n = count + torch.arange(len(new), dtype=torch.float64)
    rows = (n / (n + 1)).sqrt()[:, None] * (new - before / n.clamp(min=1)[:, None])
    return rows if count else rows[1:]


def lowered(factor: Tensor, rows: Tensor, rank: int, size: float) -> Tensor:
    """Return a matrix of `rank` rows whose product is RᵀR - ZᵀZ, where Z lies in the row space of R.

    `size` is the squared norm of the vectors behind the factor, against which rounding errors are judged.
    """
    basis, left = torch.linalg.qr(factor.T)  # RᵀR = B L Lᵀ Bᵀ
    inside = rows @ basis
    values, vectors = eigen(left @ left.T - inside.T @ inside)
    outside = float((rows - inside @ basis.T).square().sum())
    if outside > FOREIGN**2 * size or (values < -(FOREIGN**2) * size).any():
        raise HoldfastError("these sentences are not what was learnt under their labels; check the file")
    first = len(values) - rank
    found: Tensor = (vectors[:, first:] * values[first:].clamp(min=0).sqrt()).T @ basis.T
    return found


def trapezoid(rows: Tensor) -> Tensor:
    """Return the upper trapezoidal R of as many rows with the same RᵀR, its diagonal not negative.

    Rounded to what is stored, so that saving and loading change nothing.
    """
    if not len(rows):
        return rows
    factor: Tensor = torch.linalg.qr(rows, mode="r").R
    signs = torch.where(factor.diagonal() < 0, -1.0, 1.0).to(factor)
    return rounded(factor * signs[:, None])


def rounded(values: Tensor) -> Tensor:
    """Return doubles of which the last 16 bits are 0: a relative error of at most 2⁻³⁷ = 7.3e-12."""
    bits = values.contiguous().view(torch.int64)
    return ((bits + 0x8000) & ~0xFFFF).view(torch.float64)


def six_bytes(values: Tensor) -> Tensor:
    """Return the six high bytes of rounded doubles, as three 16-bit numbers each, the lowest first."""
    return values.view(torch.int16).reshape(-1, 4)[:, 1:].contiguous()


def eight_bytes(parts: Tensor) -> Tensor:
    """Return the doubles whose six high bytes these are."""
    whole = torch.zeros(len(parts), 4, dtype=torch.int16)
    whole[:, 1:] = parts
    return whole.view(torch.float64).reshape(-1)


def raw(scatter: Tensor, total: Tensor, count: Tensor) -> Tensor:
    """Return the packed triangle of S_k from either form of a class's scatter."""
    return scatter if scatter.dim() == 1 else packed(gram(scatter) + torch.outer(total, total) / count)


def packed(matrix: Tensor) -> Tensor:
    """Return the entries of a matrix on and above its diagonal, row by row."""
    return torch.cat([row[i:] for i, row in enumerate(matrix)]) if len(matrix) else matrix.reshape(0)


def unpacked(values: Tensor, rows: int, width: int) -> Tensor:
    """Return the upper triangular or trapezoidal matrix of these entries."""
    matrix = values.new_zeros(rows, width)
    for i, part in enumerate(torch.split(values, [width - i for i in range(rows)])):
        matrix[i, i:] = part
    return matrix


def square(triangle: Tensor, width: int) -> Tensor:
    """Return the symmetric matrix of a packed triangle."""
    return mirrored(unpacked(triangle, width, width))


def factored(matrix: Tensor) -> Tensor:
    """Return the Cholesky factor of a symmetric matrix; one that is nearly singular is regularised."""
    scale = matrix.diagonal().mean()
    for jitter in JITTERS:
        some = matrix + jitter * scale * torch.eye(len(matrix)).to(matrix) if jitter else matrix
        factor = cholesky(some)
        if factor is not None and torch.isfinite(factor.diagonal()).all():
            return factor
    raise HoldfastError(NO_SQUARES)


def _is_sum_of_squares(matrix: Tensor, size: float) -> bool:
    """Return whether no eigenvalue is clearly negative; `size` is the scale of rounding errors."""
    slack = FOREIGN**2 * size * torch.eye(len(matrix)).to(matrix)
    return not size or cholesky(matrix + slack) is not None


def eigen(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the eigenvalues of a symmetric matrix, rising, and its eigenvectors in columns."""
    if not torch.isfinite(matrix).all():
        raise HoldfastError(NO_SQUARES)
    values, vectors = torch.linalg.eigh(matrix)
    return values, vectors


def _size(rows: int, width: int) -> int:
    """Return the number of entries of an upper trapezoidal matrix."""
    return rows * width - rows * (rows - 1) // 2

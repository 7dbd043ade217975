"""The scoring of a head as a module of plain tensors, which can be exported.

A head computes its scores from sums, on demand. What it has computed is fixed here: `Lift` turns sentence
vectors into other features, `Scoring` turns both into probabilities and the distance of `--reject`. Both
consist of float32 tensors, without what only learning needs, and with rows of known labels only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from holdfast.errors import HoldfastError
from holdfast.heads import Head, KLDAHead, LiftedHead, LinearHead, RanPACHead, RDAHead, SLDAHead
from holdfast.heads.closed import SumsHead
from holdfast.heads.random_features import FourierLDA
from holdfast.maths.params import Params


class Stored(nn.Module):
    """A module that consists of named tensors; it can be made again from its `state_dict`."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().float().cpu().contiguous())

    def at(self, name: str) -> Tensor:
        """Return a tensor."""
        return self.get_buffer(name)

    @property
    def names(self) -> set[str]:
        """The names of the tensors."""
        return {name for name, _ in self.named_buffers()}


class Lift(Stored):
    """Random rectified features of a sentence vector: relu(zP)."""

    @override
    def forward(self, vectors: Tensor) -> Tensor:
        return (vectors @ self.at("projection")).relu()


class Scoring(Stored):
    """Probabilities of labels and, where the head has them, distances from the nearest class."""

    @property
    def far(self) -> bool:
        """Whether there are distances."""
        return bool({"white", "0/white"} & self.names)

    @override
    def forward(self, vectors: Tensor, lifted: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the probabilities, then the distances if there are any."""
        probabilities = (self.scores(vectors, lifted) / self.at("temperature")).softmax(1)
        return (probabilities, self.distances(vectors, lifted)) if self.far else (probabilities,)

    def scores(self, vectors: Tensor, lifted: Tensor | None) -> Tensor:
        """Return the scores of a head that is linear in all of its features, or in the lifted ones."""
        weight, x = self.at("weight"), _joined(vectors, lifted)
        return functional.linear(x[:, x.shape[1] - weight.shape[1] :], weight, self.at("bias"))

    def distances(self, vectors: Tensor, lifted: Tensor | None) -> Tensor:
        """Return the squared Mahalanobis distance to the nearest class, relative to all classes or not."""
        x = _joined(vectors, lifted)
        if "around" in self.names:  # on the last layer alone
            x = vectors[:, -self.at("white").shape[0] :]
        near = _nearest(x - self.at("middle"), self.at("white"), self.at("centres"))
        if "around" not in self.names:
            return near
        return near - ((x - self.at("middle")) @ self.at("around")).square().sum(1)


class BlendedScoring(Scoring):
    """The scores of RDAHead, up to a constant that no probability depends on."""

    @override
    def scores(self, vectors: Tensor, lifted: Tensor | None) -> Tensor:
        w = (vectors - self.at("own_middle")) @ self.at("whiten")
        found = w @ self.at("own_centres").T + self.at("constant")
        if len(self.at("shapes")):
            nearer = 0.5 * (w @ self.at("shapes").T - self.at("at_centre")).square()
            found = found + nearer @ self.at("owner")
        return found


class KernelScoring(Scoring):
    """The scores of KLDAHead: the logarithm of its members' mean probability."""

    @property
    def members(self) -> list[str]:
        """The prefixes of the members' tensors."""
        return sorted(
            {f"{name.partition('/')[0]}/" for name in self.names if "/" in name}, key=lambda p: int(p[:-1])
        )

    @override
    def scores(self, vectors: Tensor, lifted: Tensor | None) -> Tensor:
        each = [
            functional.linear(x, self.at(f"{p}weight"), self.at(f"{p}bias")).log_softmax(1)
            for p, x in self._features(vectors)
        ]
        return torch.stack(each).logsumexp(0) - math.log(len(each))

    @override
    def distances(self, vectors: Tensor, lifted: Tensor | None) -> Tensor:
        each = [
            _nearest(x - self.at(f"{p}middle"), self.at(f"{p}white"), self.at(f"{p}centres"))
            for p, x in self._features(vectors)
        ]
        return torch.stack(each).mean(0)

    def _features(self, vectors: Tensor) -> list[tuple[str, Tensor]]:
        """Return the random Fourier features of each member."""
        z = (vectors - self.at("standard_centre")) / self.at("standard_spread")
        return [
            (p, self.at(f"{p}height") * (z @ self.at(f"{p}omega") + self.at(f"{p}phase")).cos())
            for p in self.members
        ]


def scoring_of(tensors: Mapping[str, Tensor]) -> Scoring:
    """Return the scoring that consists of these tensors."""
    if any("/" in name for name in tensors):
        return KernelScoring(tensors)
    return BlendedScoring(tensors) if "whiten" in tensors else Scoring(tensors)


def _joined(vectors: Tensor, lifted: Tensor | None) -> Tensor:
    return vectors if lifted is None else torch.cat([vectors, lifted], 1)


def _nearest(x: Tensor, white: Tensor, centres: Tensor) -> Tensor:
    """Return min_k |x W - c_k|², with x around the middle of the classes, so that numbers stay small."""
    w = x @ white
    apart = centres.square().sum(1) - 2 * (w @ centres.T)
    found: Tensor = w.square().sum(1) + apart.min(1).values
    return found


# ---- from heads -------------------------------------------------------------------------------------------


@torch.no_grad()
def fixed(head: Head, *, far: bool) -> tuple[Lift | None, Scoring]:
    """Return the lift of a head, if it has one, and its scoring.

    `far`: include distances, which take the most room.
    """
    if not (visible := head.visible_rows()):
        raise HoldfastError("this learner has no labels yet; teach it some")
    common = {"temperature": torch.tensor(head.temperature)}
    if isinstance(head, KLDAHead):
        return None, scoring_of(_kernel(head, far=far) | common)
    if isinstance(head, RDAHead):
        own = _blended(head, visible) | (_classes_around(head) if far else {})
        return None, scoring_of(own | common)
    if isinstance(head, LinearHead):
        own = {"weight": head.linear.weight[visible], "bias": head.linear.bias[visible]}
        return None, scoring_of(own | common)
    if not isinstance(head, SumsHead):
        raise HoldfastError(f"a head of the kind {head.kind!r} cannot be exported yet")
    weight, bias = (part[visible] for part in head.solve(head.chosen))
    lift, own = None, {}
    if isinstance(head, RanPACHead):
        lift = Lift({"projection": head.projection})
    elif isinstance(head, LiftedHead):
        scale = torch.full((head.width,), head.scale).to(weight)
        if head.chosen[2] > head.width:
            lift = Lift({"projection": head.projection / math.sqrt(head.blocks)})
            scale = torch.cat([scale, scale.new_ones(weight.shape[1] - head.width)])
        weight = weight * scale
        own = _relative(head) if far else {}
    elif isinstance(head, SLDAHead):
        own = _classes_around(head) if far else {}
    return lift, scoring_of(own | {"weight": weight, "bias": bias} | common)


def _classes_around(head: SLDAHead) -> Params:
    """Return what the Mahalanobis distances of a head are computed from."""
    return _whitened(head._factor(head.chosen), head.past.means()[head.visible_rows()])


def _whitened(factor: Tensor, means: Tensor) -> Params:
    """Return the middle of the classes, W = L⁻ᵀ for Σ = L Lᵀ, and the class means in its coordinates."""
    middle = means.mean(0)
    white = _inverse(factor).T
    return {"middle": middle, "white": white, "centres": (means - middle) @ white}


def _inverse(factor: Tensor) -> Tensor:
    found: Tensor = torch.linalg.solve_triangular(factor, torch.eye(len(factor)).to(factor), upper=False)
    return found


def _relative(head: LiftedHead) -> Params:
    """Return what the relative Mahalanobis distance is computed from, for vectors before they are scaled."""
    far = head.relative
    whole, white = far.middle[0], _inverse(far.within).T
    return {
        "middle": whole / head.scale,
        "white": head.scale * white,
        "around": head.scale * _inverse(far.total).T,
        "centres": (far.means[far.present] - whole) @ white,
    }


def _blended(head: RDAHead, visible: list[int]) -> Params:
    solved = head._solution(torch.float64)
    size = len(solved.centres)
    owner = functional.one_hot(solved.owner, size) if len(solved.owner) else torch.zeros(0, size)
    constant = solved.constant - 0.5 * solved.centres.square().sum(1)
    return {
        "own_middle": solved.middle,
        "whiten": solved.whiten,
        "own_centres": solved.centres[visible],
        "constant": constant[visible],
        "shapes": solved.shapes,
        "at_centre": solved.at_centre,
        "owner": owner[:, visible],
    }


def _kernel(head: KLDAHead, *, far: bool) -> Params:
    visible = head.visible_rows()
    found = {"standard_centre": head.centre, "standard_spread": head.spread}
    for number, member in enumerate(cast(list[FourierLDA], list(head.members))):
        weight, bias = (part[visible] for part in member.solve(member.chosen))
        own = {
            "weight": weight,
            "bias": bias,
            "omega": math.sqrt(2 * member.gamma) * member.omega,
            "phase": member.phase,
            "height": torch.tensor(math.sqrt(2 / len(member.phase))),
        }
        own |= _classes_around(member) if far else {}
        found |= {f"{number}/{name}": value for name, value in own.items()}
    return found

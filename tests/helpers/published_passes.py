"""The paper's table "Computation cost" by method, and the phases that it leaves out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Facts:
    """The variables of the formulas."""

    b1: int
    b2: int
    E1: int
    """Epochs of the first training (the only one in joint training)."""
    E2: int
    E2_aux: int
    """Epochs of the second task's look-ahead, the auxiliary network of ANCL."""
    N: int
    """Trained weight matrices."""
    C1: int
    """Labels known after the first task."""
    C2: int


Ways = tuple[int, int]  # forward, backward
Counts = Callable[[Facts], dict[str, Ways]]


def both(passes: int) -> Ways:
    return passes, passes


def forwards(passes: int) -> Ways:
    return passes, 0


def backwards(passes: int) -> Ways:
    return 0, passes


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    method: str
    paper: Callable[[Facts], int]
    """The paper's formula, or a similar one for a method that is not in the paper."""
    phases: Counts
    """The passes counted in the chosen trainings of both tasks, by phase."""
    extras: Counts = field(default=lambda f: {})
    """The part that the formula leaves out, by name."""
    values: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters, all fixed to keep the search short."""
    printed: bool = True
    """Whether the class prints this formula. A variant of a method does not."""

    @property
    def published(self) -> bool:
        return self.method in ("mtl", "seq", "upgd", "adabop", "rp2f", "la", "ancl-mas", "ancl-lwf")


def train(f: Facts) -> int:
    return f.E1 * f.b1 + f.E2 * f.b2


def followed(f: Facts) -> dict[str, Ways]:
    """Return the passes for the features of both tasks before and after the trunk moved."""
    return {name: forwards(f.b1 + f.b2) for name in ("features", "moved features")}


LAST = "last consolidation"
ROWS = {
    # ---- the paper's table
    "mtl": Row(
        method="mtl",
        paper=lambda f: f.E1 * (f.b1 + f.b2),
        phases=lambda f: {"train": both(f.E1 * (f.b1 + f.b2))},
    ),
    "seq": Row(
        method="seq",
        paper=lambda f: f.E1 * f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f))},
    ),
    "upgd": Row(
        method="upgd",
        paper=lambda f: f.E1 * f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f)), "curvature": backwards(2 * train(f))},
        extras=lambda f: {"Hutchinson": backwards(2 * (f.E1 * f.b1 + f.E2 * f.b2))},
    ),
    "upgd, curvature=head": Row(
        method="upgd",
        values={"curvature": "head"},
        paper=lambda f: f.E1 * f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f))},
        printed=False,
    ),
    "upgd, order=first": Row(
        method="upgd",
        values={"order": "first"},
        paper=lambda f: f.E1 * f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f))},
        printed=False,
    ),
    "adabop": Row(
        method="adabop",
        values={"lam_s": 0.03, "lam_l": 0.08, "eps": 0.002},
        paper=lambda f: f.b1 + f.E1 * f.b1 + f.b2 + f.E2 * f.b2,
        phases=lambda f: {
            "gradients": both(f.b1 + f.b2),
            "train": both(train(f)),
            "moments": forwards(f.b1 + f.b2),
        },
        extras=lambda f: {"moments": forwards(f.b1 + f.b2)},
    ),
    "rp2f, importance=fisher": Row(
        method="rp2f",
        values={"lam": 1e-6, "importance": "fisher"},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2 * (f.b2 + f.b2),
        phases=lambda f: {"train": both(train(f)), "importance": both(f.b1 + f.E2 * f.b2)},
    ),
    "rp2f, importance=perturbation": Row(
        method="rp2f",
        values={"lam": 1e-6, "importance": "perturbation"},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2 * (f.b2 + f.N * f.b2),
        phases=lambda f: {"train": both(train(f)), "importance": both(f.N * f.b1 + f.N * f.E2 * f.b2)},
        extras=lambda f: {"perturbation of the first task": both((f.N - 1) * f.b1)},
        printed=False,
    ),
    "la": Row(
        method="la",
        values={"lam": 5.0, "down": 0.3, "up": 0.5},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2_aux * f.b2 + f.b2 + f.E2 * f.b2,
        phases=lambda f: {
            "train": both(train(f)),
            "importance": both(f.b1 + f.b2),
            "look-ahead": both(f.E2_aux * f.b2),
            "look-ahead importance": both(f.b2),
        },
        extras=lambda f: {LAST: both(f.b2)},
    ),
    "ancl-mas": Row(
        method="ancl-mas",
        values={"lam": 5.0, "lam_a": 0.5},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2_aux * f.b2 + f.b2 + f.E2 * f.b2,
        phases=lambda f: {
            "train": both(train(f)),
            "importance": both(f.b1 + f.b2),
            "look-ahead": both(f.E2_aux * f.b2),
            "look-ahead importance": both(f.b2),
        },
        extras=lambda f: {LAST: both(f.b2)},
    ),
    "ancl-lwf": Row(
        method="ancl-lwf",
        values={"lam": 1.0, "lam_a": 0.5},
        paper=lambda f: f.E1 * f.b1 + f.E2_aux * f.b2 + f.E2 * (f.b2 + f.b2),
        phases=lambda f: {
            "train": both(train(f)),
            "look-ahead": both(f.E2_aux * f.b2),
            "teacher": forwards(2 * f.E2 * f.b2),
        },
        extras=lambda f: {"second teacher": forwards(f.E2 * f.b2)},
    ),
    # ---- ours
    "frozen": Row(
        method="frozen",
        values={"lam": math.inf},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f)), "importance": both(f.b1 + f.b2)},
        extras=lambda f: {LAST: both(f.b2)},
    ),
    "mas": Row(
        method="mas",
        values={"lam": 5.0},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f)), "importance": both(f.b1 + f.b2)},
        extras=lambda f: {LAST: both(f.b2)},
    ),
    "ewc, labels=true": Row(
        method="ewc",
        values={"lam": 5.0, "labels": "true"},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f)), "importance": both(f.b1 + f.b2)},
        extras=lambda f: {LAST: both(f.b2)},
    ),
    "ewc, labels=expected": Row(
        method="ewc",
        values={"lam": 5.0, "labels": "expected"},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f)), "importance": both(f.C1 * f.b1 + f.C2 * f.b2)},
        extras=lambda f: {LAST: both(f.b2), "other labels": both((f.C1 - 1) * f.b1 + (f.C2 - 1) * f.b2)},
        printed=False,
    ),
    "si": Row(
        method="si",
        values={"lam": 5.0},
        paper=lambda f: f.E1 * f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f))},
    ),
    "rwalk": Row(
        method="rwalk",
        values={"lam": 5.0},
        paper=lambda f: f.E1 * f.b1 + f.E2 * f.b2,
        phases=lambda f: {"train": both(train(f))},
    ),
    "lwf": Row(
        method="lwf",
        values={"lam": 1.0},
        paper=lambda f: f.E1 * f.b1 + f.E2 * (f.b2 + f.b2),
        phases=lambda f: {"train": both(train(f)), "teacher": forwards(f.E2 * f.b2)},
    ),
    "la-merge": Row(
        method="la-merge",
        values={"merge": 1.0},
        paper=lambda f: f.E1 * f.b1 + f.b1 + f.E2 * f.b2 + f.b2,
        phases=lambda f: {"train": both(train(f)), "importance": both(f.b1 + f.b2 + f.b2)},
        extras=lambda f: {LAST: both(f.b2)},
    ),
    # ---- under a closed-form head
    **{
        name: Row(
            method=name,
            values=values,
            paper=lambda f: f.b1 + f.b2,
            phases=lambda f: {"features": forwards(f.b1 + f.b2)},
        )
        for name, values in {
            "slda": {},
            "rda": {},
            "klda": {"features": 32},
            "ranpac": {"features": 32},
            "auto": {"sentences": 0},
        }.items()
    },
    "first+slda": Row(
        method="first+slda",
        paper=lambda f: f.E1 * f.b1 + f.b2,
        phases=lambda f: {
            "train": both(f.E1 * f.b1),
            "features": forwards(f.b1 + f.b2),
            "moved features": forwards(f.b1),
        },
        extras=lambda f: {"features": forwards(2 * f.b1)},
    ),
    "mas+slda": Row(
        method="mas+slda",
        values={"lam": 5.0},
        paper=lambda f: ROWS["mas"].paper(f),
        phases=lambda f: ROWS["mas"].phases(f) | followed(f),
        extras=lambda f: ROWS["mas"].extras(f) | {"features": forwards(2 * (f.b1 + f.b2))},
    ),
    "la+slda": Row(
        method="la+slda",
        values={"lam": 5.0, "down": 0.3, "up": 0.5},
        paper=lambda f: ROWS["la"].paper(f),
        phases=lambda f: ROWS["la"].phases(f) | followed(f),
        extras=lambda f: ROWS["la"].extras(f) | {"features": forwards(2 * (f.b1 + f.b2))},
    ),
}
SILENT = ("teacher", "moments", "features", "moved features")  # forwards that need no backward

"""Heads turn a sentence vector into one score per label. Linear heads are trained; others are computed."""

from holdfast.heads.base import Head, Taught, Vectors
from holdfast.heads.closed import ClosedFormHead
from holdfast.heads.discriminant import SLDAHead
from holdfast.heads.lifted import LiftedHead
from holdfast.heads.linear import LinearHead, ProbeHead
from holdfast.heads.random_features import KLDAHead, RanPACHead
from holdfast.heads.regularised import RDAHead

__all__ = [
    "ClosedFormHead",
    "Head",
    "KLDAHead",
    "LiftedHead",
    "LinearHead",
    "ProbeHead",
    "RDAHead",
    "RanPACHead",
    "SLDAHead",
    "Taught",
    "Vectors",
]

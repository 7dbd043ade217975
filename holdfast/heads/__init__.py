"""Heads: what turns a sentence vector into a score per label. One is trained, the others are computed."""

from holdfast.heads.closed import ClosedFormHead, Taught
from holdfast.heads.discriminant import SLDAHead
from holdfast.heads.linear import LinearHead
from holdfast.heads.random_features import KLDAHead, RanPACHead

Head = LinearHead | ClosedFormHead

__all__ = ["ClosedFormHead", "Head", "KLDAHead", "LinearHead", "RanPACHead", "SLDAHead", "Taught"]

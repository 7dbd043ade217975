"""Heads: what turns a sentence vector into a score per label."""

from holdfast.heads.linear import LinearHead

__all__ = ["LinearHead"]

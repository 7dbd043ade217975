"""Benchmarks: a suite is a TOML file; each of its runs writes a JSON record, named by a hash of its spec."""

from holdfast.bench.run import run
from holdfast.bench.spec import Spec

__all__ = ["Spec", "run"]

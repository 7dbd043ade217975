"""METHODS: the only registry. A new method is one file and one line here."""

from holdfast.method import Method
from holdfast.methods.la import LA
from holdfast.methods.mas import MAS, Frozen
from holdfast.methods.mtl import MTL

METHODS: dict[str, type[Method]] = {
    "seq": Method,
    "mtl": MTL,
    "frozen": Frozen,
    "mas": MAS,
    "la": LA,
}

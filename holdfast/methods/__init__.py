"""METHODS: the registry of methods. A new method needs a file, an import and an entry here."""

from collections.abc import Mapping
from typing import Any

from holdfast.errors import HoldfastError
from holdfast.fields import unknown
from holdfast.methods.adabop import AdaBOP
from holdfast.methods.ancl import ANCLLWF, ANCLMAS
from holdfast.methods.auto import Auto
from holdfast.methods.base import Method
from holdfast.methods.ewc import EWC
from holdfast.methods.first_slda import FirstSLDA
from holdfast.methods.klda import KLDA
from holdfast.methods.la import LA
from holdfast.methods.la_merge import LAMerge
from holdfast.methods.la_slda import LASLDA
from holdfast.methods.lwf import LwF
from holdfast.methods.mas import MAS, Frozen
from holdfast.methods.mas_slda import MASSLDA
from holdfast.methods.mtl import MTL
from holdfast.methods.ranpac import RanPAC
from holdfast.methods.rda import RDA
from holdfast.methods.rp2f import RP2F
from holdfast.methods.rwalk import RWalk
from holdfast.methods.si import SI
from holdfast.methods.slda import SLDA
from holdfast.methods.upgd import UPGD

METHODS: dict[str, type[Method]] = {
    "seq": Method,
    "mtl": MTL,
    "frozen": Frozen,
    "mas": MAS,
    "ewc": EWC,
    "si": SI,
    "rwalk": RWalk,
    "lwf": LwF,
    "ancl-mas": ANCLMAS,
    "ancl-lwf": ANCLLWF,
    "upgd": UPGD,
    "rp2f": RP2F,
    "adabop": AdaBOP,
    "la": LA,
    "la-merge": LAMerge,
    "slda": SLDA,
    "rda": RDA,
    "klda": KLDA,
    "ranpac": RanPAC,
    "first+slda": FirstSLDA,
    "mas+slda": MASSLDA,
    "la+slda": LASLDA,
    "auto": Auto,
}


def method_of_learner(name: str, hyper_parameters: Mapping[str, Any]) -> Method:
    """Return a method for a new learner; refuse unknown names, impossible values, and methods for studies."""
    if not isinstance(name, str) or name not in METHODS:
        raise HoldfastError(unknown(str(name), list(METHODS), "method"))
    if name == "mtl":
        raise HoldfastError("mtl learns all tasks at once and needs all their data; choose another method")
    known = list(METHODS[name].hyper_parameters())
    if strange := sorted(set(hyper_parameters) - set(known)):
        raise HoldfastError(unknown(strange[0], known, "hyper-parameter"))
    return METHODS[name](**hyper_parameters)

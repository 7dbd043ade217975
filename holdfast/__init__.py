"""Holdfast: teach a transformer one task after another, without old data and without task ids."""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import importance as importance
    from holdfast.data import load_stream as load_stream
    from holdfast.data.tasks import Split as Split
    from holdfast.data.tasks import Stream as Stream
    from holdfast.data.tasks import Task as Task
    from holdfast.errors import HoldfastError as HoldfastError
    from holdfast.everyday.drift import drift as drift
    from holdfast.everyday.scikit import HoldfastClassifier as HoldfastClassifier
    from holdfast.everyday.suggest import suggest as suggest
    from holdfast.learning.learner import Learner as Learner
    from holdfast.lm.artefact import Importance as Importance
    from holdfast.lm.protect import Protect as Protect
    from holdfast.maths import metrics as metrics
    from holdfast.methods import METHODS as METHODS
    from holdfast.methods.base import Method as Method
    from holdfast.models import build_classifier as build_classifier
    from holdfast.settings import Settings as Settings
    from holdfast.settings import preset as preset

logging.getLogger("holdfast").addHandler(logging.NullHandler())

# Imported at first use: the command line sets the number of threads before torch starts.
_HOMES = {
    "HoldfastClassifier": "holdfast.everyday.scikit",
    "HoldfastError": "holdfast.errors",
    "Importance": "holdfast.lm.artefact",
    "Learner": "holdfast.learning.learner",
    "METHODS": "holdfast.methods",
    "Method": "holdfast.methods.base",
    "Protect": "holdfast.lm.protect",
    "Settings": "holdfast.settings",
    "Split": "holdfast.data.tasks",
    "Stream": "holdfast.data.tasks",
    "Task": "holdfast.data.tasks",
    "build_classifier": "holdfast.models",
    "drift": "holdfast.everyday.drift",
    "load_stream": "holdfast.data",
    "preset": "holdfast.settings",
    "suggest": "holdfast.everyday.suggest",
}
_MODULES = {"importance": "holdfast.importance", "metrics": "holdfast.maths.metrics"}
__all__ = [*_HOMES, *_MODULES]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(_MODULES[name])
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        return import_module("importlib.metadata").version("holdfast")
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

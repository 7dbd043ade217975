"""Answers without torch: exported artefacts and the classifier that runs them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.runtime.answers import Answer as Answer
    from holdfast.runtime.answers import Asked as Asked
    from holdfast.runtime.classifier import Classifier as Classifier
    from holdfast.runtime.tenants import Tenants as Tenants

# Imported at first use: numpy and onnxruntime take a while to start.
_HOMES = {
    "Answer": "holdfast.runtime.answers",
    "Asked": "holdfast.runtime.answers",
    "Classifier": "holdfast.runtime.classifier",
    "Tenants": "holdfast.runtime.tenants",
}
__all__ = ["Answer", "Asked", "Classifier", "Tenants"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'holdfast.runtime' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__

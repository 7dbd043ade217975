"""Hyper-parameters shared by several methods, each declared once."""

from __future__ import annotations

from typing import Any, get_args

from holdfast.fields import setting
from holdfast.importance.estimators import EstimatorName


def lam() -> Any:
    """Declare λ, the strength of the hold."""
    return setting(0.0, "strength of the penalty; 0: none", least=0)


def thr() -> Any:
    """Declare the share of the gold score that the search keeps."""
    return setting(
        None, "share of the gold score to keep; none: 0.90 class-, 0.95 domain-incremental", least=0, most=1
    )


def penalty(default: str = "loss") -> Any:
    """Declare the form of a quadratic pull."""
    return setting(default, "penalty in the loss (the paper), or a proximal step after the optimiser's")


def pooling(default: str = "mean", help: str = "how importances of several tasks are pooled") -> Any:
    """Declare how importances are pooled over tasks."""
    return setting(default, help)


def keep() -> Any:
    """Declare the share of the past in an exponential mean."""
    return setting(0.5, "share of the past in pooling=ema", least=0, below=1)


def importance() -> Any:
    """Declare the importance estimator, by name."""
    return setting("mas", f"the importance estimator: {', '.join(get_args(EstimatorName))}")


def convention() -> Any:
    """Declare how MAS averages."""
    return setting("per-sample", "mas per sample, or as in the authors' released code (lacl)")


def norm() -> Any:
    """Declare the norm of the answers whose gradient MAS measures."""
    return setting("squared", "mas of the squared L2 norm of the answers, or of the norm itself (the paper)")


def shrinkage() -> Any:
    """Declare how much a discriminant head shrinks its covariance."""
    return setting(
        None, "shrinkage of the covariance, in (0, 1]; none: chosen on validation data", least=1e-6, most=1
    )


def weighting() -> Any:
    """Declare how classes of unequal size count in a discriminant head."""
    return setting(
        "equal", "weighting of unequal classes: equal, covariance (in Σ too), counts (a prior) or choose"
    )


def scatter(default: str = "per-class") -> Any:
    """Declare which second moments a discriminant head keeps."""
    return setting(default, "second moments: one S per class (exact removal) or one for all (less disk)")


def layers(default: int = 1) -> Any:
    """Declare how many hidden layers are read."""
    return setting(default, "last hidden layers read, pooled and concatenated", least=1)


def normalise(default: bool = False) -> Any:
    """Declare whether the vector of each layer is divided by its length."""
    return setting(default, "divide the vector of each layer by its length")

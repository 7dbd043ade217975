"""HoldfastClassifier: a learner with the interface of a scikit-learn classifier."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from numbers import Integral
from os import PathLike, fspath
from typing import Any, Self, cast

import numpy as np
from typing_extensions import override

from holdfast.data.tasks import SEVERAL, check_labels, check_texts, missing, printable, several
from holdfast.errors import HoldfastError, did_you_mean, require
from holdfast.fields import fields_of
from holdfast.learning.directory import EVERYDAY
from holdfast.learning.learner import Learner
from holdfast.methods import method_of_learner
from holdfast.settings import TrainingSettings

require("sklearn", "sklearn")
from sklearn.base import BaseEstimator, ClassifierMixin  # noqa: E402
from sklearn.exceptions import DataConversionWarning  # noqa: E402
from sklearn.utils.multiclass import check_classification_targets  # noqa: E402
from sklearn.utils.validation import check_is_fitted  # noqa: E402


class BadInput(HoldfastError, ValueError):
    """Input that a classifier cannot use; also a ValueError, as scikit-learn expects."""


class HoldfastClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A text classifier for scikit-learn.

    `fit` forgets everything and teaches; `partial_fit` teaches the next lesson, with new labels or without.
    X is a list, an array, or a column of pandas or `datasets`. Labels are strings, integers or booleans, and
    come back as they were. `learner_` is the `Learner`, which can be saved.

    >>> from holdfast import HoldfastClassifier
    >>> classifier = HoldfastClassifier("encoder", method="slda")
    >>> _ = classifier.fit(["wake me at six", "wake me at nine", "play a song"], [1, 1, 2])
    >>> _ = classifier.partial_fit(["play some jazz"], [2])
    >>> classifier.predict(["play some jazz"]).tolist(), classifier.classes_.tolist()
    ([2], [1, 2])
    """

    def __init__(
        self,
        model: str = "minilm",
        method: str = "auto",
        *,
        hyper_parameters: Mapping[str, Any] | None = None,
        settings: Mapping[str, Any] | None = None,
        seed: int = 0,
    ) -> None:
        self.model = model
        self.method = method
        self.hyper_parameters = hyper_parameters
        self.settings = settings
        self.seed = seed

    # ---- learning ---------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None) -> Self:
        """Forget everything and teach these texts."""
        texts, labels = _checked(X, y)
        hyper_parameters, settings = (self._given(name) for name in ("hyper_parameters", "settings"))
        if not isinstance(self.model, str | PathLike):
            raise BadInput(f"model is {self.model!r}; give the name or the folder of an encoder")
        if not isinstance(self.seed, Integral):
            raise BadInput(f"seed is {self.seed!r}; give an integer")
        known = list(fields_of(TrainingSettings))
        if strange := sorted(set(settings) - set(known)):
            raise BadInput(f"unknown setting {strange[0]!r}{did_you_mean(strange[0], known)}")
        with _as_bad_input():
            method_of_learner(self.method, hyper_parameters)  # before those of Learner.create itself
            training = replace(EVERYDAY, **settings)
        learner = Learner.create(
            fspath(self.model), self.method, settings=training, seed=int(self.seed), **hyper_parameters
        )
        return self._taught(learner, texts, labels, {})

    def _given(self, name: str) -> dict[str, Any]:
        """Return a parameter that is a dictionary by name."""
        given = {} if getattr(self, name) is None else getattr(self, name)
        if not isinstance(given, Mapping) or not all(isinstance(one, str) for one in given):
            raise BadInput(f"{name} is {printable(repr(given))}; give a dictionary of values by name")
        return dict(given)

    def partial_fit(self, X: Any, y: Any = None, classes: Any = None) -> Self:
        """Teach the next lesson; new labels need not be announced, so `classes` has no effect."""
        if not hasattr(self, "learner_"):
            return self.fit(X, y)
        texts, labels = _checked(X, y)
        return self._taught(self.learner_, texts, labels, dict(self._values))

    def _taught(self, learner: Learner, texts: list[str], labels: np.ndarray, values: dict[str, Any]) -> Self:
        """Teach a lesson; the classifier is unchanged if that fails."""
        kinds = {labels.dtype.kind, *(np.asarray(value).dtype.kind for value in values.values())}
        if len({"s" if kind in "UO" else "i" if kind in "iu" else kind for kind in kinds}) > 1:
            known = next(iter(values.values()))
            raise BadInput(f"labels such as {labels[0]!r} and {known!r} are of different types; use one type")
        names = [str(value) for value in labels.tolist()]
        learner.learn(texts, names)
        values |= dict(zip(names, labels.tolist(), strict=True))
        self.learner_, self._values = learner, values
        return self

    # ---- labels -----------------------------------------------------------------------------------------

    @property
    def classes_(self) -> np.ndarray:
        """The labels that the learner knows now, sorted, in the type they were taught in."""
        return self._columns()[0]

    def _columns(self) -> tuple[np.ndarray, list[int]]:
        """Return the labels, sorted, and where each of them stands in the learner."""
        values = np.array([self._value(name) for name in self.learner_.classes_])
        found, places = np.unique(values, return_index=True)
        return found, places.tolist()

    def _value(self, name: str) -> Any:
        """Return a label of the learner as it was taught; one of a correction gets the type of the others."""
        if name in self._values:
            return self._values[name]
        known = next(iter(self._values.values()))
        value: Any = None
        with suppress(ValueError):
            value = name == "True" if isinstance(known, bool) else type(known)(name)
        if str(value) != name:
            raise BadInput(
                f"learner_ has the label {name!r}, but labels were taught as {type(known).__name__}, such as "
                f"{known!r}; rename it with learner_.rename_label, or fit again with strings"
            )
        return value

    # ---- predicting -------------------------------------------------------------------------------------

    def predict(self, X: Any) -> np.ndarray:
        """Return the label of each text, in the type it was taught in."""
        likely = self.predict_proba(X)
        found: np.ndarray = self.classes_[likely.argmax(1)]
        return found

    def predict_proba(self, X: Any) -> np.ndarray:
        """Return a row per text and a column per label of `classes_`."""
        check_is_fitted(self)
        texts, (_, places) = texts_of(X), self._columns()
        found: np.ndarray = self.learner_.predict_proba(texts)[:, places]
        return found

    @override
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False
        tags.no_validation = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "learner_")


# ---- input ------------------------------------------------------------------------------------------------


def _checked(X: Any, y: Any) -> tuple[list[str], np.ndarray]:
    """Return the texts and labels of a lesson."""
    texts = texts_of(X)
    if empty := [place for place, text in enumerate(texts) if not text.strip()]:
        raise BadInput(f"text {empty[0] + 1} is empty; fill it in or drop the row")
    labels = labels_of(y)
    if len(texts) != len(labels):
        raise BadInput(f"{len(texts)} texts but {len(labels)} labels; give one label per text")
    return texts, labels


def texts_of(X: Any) -> list[str]:
    """Return the texts of a list, an array, or a column of pandas or `datasets`."""
    listed = hasattr(X, "__len__") and hasattr(X, "__getitem__") and not isinstance(X, str | Mapping)
    values = _column(X, "X") if listed else X
    with _as_bad_input():
        check_texts(values)
    if not values:
        raise BadInput("X has 0 texts, a minimum of 1 is required")
    return cast(list[str], values)


@contextmanager
def _as_bad_input() -> Iterator[None]:
    """Turn an error of input into one that is also a ValueError."""
    try:
        yield
    except HoldfastError as error:
        raise BadInput(str(error)) from error


def labels_of(y: Any) -> np.ndarray:
    """Return labels as an array of strings, integers or booleans."""
    if y is None:
        raise BadInput("HoldfastClassifier requires y to be passed, but the target y is None")
    if isinstance(y, str):
        raise BadInput("y is one string; give a list of labels")
    listed = hasattr(y, "__len__") and hasattr(y, "__getitem__") and not isinstance(y, bytes | Mapping)
    if not listed and not hasattr(y, "__array__"):
        raise BadInput(f"y is {type(y).__name__}, not a list; give a list of labels")
    values = _column(y, "y")
    if several(values):
        raise BadInput(f"y has several labels for one text; {SEVERAL}")
    for place, value in enumerate(values, start=1):
        if missing(value):
            raise BadInput(f"label {place} is missing ({value}, NaN or None); fill it in or drop the row")
        if isinstance(value, str) and not value.strip():
            raise BadInput(f"label {place} is empty; fill it in or drop the row")
        if isinstance(value, float) and not value.is_integer():
            raise BadInput(
                f"Unknown label type: continuous; label {place} is {value!r}: labels are strings or integers"
            )
        if not isinstance(value, str | bool | int | float | np.bool_ | np.integer | np.floating):
            raise BadInput(f"label {place} is {value!r} ({type(value).__name__}); use strings or integers")
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise BadInput(f"label {place} is an integer of more than 64 bits; use strings")
    if len({_kind(value) for value in values}) > 1:
        first = values[0]
        other = next(value for value in values if _kind(value) != _kind(first))
        raise BadInput(f"labels such as {first!r} and {other!r} are of different types; use one type")
    with _as_bad_input():  # an array of numpy would end them before a NUL character
        check_labels(value for value in values if isinstance(value, str))
    found = np.array(values)
    check_classification_targets(found)
    return found


def _kind(value: Any) -> str:
    """Return which labels a label goes with."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "boolean"
    return "float" if isinstance(value, float | np.floating) else "integer"


def _column(values: Any, what: str) -> list[Any]:
    """Return the values of one column as Python objects."""
    if not hasattr(values, "__iter__") and hasattr(values, "__array__"):
        values = np.asarray(values)
    shape = getattr(values, "shape", None)
    if shape is not None and len(shape) == 2 and shape[1] == 1:
        if what == "y":
            warnings.warn(
                "A column-vector y was passed when a 1d array was expected", DataConversionWarning, 3
            )
        values = values.iloc[:, 0] if hasattr(values, "iloc") else np.asarray(values)[:, 0]
    elif shape is not None and len(shape) != 1:
        if not shape:
            raise BadInput(f"{what} is a single value; give a list")
        if what == "y":
            raise BadInput(f"y has several labels for one text; {SEVERAL}")
        columns = f"{shape[1]} columns" if len(shape) == 2 else f"{len(shape)} dimensions"
        raise BadInput(f"X has {columns}; give one column of texts, such as table['text']")
    return list(values.tolist() if hasattr(values, "tolist") else values)

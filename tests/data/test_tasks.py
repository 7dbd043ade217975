"""Texts and labels: what is taken for a list of them, and what is refused in one line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.data.tasks import check_labels, check_pairs, check_texts
from holdfast.errors import HoldfastError

pandas = pytest.importorskip("pandas")
TEXTS = ["wake me at six", "play some jazz"]


@pytest.mark.parametrize(
    "texts",
    [
        TEXTS,
        tuple(TEXTS),
        np.array(TEXTS),
        np.array(TEXTS, dtype=object),
        pandas.Series(TEXTS, index=[7, 3]),
        pandas.Series(TEXTS, dtype="string"),
        [],
    ],
    ids=lambda texts: f"{type(texts).__name__} {getattr(texts, 'dtype', '')}",
)
def test_lists_arrays_and_columns_are_texts(texts: Any) -> None:
    check_texts(texts)
    check_pairs(texts, texts)


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ("one string", "the texts are one string"),
        (b"bytes", "bytes, not a list"),
        (None, "NoneType, not a list"),
        (3, "int, not a list"),
        ({"text": TEXTS}, "dict, not a list"),
        ({*TEXTS}, "set, not a list"),
        ((text for text in TEXTS), "generator, not a list"),
        (pandas.DataFrame({"text": TEXTS}), "DataFrame, not a list; .*or one column"),
        (np.array([TEXTS]), "ndarray, not a list"),
        (np.array("text"), "ndarray, not a list"),
        (["a", None], r"text 2 is not text but None \(NoneType\); fill it in"),
        (["a", float("nan")], "text 2 is not text but nan .*fill it in"),
        (pandas.Series(["a", pandas.NA], dtype="string"), "text 2 is not text but <NA> .*fill it in"),
        (["a", 7], r"text 2 is not text but 7 \(int\); use str\(\)"),
        ([b"a"], "text 1 is not text but b'a'"),
        ([np.zeros(9)], r"text 1 is not text but array.*\(ndarray\); use"),
        ([np.eye(9)], r"text 1 is not text but array.*\(ndarray\); use"),
        (["a", "\ud800"], "text 2 has an unpaired surrogate"),
    ],
)
def test_what_is_no_list_of_texts_is_one_line(texts: Any, said: str) -> None:
    with pytest.raises(HoldfastError, match=said) as caught:
        check_texts(texts)
    assert len(str(caught.value).splitlines()) == 1
    for pair in ((texts, TEXTS), (TEXTS, texts)):
        with pytest.raises(HoldfastError):
            check_pairs(*pair)


@pytest.mark.parametrize(
    "labels",
    [[["x", "y"], ["x"]], [("x",), ("y",)], [{"x"}, {"y"}], np.eye(2), pandas.DataFrame([["x", "y"]] * 2)],
)
def test_several_labels_of_a_text_are_answered_with_advice(labels: Any) -> None:
    with pytest.raises(HoldfastError, match=r"one learner per label .*MultiOutputClassifier") as caught:
        check_pairs(TEXTS, labels)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("label", ["", " ", "\u2003", "a\n", "(unknown)"])
def test_names_that_no_label_can_have(label: str) -> None:
    with pytest.raises(HoldfastError, match=r"is empty|line break|cannot be a label"):
        check_labels(["alarm", label])

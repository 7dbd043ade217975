"""HoldfastClassifier: scikit-learn's protocol, pandas and datasets in and out, and clear refusals."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
from helpers.everyday import rows_of
from helpers.paths import ROOT
from helpers.toys import save_tiny_bert

import holdfast
from holdfast import HoldfastError
from holdfast.everyday.scikit import HoldfastClassifier

pandas = pytest.importorskip("pandas")
from sklearn.base import clone  # noqa: E402
from sklearn.exceptions import NotFittedError  # noqa: E402
from sklearn.model_selection import GridSearchCV, cross_val_score  # noqa: E402
from sklearn.multioutput import MultiOutputClassifier  # noqa: E402
from sklearn.pipeline import Pipeline  # noqa: E402
from sklearn.preprocessing import FunctionTransformer  # noqa: E402
from sklearn.utils.estimator_checks import check_estimator, estimator_checks_generator  # noqa: E402
from sklearn.utils.validation import check_is_fitted, validate_data  # noqa: E402

ROWS = rows_of(0)
TEXTS = [text for text, _ in ROWS]
LABELS = [label for _, label in ROWS]
NUMBERS = [LABELS.index(label) * 7 for label in LABELS]


def classifier(model: str, **options: Any) -> HoldfastClassifier:
    return HoldfastClassifier(model, **{"method": "slda"} | options)


# ---- the protocol ---------------------------------------------------------------------------------------


def test_it_learns_lessons_and_equals_its_learner(one_layer):
    found = classifier(one_layer).fit(TEXTS, LABELS)
    assert found.classes_.tolist() == sorted({*LABELS})
    more = rows_of(1)
    assert found.partial_fit([text for text, _ in more], [label for _, label in more]) is found
    assert found.classes_.tolist() == sorted({*LABELS, *(label for _, label in more)})
    tested = [text for task in (0, 1) for text, _ in rows_of(task, "test")]
    gold = [label for task in (0, 1) for _, label in rows_of(task, "test")]
    assert found.predict(tested).tolist() == found.learner_.predict(tested)
    likely = found.predict_proba(tested)
    assert np.allclose(likely.sum(1), 1)
    assert (found.classes_[likely.argmax(1)] == found.predict(tested)).all()
    assert found.score(tested, gold) == np.mean(found.predict(tested) == np.array(gold)) > 0.9
    found.fit(TEXTS, LABELS)
    assert found.classes_.tolist() == sorted({*LABELS}), "fit forgets everything"


@pytest.mark.parametrize(
    "labels",
    [NUMBERS, np.array(NUMBERS), [n - 3 for n in NUMBERS], [n > 0 for n in NUMBERS], np.array(LABELS)],
    ids=["integers", "array", "negative", "booleans", "strings"],
)
def test_labels_come_back_as_they_were(one_layer, labels):
    found = classifier(one_layer).fit(TEXTS, labels)
    predicted = found.predict(TEXTS)
    assert predicted.dtype.kind == np.asarray(labels).dtype.kind
    assert found.classes_.tolist() == sorted({*np.asarray(labels).tolist()})
    assert np.mean(predicted == np.asarray(labels)) > 0.9
    more = np.asarray(labels)[:4]
    assert {*found.partial_fit(TEXTS[:4], more).classes_.tolist()} == {*np.asarray(labels).tolist()}


def test_ten_is_after_nine(one_layer):
    """The learner sorts texts, "10" before "9"; columns of probabilities follow the numbers."""
    found = classifier(one_layer).fit(TEXTS, [9 if label == LABELS[0] else 10 for label in LABELS])
    assert found.classes_.tolist() == [9, 10]
    assert found.learner_.classes_ == ["10", "9"]
    likely = found.predict_proba(TEXTS[:1])
    assert likely[0, 0] == found.learner_.predict_proba(TEXTS[:1])[0, 1]


@pytest.mark.parametrize("labels", [LABELS, NUMBERS], ids=["strings", "integers"])
def test_what_the_learner_was_corrected_to_is_predicted(one_layer, labels):
    found = classifier(one_layer).fit(TEXTS, labels)
    kind, (a, b, *_) = type(labels[0]), found.classes_.tolist()
    new = "other" if kind is str else 123
    found.learner_.rename_label(str(a), str(new))
    assert found.classes_.tolist() == sorted([new, b])
    expected = [new if label == a else label for label in labels]
    assert found.score(TEXTS, expected) > 0.9
    assert found.predict(TEXTS).dtype.kind == np.array(labels).dtype.kind
    more = [kind(7000 + i) for i in range(2)]
    found.learner_.learn(["w1 w2", "w3 w4"], [str(one) for one in more])
    assert found.classes_.tolist() == sorted([new, b, *more])
    assert np.allclose(found.predict_proba(TEXTS).sum(1), 1)
    found.learner_.forget(str(b))
    assert found.classes_.tolist() == sorted([new, *more])
    assert found.predict_proba(TEXTS).shape == (len(TEXTS), 3)
    found.partial_fit(TEXTS[:4], labels[:4])
    assert {*labels[:4]} < {*found.classes_.tolist()}


@pytest.mark.parametrize(
    ("labels", "strange"), [(NUMBERS, "one"), (NUMBERS, "1.0"), ([n > 0 for n in NUMBERS], "yes")]
)
def test_a_label_that_is_no_integer_is_said_where_integers_were_taught(one_layer, labels, strange):
    found = classifier(one_layer).fit(TEXTS, labels)
    found.learner_.rename_label(str(labels[0]), strange)
    said = f"has the label {strange!r}, but labels were"
    with pytest.raises(HoldfastError, match=said) as caught:
        found.predict(TEXTS)
    assert len(str(caught.value).splitlines()) == 1
    with pytest.raises(HoldfastError, match=said):
        _ = found.classes_
    found.learner_.rename_label(strange, str(labels[0]))
    assert found.score(TEXTS, labels) > 0.9


def test_parameters_and_clones(one_layer):
    found = classifier(one_layer, hyper_parameters={"shrinkage": 0.5}, settings={"max_length": 16}, seed=3)
    copy = clone(found.fit(TEXTS, LABELS))
    assert not hasattr(copy, "learner_")
    assert copy.get_params() == found.get_params()
    assert copy.set_params(method="rda").method == "rda"
    assert found.learner_.method.shrinkage == 0.5
    assert found.learner_.settings.max_length == 16
    with pytest.raises(NotFittedError):
        copy.predict(["a"])


def test_cross_validation_pipeline_and_a_search_over_heads(one_layer):
    texts, labels = np.array(TEXTS), np.array(NUMBERS)
    assert cross_val_score(classifier(one_layer), texts, labels, cv=3).mean() > 0.8
    lower = FunctionTransformer(lambda rows: [row.lower() for row in rows])
    steps = Pipeline([("lower", lower), ("classify", classifier(one_layer))])
    assert steps.fit([text.upper() for text in TEXTS], NUMBERS).score(TEXTS, NUMBERS) > 0.9
    heads = {"classify__method": ["slda", "rda"]}
    steps.set_params(classify__hyper_parameters=None)
    search = GridSearchCV(steps, heads, cv=2).fit(TEXTS, NUMBERS)
    assert len(search.cv_results_["params"]) == 2
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_score_ > 0.8
    assert search.predict(TEXTS[:2]).dtype.kind == "i"


# ---- check_estimator ------------------------------------------------------------------------------------

LEFT_OUT = {
    "check_methods_subset_invariance": "in a batch of other lengths the last digits differ",
    "check_array_api_input": "runs only where SCIPY_ARRAY_API is set; texts are no numeric arrays",
}
WORDS = ["music0", "music1", "red", "blue", "w1", "w2", "w3", "w4", "food0", "stock2"]


class OnNumbers(HoldfastClassifier):
    """Reads numbers as words, one for each feature, so that the checks for numbers can run."""

    def __init__(self, model="", method="slda", *, hyper_parameters=None, settings=None, seed=0):
        super().__init__(model, method, hyper_parameters=hyper_parameters, settings=settings, seed=seed)

    def worded(self, X: Any, *, reset: bool) -> list[str]:
        rows = validate_data(self, X, reset=reset)
        places = [[(3 * j + int(np.clip(v, -4, 4) * 2)) % len(WORDS) for j, v in enumerate(r)] for r in rows]
        return [" ".join(WORDS[place] for place in own) for own in places]

    def fit(self, X, y=None):
        return super().fit(self.worded(X, reset=True), y)

    def partial_fit(self, X, y=None, classes=None):
        if not hasattr(self, "learner_"):
            return self.fit(X, y)
        return super().partial_fit(self.worded(X, reset=False), y)

    def predict_proba(self, X):
        check_is_fitted(self)
        return super().predict_proba(self.worded(X, reset=False))

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.no_validation = True, False
        tags.input_tags.string = tags.input_tags.one_d_array = False
        tags.classifier_tags.poor_score = True
        return tags


def test_the_checks_of_scikit_learn_pass(one_layer):
    check_estimator(HoldfastClassifier(one_layer))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_checks_for_numbers_pass_on_numbers_as_words(tmp_path, monkeypatch):
    """Estimators must have defaults: the tiny encoder is the default here."""
    encoder = save_tiny_bert(tmp_path / "encoder", layers=1, more_words=WORDS)
    defaults = (encoder, "slda")
    monkeypatch.setattr(OnNumbers.__init__, "__defaults__", defaults)
    ran = []
    for estimator, check in estimator_checks_generator(OnNumbers()):
        name = check.func.__name__
        if name not in LEFT_OUT:
            check(estimator)
            ran.append(name)
    assert len(ran) > 45
    page = (ROOT / "docs" / "scikit-learn.md").read_text()
    assert set(re.findall(r"^\| `(check_\w+)`", page, re.MULTILINE)) == set(LEFT_OUT)


# ---- tables in, tables out ------------------------------------------------------------------------------


def test_columns_of_pandas(one_layer):
    table = pandas.DataFrame({"text": TEXTS, "label": NUMBERS}, index=range(100, 100 + len(TEXTS)))
    found = classifier(one_layer).fit(table["text"], table["label"])
    kinds = table.astype({"label": "category", "text": "string"})
    other = classifier(one_layer).fit(kinds[["text"]], kinds["label"])
    assert other.predict(kinds["text"]).tolist() == found.predict(table["text"].to_numpy()).tolist()
    table["found"] = found.predict(table["text"])
    assert (table["found"] == table["label"]).mean() > 0.9
    assert table["found"].dtype.kind == "i"


def test_columns_of_datasets(one_layer):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"text": TEXTS, "label": NUMBERS})
    found = classifier(one_layer).fit(data["text"], data["label"])
    assert (
        found.predict(data["text"]).tolist()
        == classifier(one_layer).fit(TEXTS, NUMBERS).predict(TEXTS).tolist()
    )


def test_the_script_of_the_docs_runs(tmp_path, monkeypatch, capsys):
    page = (ROOT / "docs" / "scikit-learn.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[:2]
    words = sorted({*re.findall(r"\w+", " ".join(blocks))} - {"a"})
    save_tiny_bert(tmp_path / "minilm", layers=1, more_words=[word for word in words if word.islower()])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block.replace('"minilm"', '"./minilm"'), "docs", "exec"), names)
    assert list(names["new"].columns) == ["text", "intent", "p_1", "p_2", "p_3"]
    assert names["new"].index.tolist() == ["a", "b"]
    assert names["search"].best_params_["method"] in ("slda", "rda")
    assert names["both"].predict(["play jazz"]).shape == (1, 2)
    assert holdfast.Learner.load("intents").classes_ == ["1", "2", "3"]


# ---- refusals -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "labels", "said"),
    [
        ("one", ["a"], "the texts are one string"),
        (None, ["a"], "the texts are NoneType, not a list"),
        ({"text": ["a"]}, ["a"], "the texts are dict, not a list"),
        ([], [], "X has 0 texts"),
        (["a", None], ["x", "y"], r"text 2 is not text but None .*fill it in"),
        (["a", float("nan")], ["x", "y"], r"text 2 is not text but nan .*fill it in"),
        (pandas.Series(["a", pandas.NA], dtype="string"), ["x", "y"], "text 2 is not text but <NA>"),
        (["a", " "], ["x", "y"], "text 2 is empty"),
        (["a", 7], ["x", "y"], "text 2 is not text but 7"),
        (np.ones((3, 2)), ["x", "y", "z"], "X has 2 columns; give one column"),
        (np.ones(2), ["x", "y"], "text 1 is not text but 1.0"),
        (["a\ud800"], ["x"], "unpaired surrogate"),
        (["a", "b"], ["x"], "2 texts but 1 labels"),
        (["a", "b"], None, "y is None"),
        (["a", "b"], "xy", "y is one string"),
        (["a", "b"], ["x", None], "label 2 is missing"),
        (["a", "b"], [1.0, float("nan")], "label 2 is missing"),
        (["a", "b"], pandas.Series(["x", pandas.NA], dtype="string"), "label 2 is missing"),
        (["a", "b"], [0.5, 1.5], "Unknown label type: continuous"),
        (["a", "b"], ["x", 1], "different types"),
        (["a", "b"], [True, 2], "different types"),
        (["a", "b"], ["x", ""], "label 2 is empty"),
        (["a", "b"], [["x", "y"], ["x"]], "MultiOutputClassifier"),
        (["a", "b"], np.eye(2, dtype=int), "MultiOutputClassifier"),
        (["a", "b"], ["x", b"y"], "use strings or integers"),
        (["a", "b"], ["x", "(unknown)"], "cannot be a label"),
        (["a", "b"], ["x", "y\nz"], "line break or control character"),
        (["a", "b"], ["x", "y\0"], "line break or control character"),
        (["a", "b"], 3, "y is int, not a list"),
        (["a", "b"], {"x": 1, "y": 2}, "y is dict, not a list"),
        (["a", "b"], {"x", "y"}, "y is set, not a list"),
        (["a", "b"], np.array(3), "y is a single value; give a list"),
        (np.array("a"), ["x"], "X is a single value; give a list"),
        (["a", "b"], [np.array([1, 2]), np.array([1, 2])], "MultiOutputClassifier"),
        (["a", "b"], [1, 10**30], "label 2 is an integer of more than 64 bits"),
        (["a", "b"], [10**5000, "x"], "label 1 is an integer of more than 64 bits"),
    ],
)
def test_bad_input_is_one_line(one_layer, texts, labels, said):
    with pytest.raises(HoldfastError, match=said) as caught:
        classifier(one_layer).fit(texts, labels)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"seed": None}, "seed is None; give an integer"),
        ({"seed": 0.5}, "seed is 0.5; give an integer"),
        ({"model": None}, "model is None"),
        ({"method": 3}, "unknown method '3'"),
        ({"method": None}, "unknown method 'None'"),
        ({"hyper_parameters": [1]}, r"hyper_parameters is \[1\]; give a dictionary"),
        ({"hyper_parameters": {1: 2}}, "hyper_parameters is {1: 2}; give a dictionary"),
        ({"hyper_parameters": {"seed": 1}}, "unknown hyper-parameter 'seed'"),
        ({"hyper_parameters": {"generations": 1}}, "unknown hyper-parameter 'generations'"),
        ({"hyper_parameters": {"settings": None}}, "unknown hyper-parameter 'settings'"),
        ({"hyper_parameters": {"shrinkage": "x"}}, "shrinkage='x': expected"),
        ({"settings": [1]}, r"settings is \[1\]; give a dictionary"),
        ({"settings": {"epochs": "x"}}, "epochs='x': expected"),
    ],
    ids=str,
)
def test_bad_parameters_are_one_line(one_layer, parameters, said):
    with pytest.raises(HoldfastError, match=said) as caught:
        HoldfastClassifier(**{"model": one_layer, "method": "slda"} | parameters).fit(TEXTS, LABELS)
    assert isinstance(caught.value, ValueError)
    assert len(str(caught.value).splitlines()) == 1


def test_a_seed_of_numpy_is_an_integer(one_layer):
    assert classifier(one_layer, seed=np.int64(3)).fit(TEXTS, LABELS).learner_.seed == 3


def test_a_lesson_of_another_type_changes_nothing(one_layer):
    found = classifier(one_layer).fit(TEXTS, NUMBERS)
    with pytest.raises(HoldfastError, match="different types"):
        found.partial_fit(["a"], ["new"])
    assert found.learner_.tasks_seen == 1
    with pytest.raises(HoldfastError, match="unknown setting 'max_lenght'"):
        classifier(one_layer, settings={"max_lenght": 3}).fit(TEXTS, NUMBERS)
    with pytest.raises(HoldfastError, match="unknown method"):
        classifier(one_layer, method="sldaa").fit(TEXTS, NUMBERS)


def test_independent_answers_as_the_refusal_advises(one_layer):
    answers = [[n > 0, n == 0] for n in NUMBERS]
    both = MultiOutputClassifier(classifier(one_layer)).fit(TEXTS, np.array(answers))
    assert (both.predict(TEXTS) == np.array(answers)).mean() > 0.9


def test_without_scikit_learn_one_line_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "holdfast.everyday.scikit")
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(HoldfastError, match=re.escape("pip install 'holdfast[sklearn]'")) as caught:
        _ = holdfast.HoldfastClassifier
    assert len(str(caught.value).splitlines()) == 1
    assert holdfast.Learner

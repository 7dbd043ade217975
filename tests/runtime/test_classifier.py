"""The classifier without torch: the learner's answers, from one graph or from shared ones."""

from __future__ import annotations

import doctest
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from helpers.artefacts import SENTENCES, exported, learners_answers, same_answers, state_of
from helpers.command_line import environment
from helpers.learners import STREAM
from helpers.toys import save_tiny_bert

from holdfast import runtime
from holdfast.errors import HoldfastError
from holdfast.learning.learner import Learner
from holdfast.maths.metrics import macro_f1
from holdfast.methods import METHODS
from holdfast.runtime import Asked, Classifier
from holdfast.runtime.artefact import Thresholds
from holdfast.runtime.classifier import MOST_ROWS, MOST_TOKENS, batches
from holdfast.runtime.decisions import sets_of
from holdfast.runtime.sessions import GRAPHS, WORDS

QUESTIONS = [
    Asked(),
    Asked(top=3),
    Asked(top=99, reject=0.9, least=0.3, cover=0.95),
    Asked(reject=0.5, cover=0.62),
]


@pytest.mark.parametrize("asked", QUESTIONS)
def test_the_answers_are_those_of_the_learner(learnt: Path, artefact: Path, asked: Asked) -> None:
    found = Classifier(artefact).answers(SENTENCES, asked)
    same_answers(learners_answers(learnt, asked), found)
    if asked.reject:
        assert {one.label is None for one in found} == {True, False}, "both kinds occur"
    if asked.cover:
        assert len({len(one.set or []) for one in found}) > 1


def test_shared_graphs_give_the_same_answers(learnt: Path, tenants: Path) -> None:
    asked = Asked(top=4, reject=0.8, cover=0.8)
    same_answers(learners_answers(learnt, asked), Classifier(tenants / "a").answers(SENTENCES, asked))


def test_labels_predict_and_probabilities(learnt: Path, artefact: Path) -> None:
    learner, classifier = Learner.load(learnt), Classifier(artefact)
    assert classifier.labels == learner.classes_
    assert classifier.generation == 1
    assert classifier.predict(SENTENCES) == learner.predict(SENTENCES)
    np.testing.assert_allclose(
        classifier.predict_proba(SENTENCES), learner.predict_proba(SENTENCES), atol=1e-4
    )
    assert classifier.answers([]) == []
    assert classifier.predict_proba([]).shape == (0, 4)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted({*METHODS} - {"mtl"}))
def test_every_method_can_be_exported(method: str, tiny_bert: str, tmp_path: Path) -> None:
    state = state_of(tiny_bert, tmp_path / "state", method)
    adapted = Learner.load(state).model.adapted
    assert adapted or method not in ("seq", "la"), "the encoder is another than the one it began as"
    for share in (False, True):
        classifier = Classifier(exported(state, tmp_path / f"{share}", onnx=True, share=share))
        same_answers(learners_answers(state, Asked(top=4)), classifier.answers(SENTENCES, Asked(top=4)))


def test_a_trained_encoder_is_exported_with_its_adapters(tiny_bert: str, tmp_path: Path) -> None:
    state = state_of(tiny_bert, tmp_path / "state", "seq")
    assert Learner.load(state).model.adapted
    classifier = Classifier(exported(state, tmp_path / "one", onnx=True))
    same_answers(learners_answers(state, Asked(top=4)), classifier.answers(SENTENCES, Asked(top=4)))
    with pytest.raises(HoldfastError, match="cannot detect unknown inputs"):
        classifier.answers(["x"], Asked(reject=0.9))
    with pytest.raises(HoldfastError, match="no prediction sets"):
        classifier.answers(["x"], Asked(cover=0.9))


def test_eight_bits_answer_nearly_the_same(learnt: Path, artefact: Path, tmp_path: Path) -> None:
    rounded = exported(learnt, tmp_path / "int8", onnx=True, int8=True)
    texts = [text for task in STREAM.tasks[:2] for text in task.test.texts]
    gold = [label for task in STREAM.tasks[:2] for label in task.test.labels]
    scores = [macro_f1(gold, Classifier(place).predict(texts)) for place in (artefact, rounded)]
    assert scores[1] > scores[0] - 0.1
    exact, near = (Classifier(place).predict_proba(texts) for place in (artefact, rounded))
    assert 0 < abs(exact - near).max() < 0.5
    sizes = [max(file.stat().st_size for file in place.iterdir()) for place in (artefact, rounded)]
    assert sizes[1] < sizes[0]


def test_it_imports_neither_torch_nor_transformers(artefact: Path) -> None:
    code = (
        "import sys\nfrom holdfast.runtime import Asked, Classifier\n"
        f"assert Classifier({str(artefact)!r}).answers(['music0 the'], Asked(2, 0.9, 0.1, 0.9))[0].top\n"
        "print(sorted({'torch', 'transformers', 'scipy', 'accelerate', 'onnx'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment())
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_a_moved_artefact_answers(
    tenants: Path, artefact: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(artefact, tmp_path / "far" / "one")
    shutil.copytree(tenants, tmp_path / "far" / "tenants")
    expected = Classifier(artefact).predict(SENTENCES)
    monkeypatch.chdir(tmp_path / "far")
    assert Classifier("one").predict(SENTENCES) == expected
    assert Classifier("tenants/b").predict(SENTENCES) == expected
    monkeypatch.chdir("tenants/b")
    assert Classifier(".").predict(SENTENCES) == expected


def test_what_classifiers_have_in_common_is_loaded_once(tenants: Path) -> None:
    before = len(GRAPHS), len(WORDS)
    first = Classifier(tenants / "a", threads=3)
    once = len(GRAPHS), len(WORDS)
    assert once > before
    second = Classifier(tenants / "b", threads=3)
    assert (len(GRAPHS), len(WORDS)) == once, "even the head: its file is the same"
    assert first._graphs[0] is second._graphs[0]
    del first, second
    assert (len(GRAPHS), len(WORDS)) == before, "and goes with the last that uses it"


def test_threads_may_share_a_classifier(artefact: Path) -> None:
    classifier = Classifier(artefact)
    expected = classifier.predict(SENTENCES)
    found: list[list[str]] = []
    work = [threading.Thread(target=lambda: found.append(classifier.predict(SENTENCES))) for _ in range(6)]
    for one in work:
        one.start()
    for one in work:
        one.join()
    assert found == [expected] * 6


def test_batches_hold_texts_of_similar_length_and_are_bounded() -> None:
    lengths = [5, 100, 3, 100, 4, *[90] * 200, 40_000]
    found = list(batches(lengths))
    assert sorted(place for batch in found for place in batch) == list(range(len(lengths)))
    assert found[0][:3] == [2, 4, 0]
    flat = [lengths[place] for batch in found for place in batch]
    assert flat == sorted(flat)
    for batch in found:
        assert len(batch) <= MOST_ROWS
        assert len(batch) == 1 or len(batch) * max(lengths[i] for i in batch) <= MOST_TOKENS
    assert list(batches([])) == []


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ("one string", "the texts are one string"),
        (["fine", "\udc80"], "text 2 has an unpaired surrogate"),
        (["fine", None], "text 2 is not text but None"),
        (None, "NoneType, not a list"),
        ((text for text in ["fine"]), "generator, not a list"),
    ],
)
def test_texts_that_are_none(texts: list[str], expected: str, artefact: Path) -> None:
    with pytest.raises(HoldfastError, match=expected):
        Classifier(artefact).answers(texts)


@pytest.mark.parametrize("name", ["Classifier", "Tenants"])
def test_the_example_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["wake", "me", "at", "six", "play", "some", "jazz"]
    save_tiny_bert(tmp_path / "encoder", layers=1, more_words=words)
    monkeypatch.chdir(tmp_path)
    (test,) = (t for t in doctest.DocTestFinder().find(getattr(runtime, name), name) if t.examples)
    said: list[str] = []
    failed, tried = doctest.DocTestRunner().run(test, out=said.append)
    assert tried > 5
    assert not failed, "".join(said)


# ---- decisions --------------------------------------------------------------------------------------------


def test_thresholds_are_interpolated_and_bounded() -> None:
    limits = Thresholds([0.5, 0.9, 0.99], [1.0, 3.0, 12.0])
    assert [limits.at(level, "rejection") for level in (0.5, 0.7, 0.9, 0.99)] == pytest.approx([1, 2, 3, 12])
    assert limits.at(0.945, "rejection") == pytest.approx(np.interp(0.945, limits.levels, limits.values))
    for level in (0.49, 0.995):
        with pytest.raises(HoldfastError, match=f"sets can keep between 0.5 and 0.99 .* not {level}"):
            limits.at(level, "sets")
    with pytest.raises(HoldfastError, match="learn more"):
        Thresholds(why="learn more").at(0.9, "rejection")


def test_a_set_by_hand() -> None:
    """The part of "x" is 0x2d711642b726 / 16^12 = 0.17750..., that of its label's own probability counts."""
    order, ranked = np.array([[2, 0, 1]]), np.array([[0.6, 0.3, 0.1]])
    labels = ["a", "b", "c"]
    # The scores are 0.1775 * 0.6 = 0.1065, 0.6 + 0.1775 * 0.3 = 0.65325 and 0.9 + 0.1775 * 0.1 = 0.91775.
    for limit, expected in ((0.1, []), (0.11, ["c"]), (0.66, ["c", "a"]), (0.92, ["c", "a", "b"])):
        assert sets_of(["x"], labels, order, ranked, limit) == [expected]

"""Prediction in many threads: every answer is the one that a single thread gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soak
from helpers.learners import STREAM, TEXTS, taught

from holdfast import Learner
from holdfast.models import build_classifier

THREADS = 8
CALLS = 10


def dropping(learner: Learner) -> bool:
    """Return whether any part of the model drops activations."""
    return any(module.training for module in (learner.model.dropout, *learner.model.encoder.modules()))


@pytest.mark.parametrize("method", ["slda", pytest.param("la", marks=pytest.mark.slow)])
def test_threads_get_the_answers_of_one_thread(tiny_bert: str, tmp_path: Path, method: str) -> None:
    taught(tiny_bert, method).save(tmp_path)
    learner = Learner.load(tmp_path)
    expected = {text: Learner.load(tmp_path).predict_proba([text]) for text in TEXTS}

    def ask(thread: int) -> list[str]:
        texts = [TEXTS[(thread + call) % len(TEXTS)] for call in range(CALLS)]
        return [text for text in texts if not np.array_equal(learner.predict_proba([text]), expected[text])]

    with ThreadPoolExecutor(THREADS) as pool:
        wrong = [text for found in pool.map(ask, range(THREADS)) for text in found]
    assert not wrong, f"{len(wrong)} of {THREADS * CALLS} answers differ"


def test_prediction_leaves_the_model_alone(tiny_bert: str) -> None:
    learner = taught(tiny_bert)
    assert not dropping(learner), "dropout is off unless a training is under way"

    def refuse(mode: bool = True) -> None:
        raise AssertionError("prediction must not change the mode of the model")

    learner.model.train = refuse  # type: ignore[method-assign, assignment]
    learner.predict(TEXTS)
    learner.predict_proba(TEXTS)
    learner.is_unknown(TEXTS)
    learner.score(TEXTS, learner.predict(TEXTS))


def test_counting_long_texts_does_not_change_how_others_are_cut(one_layer: str) -> None:
    model, long = build_classifier(one_layer), ["music0 " * 300]

    def ask(thread: int) -> set[int]:
        if thread % 2:
            return {model.cut(long) for _ in range(100)}
        return {len(model.tokenize(long)[0]) for _ in range(100)}

    with ThreadPoolExecutor(THREADS) as pool:
        assert list(pool.map(ask, range(THREADS))) == [{model.max_length}, {1}] * (THREADS // 2)


def test_a_training_that_fails_leaves_no_dropout(one_layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    learner = taught(one_layer, "mas", tasks=1)

    def fail(epoch: int, epochs: int, losses: dict[str, float]) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(learner.progress, "epoch", fail)
    with pytest.raises(KeyboardInterrupt):
        learner.learn(STREAM.tasks[1])
    assert not dropping(learner)


@pytest.mark.slow
def test_threads_beside_a_process_that_commits(one_layer: str, tmp_path: Path) -> None:
    found = soak.threads(one_layer, tmp_path, predictions=200)
    assert found["answers"] >= soak.THREADS * 200
    assert found["generations seen"] > soak.COMMITS // 2
    assert found["wrong"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("method", ["auto", "slda"])
def test_lessons_do_not_make_a_state_grow(one_layer: str, tmp_path: Path, method: str) -> None:
    assert soak.lessons(one_layer, tmp_path, 30, history=True, method=method)["state"] == 1.0


@pytest.mark.slow
def test_fuzzed_files_give_no_traceback(one_layer: str, tmp_path: Path) -> None:
    assert soak.fuzz(800, one_layer, tmp_path)["faults"] == 0

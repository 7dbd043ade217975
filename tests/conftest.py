"""The environment of the tests, hooks for pytest and the fixtures that all tests share."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator

# Set before torch is imported. Processes that tests start inherit these variables.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Without a fixed instruction set, MKL rounds differently on each CPU generation; tests/frozen would fail.
os.environ.setdefault("MKL_CBWR", "AVX2")

import pytest
import torch
from helpers.toys import class_stream, domain_stream, save_tiny_bert, small

from holdfast.data.tasks import Stream
from holdfast.models import Classifier, build_classifier

# A shell's background jobs may ignore Ctrl-C, and child processes inherit that. Some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# ---- hooks --------------------------------------------------------------------------------------------


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave repeated runs of every method to the slow tests: the contract suite compares two runs too."""
    for item in items:
        if item.nodeid.startswith("tests/frozen/test_frozen.py::test_two_runs"):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exclude all current objects from garbage collection: Accelerate collects after every training."""
    gc.collect()
    gc.freeze()


# ---- fixtures -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the tiny BERT."""
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_bert_dry(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a tiny BERT without dropout in the encoder."""
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "dry", dropout=0.0)


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a tiny BERT of one layer, for tests that do not need two."""
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "one", layers=1)


@pytest.fixture
def classes() -> Stream:
    return class_stream()


@pytest.fixture
def domains() -> Stream:
    return domain_stream()


@pytest.fixture
def tiny(tiny_bert: str) -> Classifier:
    return build_classifier(tiny_bert, small())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: results are bit-equal only at the same number of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

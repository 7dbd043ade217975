"""The environment of the tests, hooks for pytest and the fixtures that all tests share."""

from __future__ import annotations

import gc
import math
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

# Set before torch is imported. Processes that tests start inherit these variables.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Without a fixed instruction set, MKL rounds differently on each CPU generation; tests/frozen would fail.
os.environ.setdefault("MKL_CBWR", "AVX2")

import pytest

if TYPE_CHECKING:
    from holdfast.data.tasks import Stream
    from holdfast.models import Network

# A shell's background jobs may ignore Ctrl-C, and child processes inherit that. Some tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# ---- hooks --------------------------------------------------------------------------------------------


FROZEN = re.compile(r"tests/frozen/test_frozen.py::(test_two_runs|test_a_method_ends.*/domains)")
"""Slow tests: the contract suite also compares two runs, and learns both streams."""
FEW = {
    "test_a_record_that_is_not_whole_is_left_out": 6,
    "test_what_decides_a_training_is_in_its_name": 3,
    "test_every_label_has_enough_sentences_in_every_part": 2,
    "test_the_seed_decides_the_sentences": 1,
    "test_what_is_fetched_loads": 1,
    "test_a_fixed_lam_is_kept": 1,
    "test_fixed_lam": 1,
    "test_lambda_infinity_holds_every_entry_the_past_needs": 2,
    "test_the_proximal_form_is_stable_at_every_strength": 2,
    "test_where_the_learner_starts": 2,
    "test_fixed_down_and_up_make_one_main_training": 1,
    "test_a_main_phase_by_hand": 3,
    "test_a_training_by_hand": 3,
    "test_one_label_and_one_example_are_enough": 2,
    "test_a_zero_up_projection_leaves_the_output_bit_equal": 8,
    "test_a_budget_of_any_size_is_kept": 2,
    "test_chosen_and_search_passes_are_every_step_that_was_taken": 1,
    "test_a_resumed_training_ends_with_the_same_bits": 2,
}
"""Tests with many cases, of which `make test` runs only so many; .ci/run runs all."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what `make test` leaves out."""
    cases: Counter[tuple[object, str]] = Counter()
    for item in items:
        name = getattr(item, "originalname", item.name)
        cases[item.parent, name] += 1
        if FROZEN.match(item.nodeid) or cases[item.parent, name] > FEW.get(name, math.inf):
            item.add_marker(pytest.mark.slow)


def pytest_collection_finish() -> None:
    """Exclude all current objects from garbage collection: Accelerate collects after every training."""
    gc.collect()
    gc.freeze()


# Imports in fixtures: the process that only distributes tests starts without torch.
# ---- fixtures -----------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of the tiny BERT."""
    from helpers.toys import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def tiny_bert_dry(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a tiny BERT without dropout in the encoder."""
    from helpers.toys import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("models") / "dry", dropout=0.0)


@pytest.fixture(scope="session")
def one_layer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the path of a tiny BERT of one layer, for tests that do not need two."""
    from helpers.toys import save_tiny_bert

    return save_tiny_bert(tmp_path_factory.mktemp("models") / "one", layers=1)


@pytest.fixture
def classes() -> Stream:
    from helpers.toys import class_stream

    return class_stream()


@pytest.fixture
def domains() -> Stream:
    from helpers.toys import domain_stream

    return domain_stream()


@pytest.fixture
def tiny(tiny_bert: str) -> Network:
    from helpers.toys import small

    from holdfast.models import build_classifier

    return build_classifier(tiny_bert, small())


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread: results are bit-equal only at the same number of threads."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""The contract, continued: a new process that loads the state gives bit-equal results."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from helpers.contract import every_method, taught
from helpers.paths import ROOT, TESTS
from helpers.weights import assert_same_bits

from holdfast.storage.generations import Store

# 3 ---- a fresh process continues ----------------------------------------------------------------------

CONTINUE = """
import gc
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import torch
torch.set_num_threads(1)
from helpers.learners import make_learner, make_method
from helpers.toys import class_stream, small
from holdfast.storage.generations import Store
gc.freeze()  # Accelerate collects garbage after every training
for name in map(str.strip, sys.stdin):
    home, stream = Path({home!r}) / name, class_stream()
    learner = make_learner({model!r}, make_method(name), stream, small(epochs=2))
    saved = Store(home).load()
    learner.load_state(saved.tensors, saved.sections)
    learner.learn(stream.tasks[2])
    Store(home).commit(*learner.state())
    print("taught", name, flush=True)
"""


@pytest.fixture(scope="session")
def another_process(
    tiny_bert: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Path]]:
    """Start a process that loads a method's state and teaches the third task."""
    home = tmp_path_factory.mktemp("continued")
    script = CONTINUE.format(tests=str(TESTS), home=str(home), model=tiny_bert)
    with (home / "errors").open("w+") as errors:
        other = subprocess.Popen(
            [sys.executable, "-c", script],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        assert other.stdin is not None
        assert other.stdout is not None

        def teach(name: str) -> Path:
            print(name, file=other.stdin, flush=True)
            if other.stdout.readline().strip() != f"taught {name}":
                other.wait()
                pytest.fail((home / "errors").read_text())
            return home / name

        teach.home = home
        yield teach
        other.stdin.close()
        assert other.wait() == 0


@every_method
def test_a_fresh_process_goes_on_bit_equal(tiny_bert, another_process, name):
    Store(another_process.home / name).commit(*taught(tiny_bert, name, "classes").states[1])
    saved = Store(another_process(name)).load()
    tensors, meta = saved.tensors, saved.sections
    expected, expected_meta = taught(tiny_bert, name, "classes").states[2]
    assert meta == expected_meta
    assert tensors.keys() == expected.keys()
    for group, params in expected.items():
        assert_same_bits(tensors[group], params)

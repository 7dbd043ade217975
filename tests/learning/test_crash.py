"""A hundred kills during `learn`: the last committed generation stays usable."""

from __future__ import annotations

import os
import random
import signal
import time
import traceback
from pathlib import Path

import pytest
from helpers.everyday import rows_of, table
from helpers.learners import FAST

from holdfast import Learner
from holdfast.everyday import teach
from holdfast.storage import files
from holdfast.storage.generations import Store

KILLS, AT_LEAST_WITHIN = 100, 60
SLOW = 0.02  # seconds before and after each disk operation


def slowly(original):
    def slow(*args):
        time.sleep(SLOW)
        result = original(*args)
        time.sleep(SLOW)
        return result

    return slow


def learning(mine: Path, source: str, announce: int) -> None:
    """Learn with a slow commit, and announce its start. Runs in the child."""
    commit = Store.commit

    def announced(self, *args):
        os.write(announce, b"!")
        return commit(self, *args)

    Store.commit = announced
    files.os.fsync, files.os.replace = slowly(os.fsync), slowly(os.replace)
    teach.learn(mine, source, again=True)


def child(mine: Path, source: str) -> tuple[int, int]:
    """Fork, so that no time is spent on imports."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(read)
            learning(mine, source, write)
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    os.close(write)
    return pid, read


@pytest.mark.slow
def test_a_hundred_kills(one_layer, tmp_path):
    mine, draw = tmp_path / "mine", random.Random(0)
    texts, labels = zip(*rows_of(0), strict=True)
    learner = Learner.create(one_layer, "slda", settings=FAST, generations=3)
    learner.learn(texts, labels)
    learner.save(mine)
    source = table(tmp_path / "more.csv", rows_of(1))
    asked = [text for text, _ in rows_of(0, "test") + rows_of(1, "test")]
    answers = {1: Learner.load(mine).predict(asked)}

    def finish() -> tuple[float, float]:
        """Let a rerun finish; return the seconds before its commit and of the commit."""
        began = time.monotonic()
        pid, announcement = child(mine, source)
        assert os.read(announcement, 1) == b"!"
        middle = time.monotonic()
        assert os.waitpid(pid, 0)[1] == 0
        os.close(announcement)
        number = Store(mine).current
        assert number is not None
        assert number == max(answers) + 1, "a rerun continues from the last committed generation"
        answers[number] = Learner.load(mine).predict(asked)
        return middle - began, time.monotonic() - middle

    before, during = finish()
    within = 0
    for kill in range(KILLS):
        start = Store(mine).current
        assert start is not None
        pid, announcement = child(mine, source)
        into_the_commit = kill % 5 != 0
        if into_the_commit:
            assert os.read(announcement, 1) == b"!"
            time.sleep(draw.uniform(0, 0.4 * during))
        else:
            time.sleep(draw.uniform(0, before))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(announcement)
        now = Store(mine).current
        assert now in (start, start + 1)
        within += into_the_commit and now == start
        learner = Learner.load(mine)
        if now not in answers:  # the pointer was replaced before the kill: one lesson more
            answers[now] = learner.predict(asked)
            assert learner.tasks_seen == now
        assert learner.predict(asked) == answers[now]
        if kill % 10 == 9:
            finish()
    assert within >= AT_LEAST_WITHIN
    finish()
    left = {path.name for path in mine.iterdir()}
    generations = {f"generation-{n:06d}" for n in Store(mine).generations}
    assert left == generations | {"CURRENT", "README.md", ".lock"}, "the next commit removes leftovers"

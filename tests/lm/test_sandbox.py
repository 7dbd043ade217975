"""The sandbox: isolation, limits and outcomes of untrusted programs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from holdfast.errors import HoldfastError
from holdfast.lm import evaluate, sandbox
from holdfast.lm.sandbox import Limits
from holdfast.lm.sandbox import run_program as run
from holdfast.lm.tasks import Program

SHORT = Limits(seconds=3)
isolated = pytest.mark.skipif(not sandbox.namespaces(), reason="this system does not support namespaces")
runs = pytest.mark.skipif(
    os.geteuid() == 0 and not sandbox.namespaces(), reason="programs are not run as root without namespaces"
)


@runs
def test_what_works_passes_and_what_does_not_fails() -> None:
    assert run("import re, math, collections, heapq\nassert math.sqrt(4) == 2").outcome == "passed"
    assert run("assert 1 == 2").outcome == "failed"
    assert run("def f(:").outcome == "failed"
    assert run("import sys; sys.exit(3)").outcome == "failed"
    assert run("open('mine', 'w').write('x'); assert open('mine').read() == 'x'").outcome == "passed"


@runs
def test_a_program_that_leaves_before_its_tests_has_not_passed() -> None:
    for early in (
        "import sys; sys.exit()",
        "import os; os._exit(0)",
        "if __name__ == '__main__': raise SystemExit",
    ):
        item = Program("add", "", ("assert add(1, 2) == 3",))
        assert not evaluate.passes(item, f"def add(a, b):\n    return 0\n{early}")
    typed = Program("first", "", ("assert first([1]) == 1",))
    assert evaluate.passes(typed, "def first(x: List[int]) -> int:\n    return x[0]"), "as lm-eval runs it"


@runs
def test_a_program_that_says_too_much_is_stopped() -> None:
    assert run("while True: print('x' * 10**6)", Limits(seconds=60)).outcome == "failed", "not timed out"
    assert run("for i in range(99): open(str(i), 'wb').write(bytes(2**20))", SHORT).outcome == "failed"


@runs
def test_an_infinite_loop_ends_in_time() -> None:
    assert run("while True: pass", SHORT).outcome == "timed out"


@runs
def test_a_program_that_leaves_its_session_ends_with_its_time() -> None:
    memory = 2**29 + os.getpid()  # a unique argument, to find the processes
    code = "import os, time\nos.setsid()\ntime.sleep(3600)"
    assert run(code, Limits(seconds=1, memory=memory)).outcome == "timed out"
    assert gone(memory)


def gone(memory: int) -> bool:
    """Return whether no process with this memory limit is left."""
    time.sleep(0.3)
    listed = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True).stdout
    return str(memory) not in listed


@runs
def test_ten_gigabytes_are_refused() -> None:
    found = run("x = bytearray(10 * 2**30)", SHORT)
    assert (found.outcome, found.said) == ("failed", "MemoryError")


@runs
def test_a_fork_bomb_is_bounded_and_leaves_nothing() -> None:
    memory = 2**29 + os.getpid()
    code = "import os, time\nfor _ in range(60):\n    os.fork()\ntime.sleep(30)"
    found = run(code, Limits(seconds=3, memory=memory))
    assert found.outcome in ("failed", "timed out")
    assert gone(memory)


@isolated
def test_the_file_system_is_not_its_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    for place in (
        tmp_path / "evil",
        Path("/tmp/holdfast-evil"),
        Path("/etc/holdfast-evil"),
        Path.cwd() / "evil",
    ):
        assert run(f"open({str(place)!r}, 'w').write('x')", SHORT).outcome == "failed"
        assert not place.exists()
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o666)
    assert run(f"import os; os.remove({str(victim)!r})", SHORT).outcome == "failed"
    assert victim.read_text() == "mine"


@isolated
def test_it_is_nobody_alone_and_without_a_network() -> None:
    powers = (
        "[line for line in open('/proc/self/status') if line.startswith(('CapEff', 'CapBnd', 'NoNewPrivs'))]"
    )
    seen = run(f"print(*{powers}, sep='')", SHORT)
    lines = run(f"assert [int(line.split()[1], 16) for line in {powers}] == [0, 0, 1]", SHORT)
    assert lines.outcome == "passed", (seen, lines)
    if os.geteuid() == 0:
        assert run("import os; assert os.getuid() == os.geteuid() == 65534", SHORT).outcome == "passed"
    assert run("import os; os.system('mount -o remount,rw /') and 1/0", SHORT).outcome == "failed"
    seen = run("import os; print(sum(name.isdigit() for name in os.listdir('/proc')))", SHORT).said
    assert int(seen) < 4
    assert run("import socket; socket.create_connection(('127.0.0.1', 9), 1)", SHORT).outcome == "failed"
    mine = os.getpid()
    assert run(f"import os; os.kill({mine}, 9)", SHORT).outcome == "failed"


def test_root_without_namespaces_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "namespaces", lambda: ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(HoldfastError, match="not run as root without namespaces"):
        run("pass")


@runs
def test_a_task_is_passed_by_its_solution_only() -> None:
    item = Program(
        "add", "def add(a, b):\n    return a + b", ("assert add(1, 2) == 3", "assert add(0, 0) == 0")
    )
    assert evaluate.passes(item, item.code)
    assert not evaluate.passes(item, "def add(a, b):\n    return a - b")
    assert not evaluate.passes(item, "I would rather not")

"""A sandbox for untrusted Python programs.

A program runs alone in its own mount, pid, network, IPC and UTS namespaces, as nobody and without
capabilities; users other than root get a user namespace as well. It sees an empty root with its own folder, a
small tmpfs, and a read-only view of Python and the system's libraries: no home, no /proc, no /dev, and no
variable of the user's environment. It cannot open sockets, start processes or threads, or use keyrings and
shared memory. Time, output and file sizes are limited. As there is only one process, the limit on its memory
is a limit on the total; its folder and some tens of megabytes of kernel buffers may come on top.

The sandbox fails closed. Before the first program, a known-good and a known-bad one are run, and one that
tries to get out. If these do not end as they should, or if a later set-up fails, `HoldfastError` is raised: a
broken set-up never counts as a failed program. Nothing runs outside the sandbox unless the caller passes
`unsafe=True`. There, only the limits apply; programs of root may start processes, which may outlive them.

What a program says about itself is a claim. It controls its interpreter and can pretend to have run to its
end, so "passed" is only as honest as the program. To judge a program, put `questions` to it and compare the
answers elsewhere, as `evaluate.passes` does: answers are data, and the right ones are not in its reach.

When a program ends or its time is over, it is killed with all it has started. The same happens if the process
that runs it is killed. Nothing is left on disk; only a program outside the sandbox has a temporary directory,
which stays if this process is killed. The sandbox does not protect against bugs in the kernel.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import cache
from typing import Literal

from holdfast.errors import HoldfastError
from holdfast.lm import launcher

Outcome = Literal["passed", "failed", "timed out"]
MEGABYTE = 2**20
LOUD = MEGABYTE  # bytes of output, or of answers, at which a program is killed
ROOM = 32 * MEGABYTE  # for the files of a program
PATIENCE = 120.0  # seconds for the set-up; not part of a program's time


@dataclass(frozen=True)
class Limits:
    """Resource limits of a program: seconds, bytes of memory, bytes per file."""

    seconds: float = 5.0
    memory: int = 512 * MEGABYTE
    file: int = 4 * MEGABYTE


@dataclass(frozen=True)
class Result:
    """The outcome of a program, its last line of output (empty after a timeout) and its answers.

    The answers are the text that the program has written, not yet parsed. Parse it in a sandbox, with READ.
    """

    outcome: Outcome
    said: str = ""
    answers: str = ""


# Runs in the program's interpreter. Until it has said that it has started, the program is not there.
HARNESS = r"""
import json, resource, sys
from collections.abc import Set

report, seconds, memory, size = map(int, sys.argv[1:])
for what, most in (
    (resource.RLIMIT_CPU, seconds),
    (resource.RLIMIT_AS, memory),
    (resource.RLIMIT_FSIZE, size),
    (resource.RLIMIT_CORE, 0),
    (resource.RLIMIT_NOFILE, 64),
    (resource.RLIMIT_NPROC, 1),
):
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))

def plain(value):
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, int):
        return "int", hex(value)
    if isinstance(value, float):
        return "float", float.hex(value)
    if isinstance(value, complex):
        return "complex", (value.real.hex(), value.imag.hex())
    if isinstance(value, bytes):
        return "bytes", value.hex()
    if isinstance(value, dict):
        return "dict", [(plain(key), plain(one)) for key, one in value.items()]
    for kind in (list, tuple, frozenset, Set):
        if isinstance(value, kind):
            return kind.__name__.lower(), [plain(one) for one in value]
    raise TypeError(f"{type(value).__name__} is not plain data")

def tell(text):
    with open(report, "w", closefd=False) as out:
        out.write(text)

tell("started\n")
code, questions = json.loads(sys.stdin.readline())
sys.stdin.close()
space = {"__name__": "program"}
exec(compile(code, "<program>", "exec"), space)
tell(json.dumps([plain(eval(question, space)) for question in questions]))
"""
STARTED = b"started\n"

# The inverse of `plain` above, for another program: `read(json.loads(answers)[0])` is the first answer. The
# values have built-in types, whatever the text is.
READ = """
import json

def read(told):
    if not isinstance(told, list):
        return told
    kind, inside = told
    if kind == "int":
        return int(inside, 16)
    if kind == "float":
        return float.fromhex(inside)
    if kind == "complex":
        return complex(*map(float.fromhex, inside))
    if kind == "bytes":
        return bytes.fromhex(inside)
    if kind == "dict":
        return {read(key): read(one) for key, one in inside}
    return {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}[kind](map(read, inside))
"""

# Programs with a known outcome; they run before all others.
GOOD, ASKED, RIGHT = (
    "import collections, heapq, re",
    "collections.Counter(yes=True)",
    '["dict", [["yes", true]]]',
)
BAD = "assert 1 == 2"
CURIOUS = """
import os, socket
reached = [*(set(os.environ) - {{"HOME", "TMPDIR", "PATH", "LANG"}}), *(set(os.listdir("/")) - {root!r})]
for name, attempt in (
    ("a process", os.fork),
    ("a socket", socket.socket),
    ("the rights of root", lambda: os.setuid(0)),
    ("a writable root", lambda: os.mkdir("/mine")),
):
    try:
        attempt()
    except OSError:
        continue
    reached.append(name)
print(*reached, sep=", ")
"""


def run_program(
    code: str,
    limits: Limits = Limits(),  # noqa: B008
    *,
    questions: Sequence[str] = (),
    unsafe: bool = False,
) -> Result:
    """Run a program, then evaluate `questions`: expressions whose values are plain data.

    The program passes if, by its own account, it runs to its end and answers every question. Plain data are
    None, numbers, strings, and built-in collections of plain data. An instance of a subclass is reported as
    the class that it extends. With `unsafe`, the program also runs where the sandbox does not work.
    """
    check(unsafe=unsafe)
    try:
        return _run(code, limits, questions, isolated=problem() is None)
    except _SetUpError as error:
        raise HoldfastError(f"the sandbox could not be set up for a program: {error}; try again") from None


def check(*, unsafe: bool = False) -> None:
    """Raise an error if programs cannot be run: in the sandbox or, with `unsafe`, without it."""
    found = problem()
    if found is not None and not unsafe:
        raise HoldfastError(
            f"the sandbox for programs does not work on this machine: {found}; allow user namespaces, "
            "run as root with all capabilities, or run the programs unprotected with --unsafe-run-code"
        )
    if found is not None and (found := unsafe_problem()) is not None:
        raise HoldfastError(f"programs cannot be run on this machine, even unprotected: {found}")


@cache
def problem() -> str | None:
    """Return why the sandbox does not work on this machine, or None if it works."""
    root = {path.split("/")[1] for path in (launcher.FOLDER, *_view()[0], *_view()[1])}
    try:
        found = _tried(isolated=True)
        seen = _run(CURIOUS.format(root=root), Limits(PATIENCE), ("reached",), isolated=True)
    except _SetUpError as error:
        return str(error)
    if found is None and seen.outcome != "passed":
        found = f"a test program {seen.outcome}: {seen.said}"
    elif found is None and seen.answers != '[["list", []]]':
        found = f"a program could reach {seen.said}"
    return found


@cache
def unsafe_problem() -> str | None:
    """Return why programs cannot be run without the sandbox, or None if they can."""
    try:
        return _tried(isolated=False)
    except _SetUpError as error:
        return str(error)


def _tried(*, isolated: bool) -> str | None:
    """Run a known-good and a known-bad program; return what is wrong with the outcomes, or None."""
    good = _run(GOOD, Limits(PATIENCE), (ASKED,), isolated=isolated)
    if good.answers != f"[{RIGHT}]":
        return f"a known-good program {good.outcome}: {good.said}"
    bad = _run(BAD, Limits(PATIENCE), (), isolated=isolated)
    return None if bad.outcome == "failed" else f"a known-bad program {bad.outcome}"


# ---- one program ------------------------------------------------------------------------------------------


class _SetUpError(Exception):
    """The program was not started, for the given reason."""


def _run(code: str, limits: Limits, questions: Sequence[str], *, isolated: bool) -> Result:
    with _started(limits, isolated=isolated) as (process, heard):
        if not heard.listen(PATIENCE, lambda: heard.report.startswith(STARTED)):
            raise _SetUpError(f"Python did not start within {PATIENCE:g} seconds")
        if heard.report != STARTED:
            raise _SetUpError(_last_line(heard.report or heard.output) or "Python did not start")
        heard.clear()
        assert process.stdin is not None
        with suppress(BrokenPipeError), process.stdin:
            process.stdin.write(json.dumps([code, list(questions)]).encode() + b"\n")
        in_time = heard.listen(limits.seconds, lambda: max(len(heard.output), len(heard.report)) >= LOUD)
    if not in_time:
        return Result("timed out")
    done = heard.ended and bool(heard.report)
    answers = heard.report.decode(errors="replace")
    return Result("passed" if done else "failed", _last_line(heard.output), answers)


def _last_line(output: bytearray) -> str:
    return output[-2000:].decode(errors="replace").strip().rpartition("\n")[2]


class _Heard:
    """What has come out of two pipes, the output and the report of a program."""

    def __init__(self, output: int, report: int) -> None:
        self.pipes = {output: bytearray(), report: bytearray()}
        self.output, self.report = self.pipes.values()
        self.open = set(self.pipes)

    @property
    def ended(self) -> bool:
        """Whether both pipes are closed at the other end."""
        return not self.open

    def clear(self) -> None:
        """Forget what has come so far."""
        self.output.clear()
        self.report.clear()

    def listen(self, seconds: float, enough: Callable[[], bool]) -> bool:
        """Listen until both pipes are closed or there is enough; return whether that was in time."""
        until = time.monotonic() + seconds
        with selectors.DefaultSelector() as ready:
            for pipe in self.open:
                ready.register(pipe, selectors.EVENT_READ)
            while self.open and not enough():
                left = until - time.monotonic()
                if left <= 0:
                    return False
                for key, _ in ready.select(left):
                    piece = os.read(key.fd, 65536)
                    self.pipes[key.fd] += piece
                    if not piece:
                        ready.unregister(key.fd)
                        self.open.discard(key.fd)
        return True


@contextmanager
def _started(limits: Limits, *, isolated: bool) -> Iterator[tuple[subprocess.Popen[bytes], _Heard]]:
    """Start a program's interpreter. At the end, close the leash: the launcher kills all that is left."""
    python = os.path.realpath(sys.executable)
    report, report_end = os.pipe()
    leash_end, leash = os.pipe()
    folder: AbstractContextManager[str] = nullcontext(launcher.FOLDER)
    if not isolated:
        folder = tempfile.TemporaryDirectory(prefix="holdfast-program-", ignore_cleanup_errors=True)
    process = None
    with folder as place:
        numbers = (report_end, int(limits.seconds + 1), limits.memory, limits.file)
        environment = {"HOME": place, "TMPDIR": place, "PATH": os.defpath, "LANG": "C.UTF-8"}
        binds, links = _view()
        job = {
            "isolated": isolated,
            "command": [python, "-I", "-B", "-S", "-c", HARNESS, *map(str, numbers)],
            "environment": environment,
            "folder": place,
            "binds": binds,
            "links": links,
            "room": ROOM,
            "report": report_end,
            "leash": leash_end,
        }
        try:
            try:
                process = subprocess.Popen(
                    [python, "-I", "-B", "-S", launcher.__file__, json.dumps(job)],
                    env=environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(report_end, leash_end),
                    start_new_session=True,
                )
            except OSError as error:
                raise _SetUpError(f"{python}: {error.strerror}") from None
            finally:
                os.close(report_end)
                os.close(leash_end)
            assert process.stdout is not None
            yield process, _Heard(process.stdout.fileno(), report)
        finally:
            with suppress(BrokenPipeError):
                os.write(leash, b".")  # closing is not enough if a fork of this process holds the pipe too
            os.close(leash)
            os.close(report)
            if process is not None:
                for pipe in (process.stdin, process.stdout):
                    assert pipe is not None
                    pipe.close()
                process.wait()


def _view() -> tuple[list[str], dict[str, str]]:
    """Return the paths that a program sees, without symbolic links, and the links to them."""
    homes = {sys.base_prefix, sys.base_exec_prefix, "/usr", "/"}
    wanted = {os.path.join(home, name) for home in homes for name in ("lib", "lib64")}
    wanted |= {os.path.realpath(sys.executable), str(sysconfig.get_config_var("LIBDIR")), "/etc/ld.so.cache"}
    real = {path: os.path.realpath(path) for path in wanted if os.path.exists(path)}
    binds: list[str] = []
    for path in sorted(set(real.values())):
        if not any(path.startswith(f"{bound}/") for bound in binds):
            binds.append(path)
    seen = {path: target for path, target in real.items() if path != target}
    links = {
        path: target
        for path, target in sorted(seen.items())
        if not any(path.startswith(f"{bound}/") for bound in (*binds, *seen))
    }
    return binds, links

"""The sandbox: what programs can reach, their limits and outcomes, and a sandbox that does not work."""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import holdfast
from holdfast.app import main as cli
from holdfast.errors import HoldfastError
from holdfast.lm import evaluate, launcher, sandbox
from holdfast.lm.sandbox import Limits, Result, run_program
from holdfast.lm.tasks import Program

LONG = Limits(seconds=60)  # for programs that end by themselves
ERRORS = ("OSError", "PermissionError", "ProcessLookupError")
ROOT = os.geteuid() == 0
USER = 54321  # an ordinary user, for tests that run as root
isolated = pytest.mark.skipif(sandbox.problem() is not None, reason=f"no sandbox: {sandbox.problem()}")

# ---- running a program as root or as another user ----------------------------------------------------------

# Runs programs in a process of its own, which does not import torch: as another user, or without namespaces.
# If Python or Holdfast are in a directory that the user may not enter, they are mounted there again.
OTHER = r"""
import json, os, stat, sys, types
job = json.loads(sys.argv[1])
package = sys.modules["holdfast.lm"] = types.ModuleType("holdfast.lm")
package.__path__ = [job["package"]]
from holdfast.errors import HoldfastError
from holdfast.lm import launcher, sandbox

def closed(path):
    parts = [path[:end] for end, sign in enumerate(path + "/") if sign == "/" and end]
    return next((part for part in parts if not os.stat(part).st_mode & stat.S_IXOTH), None)

if job["user"] or job["poor"]:
    launcher.call_libc("unshare", launcher.NEW_MOUNTS)
    launcher.mount(None, "/", flags=launcher.RECURSIVE | launcher.PRIVATE)
if job["user"]:
    hidden = [(path, closed(path), os.open(path, os.O_PATH)) for path in job["paths"] if closed(path)]
    for place in {place for _, place, _ in hidden}:
        launcher.mount("tmpfs", place, "tmpfs", 0, "mode=755")
    for path, _, opened in hidden:
        os.makedirs(path)
        launcher.mount(f"/proc/self/fd/{opened}", path, flags=launcher.BIND | launcher.RECURSIVE)
if job["poor"] and job["user"]:  # after chroot, the kernel refuses user namespaces
    launcher.mount("/", "/tmp", flags=launcher.BIND | launcher.RECURSIVE)
    os.chroot("/tmp")
elif job["poor"]:
    launcher.call_libc("prctl", 24, 21, 0, 0, 0)  # drop CAP_SYS_ADMIN from the bounding set
if job["user"]:
    os.setgroups([])
    os.setresgid(job["user"], job["user"], job["user"])
    os.setresuid(job["user"], job["user"], job["user"])
for line in sys.stdin:
    code, limits, more = json.loads(line)
    try:
        found = sandbox.run_program(code, sandbox.Limits(*limits), **more)
        print(json.dumps([found.outcome, found.said, found.answers]), flush=True)
    except HoldfastError as error:
        print(json.dumps(str(error)), flush=True)
"""


class Run(Protocol):
    user: int

    def __call__(self, code: str, limits: Limits = ..., **more: Any) -> Result: ...


class Here:
    """Run programs in this process."""

    user = os.geteuid()

    def __call__(self, code: str, limits: Limits = LONG, **more: Any) -> Result:
        return run_program(code, limits, **more)


class Elsewhere:
    """Run programs in another process: as a user, or where namespaces cannot be had (`poor`)."""

    def __init__(self, *, user: int = 0, poor: bool = False, **env: str) -> None:
        self.user = user or os.geteuid()
        package = Path(holdfast.__file__).parent
        paths = [os.path.realpath(sys.base_prefix), str(package)]
        job = {"user": user, "poor": poor, "package": str(package / "lm"), "paths": paths}
        self.process = subprocess.Popen(
            [sys.executable, "-c", OTHER, json.dumps(job)],
            env={**os.environ, **env},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(self, *error: object) -> None:
        self.process.communicate()

    def start(self, code: str, limits: Limits = LONG, **more: Any) -> None:
        assert self.process.stdin is not None
        print(json.dumps([code, (limits.seconds, limits.memory), more]), file=self.process.stdin, flush=True)

    def __call__(self, code: str, limits: Limits = LONG, **more: Any) -> Result:
        self.start(code, limits, **more)
        assert self.process.stdout is not None
        found = json.loads(self.process.stdout.readline() or '"the process has ended"')
        if isinstance(found, str):
            raise HoldfastError(found)
        return Result(*found)


@pytest.fixture(scope="module")
def as_user() -> Iterator[Elsewhere]:
    """Return what runs programs as a user."""
    with Elsewhere(user=USER if ROOT else 0, HF_TOKEN="hf_secret") as other:
        try:
            other("pass")
        except HoldfastError as error:
            pytest.skip(f"no sandbox for users: {error}")
        yield other


@pytest.fixture(params=["root", pytest.param("user", marks=pytest.mark.slow)])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return what runs programs, as root and as a user."""
    if request.param == "user":
        user: Run = request.getfixturevalue("as_user")
        return user
    if not ROOT:
        pytest.skip("the tests do not run as root")
    if sandbox.problem() is not None:
        pytest.skip(f"no sandbox: {sandbox.problem()}")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return Here()


@pytest.fixture
def place(run: Run) -> Iterator[Path]:
    """Return a directory of the user who runs the programs; anyone may enter it."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    os.chown(made, run.user, -1)
    yield made
    shutil.rmtree(made)


def answers(code: str, *questions: str, run: Run) -> list[Any]:
    """Return what a program of ours answers."""
    found = run(code, questions=questions)
    assert found.outcome == "passed", found.said
    space: dict[str, Any] = {}
    exec(sandbox.READ, space)
    return [space["read"](one) for one in json.loads(found.answers)]


def refused(found: Result, error: str) -> bool:
    """Return whether a program has failed with this error."""
    return found.outcome == "failed" and found.said.startswith(error)


# ---- escapes -----------------------------------------------------------------------------------------------


def test_it_cannot_read_a_private_file(run: Run, place: Path) -> None:
    secret = place / "secret"
    secret.write_text("mine")
    secret.chmod(0o600)
    os.chown(secret, run.user, -1)
    assert refused(run(f"open({str(secret)!r}).read()"), "FileNotFoundError")


def test_its_root_holds_its_folder_and_python(run: Run) -> None:
    view = tuple(f"{path}/" for path in sandbox._view()[0])
    paths = "(os.path.join(top, name) for top, _, names in os.walk('/') for name in names)"
    other = f"[path for path in {paths} if not f'{{path}}/'.startswith({view})]"
    asked = ("os.getcwd()", "os.listdir('.')", "set(os.listdir('/'))", "os.path.exists('/dev')", other)
    top = {path.split("/")[1] for path in (*view, *sandbox._view()[1])}
    assert answers("import os", *asked, run=run) == ["/program", [], {"program", *top}, False, []]
    assert top <= {"etc", "lib", "lib64", "usr", sys.base_prefix.split("/")[1]}


def test_it_can_only_write_to_its_folder(run: Run, place: Path) -> None:
    place.chmod(0o777)
    lib = Path(os.__file__).parent
    for path in (place, Path("/tmp"), Path("/etc"), Path("/"), lib, Path("/usr/lib")):
        assert run(f"open('{path}/holdfast-evil', 'w')").outcome == "failed", path
        assert not (path / "holdfast-evil").exists()
    assert answers("open('mine', 'w').write('x')", "open('mine').read()", run=run) == ["x"]
    assert refused(run("for i in range(99): open(str(i), 'wb').write(bytes(2**20))"), "OSError")


def test_it_cannot_connect_to_unix_sockets(run: Run, place: Path) -> None:
    name = str(place / "socket")
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        named.bind(name)
        os.chmod(name, 0o777)
        abstract.bind(f"\0holdfast-{os.getpid()}")
        for server in (named, abstract):
            server.listen()
            code = f"import socket\nsocket.socket(socket.AF_UNIX).connect({server.getsockname()!r})"
            assert refused(run(code), "PermissionError")


def test_it_has_no_network(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        code = f"import socket\nsocket.create_connection({server.getsockname()!r})"
        assert refused(run(code), "PermissionError")
    assert refused(run("import socket\nsocket.socket(40, socket.SOCK_STREAM)"), "PermissionError"), "vsock"
    assert answers("import asyncio", "asyncio.run(asyncio.sleep(0, 7))", run=run) == [7]


def test_it_does_not_see_the_environment(run: Run) -> None:
    names = answers("import os", "set(os.environ)", run=run)[0]
    assert names == {"HOME", "TMPDIR", "PATH", "LANG"}


@pytest.mark.skipif(platform.machine() not in launcher.ARCHITECTURES, reason="an unknown architecture")
def test_keyrings_shared_memory_and_user_namespaces_are_refused(run: Run) -> None:
    column = 0 if platform.machine() == "x86_64" else 1
    numbers = {name: both[column] for name, both in launcher.DENIED.items()}
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
def tried(call, *values):
    ctypes.set_errno(0)
    call(*values)
    return ctypes.get_errno()
"""
    asked = f"{{name: tried(libc.syscall, number, 0, 0, 0, 0, 0) for name, number in {numbers}.items()}}"
    spaces = f"[tried(libc.unshare, space) for space in {[launcher.NEW_USER, launcher.NEW_MOUNTS]}]"
    found, denied = answers(code, asked, spaces, run=run)
    assert found == dict.fromkeys(numbers, 1), "EPERM"
    assert denied == [1, 1]


def test_it_is_nobody_without_rights(run: Run) -> None:
    who = answers("import os", "os.getresuid() + os.getresgid()", "os.getpid()", run=run)
    assert who == [(65534,) * 6, 1]
    attempts = ("os.setuid(0)", "os.chroot('/')", "socket.sethostname('x')", f"os.kill({os.getpid()}, 9)")
    for attempt in attempts:
        assert run(f"import os, socket\n{attempt}").said.partition(":")[0] in ERRORS, attempt


def test_sixteen_processes_do_not_have_sixteen_times_the_memory(run: Run) -> None:
    code = """
import os
ready, done = os.pipe(), os.pipe()
for _ in range(15):
    if os.fork() == 0:
        block = bytearray(2**26)
        os.write(ready[1], b".")
        os.close(done[1])
        os.read(done[0], 1)
        os._exit(0)
held = 0
while held < 15:
    held += len(os.read(ready[0], 99))
"""
    assert refused(run(code, Limits(60, memory=2**27)), "BlockingIOError")
    assert refused(run("import threading\nthreading.Thread(target=print).start()"), "RuntimeError")
    assert refused(run("x = bytearray(10 * 2**30)"), "MemoryError")


def test_nothing_survives_the_time_limit(run: Run) -> None:
    twice = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.fork()\ntime.sleep(3600)"
    memory = 2**29 + os.getpid()  # a unique argument, to find the processes
    assert refused(run(twice, Limits(60, memory)), "BlockingIOError")
    # It does not end with its parent, ignores signals, and kills its process group and all that it can see.
    free = """
import ctypes, os, signal, time
ctypes.CDLL(None).prctl(1, 0)
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
for target in (0, -1):
    try:
        os.kill(target, signal.SIGKILL)
    except OSError:
        pass
time.sleep(3600)
"""
    assert run(free, Limits(1, memory)).outcome == "timed out"
    assert not running(memory)


def running(memory: int) -> int:
    """Return the number of processes with this memory limit."""
    listed = subprocess.run(["ps", "-wweo", "args"], capture_output=True, text=True).stdout
    return listed.count(f" {memory} ") + listed.count(f'"{memory}"')


def test_nothing_survives_the_death_of_its_parent(run: Run, place: Path) -> None:
    memory = 2**29 + os.getpid() + 1
    with Elsewhere(user=run.user if ROOT else 0, TMPDIR=str(place)) as parent:
        parent.start("import time\ntime.sleep(3600)", Limits(3600, memory))
        wait_for(lambda: running(memory) >= 2)  # the launcher and the program
        parent.process.kill()
    wait_for(lambda: not running(memory))
    assert list(place.iterdir()) == []


def wait_for(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds; it must hold some day."""
    until = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["a b", "it's", '"', "a\nb", "a\\040b", "$HOME;*", "ü\udcff"])
def test_any_temporary_directory_will_do(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = tmp_path / name
    odd.mkdir()
    monkeypatch.setenv("TMPDIR", str(odd))
    monkeypatch.setattr(tempfile, "tempdir", None)
    writes = "open('mine', 'w').write('x')\nassert open('mine').read() == 'x'"
    for protected in (True, False):
        if not protected or sandbox.problem() is None:
            assert sandbox._run(writes, LONG, (), isolated=protected).outcome == "passed"
    assert list(odd.iterdir()) == []


def test_no_other_program_is_needed(run: Run) -> None:
    with Elsewhere(user=run.user if ROOT else 0, PATH="") as bare:
        code = "import os, socket\nassert os.getuid() == 65534 and not os.path.exists('/etc/passwd')"
        assert bare(code).outcome == "passed"


# ---- a sandbox that does not work --------------------------------------------------------------------------


@pytest.mark.skipif(not ROOT, reason="only root can take namespaces away")
@pytest.mark.parametrize("user", [0, USER])
def test_without_namespaces_nothing_runs(user: int, as_user: Elsewhere) -> None:
    with Elsewhere(user=user, poor=True) as poor:
        expected = r"does not work on this machine: unshare: Operation not permitted; .* --unsafe-run-code$"
        with pytest.raises(HoldfastError, match=expected):
            poor("pass")
        assert poor("pass", unsafe=True).outcome == "passed"
        assert poor("assert 1 == 2", unsafe=True).outcome == "failed"
        assert poor("while True: pass", Limits(1), unsafe=True).outcome == "timed out"
        if user:
            assert refused(poor("import os\nos.fork()", unsafe=True), "BlockingIOError")


@pytest.fixture
def untried() -> Iterator[None]:
    """Try the sandbox out again, before and after a test that breaks it."""
    for found in (sandbox.problem, sandbox.unsafe_problem):
        found.cache_clear()
    yield
    for found in (sandbox.problem, sandbox.unsafe_problem):
        found.cache_clear()


@isolated
def test_a_broken_set_up_is_an_error_not_a_failed_program(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    item = Program("add", "def add(a, b):\n    return a + b", ("assert add(1, 2) == 3",))
    broken = {
        (sandbox, "_view", lambda: (["/etc/ld.so.cache"], {})): "No such file or directory; try again",
        (sandbox, "_view", lambda: (["/no/such/place"], {})): "/no/such/place: No such file or directory",
        (sandbox, "HARNESS", "import no_such_module"): "ModuleNotFoundError",
        (sandbox, "HARNESS", "import time; time.sleep(3600)"): "did not start within 1 seconds",
        (sys, "executable", "/no/such/python"): "/no/such/python: No such file or directory",
        (launcher, "__file__", "/no/such/launcher"): "can't open file",
    }
    for (owner, name, value), expected in broken.items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            patch.setattr(sandbox, "PATIENCE", 1.0 if "sleep" in str(value) else sandbox.PATIENCE)
            with pytest.raises(HoldfastError, match=expected) as error:
                evaluate.passes(item, item.code)
            assert "\n" not in str(error.value)
    assert evaluate.passes(item, item.code)


@isolated
@pytest.mark.usefixtures("untried")
def test_programs_with_a_known_outcome_run_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    weak = tmp_path / "launcher.py"
    text = Path(launcher.__file__).read_text()
    weak.write_text(text.replace("        give_up_rights()\n", ""))
    assert weak.read_text() != text
    run_code, tell = "exec(compile(code", "tell(json"
    broken = sandbox.HARNESS.replace(run_code, f"1 / 0; {run_code}")
    lenient = sandbox.HARNESS.replace(run_code, f"try: {run_code}").replace(
        tell, f"except Exception: 0\n{tell}"
    )
    wrong = {
        (sandbox, "HARNESS", broken): "a known-good program failed: ZeroDivisionError",
        (sandbox, "HARNESS", lenient): "a known-bad program passed",
        (launcher, "__file__", str(weak)): "a program could reach .*a socket",
    }
    for (owner, name, value), expected in wrong.items():
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            sandbox.problem.cache_clear()
            with pytest.raises(HoldfastError, match=expected):
                run_program("pass")


def test_the_command_ends_before_the_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sandbox, "problem", lambda: "no namespaces")
    monkeypatch.setattr(sys, "argv", ["holdfast", "lm", "eval", "--task", "mbpp", "--model", "no/such/model"])
    assert ended() == 2
    error = capsys.readouterr().err.strip()
    assert "does not work on this machine: no namespaces" in error
    assert "\n" not in error
    sys.argv.append("--unsafe-run-code")
    assert ended() == 2
    error = capsys.readouterr().err
    assert "the programs run unprotected" in error
    assert "unknown model" in error


def ended() -> int:
    """Run the command line; return its exit code."""
    with pytest.raises(SystemExit) as end:
        cli.main()
    return int(end.value.code or 0)


def test_an_evaluation_ends_before_the_first_item(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "problem", lambda: "no namespaces")
    monkeypatch.setattr(evaluate, "generate", lambda *_: pytest.fail("an item was evaluated"))
    with pytest.raises(HoldfastError, match="no namespaces"):
        evaluate.mbpp_pass(None, None, [Program("", "", ())], [])


# ---- outcomes ----------------------------------------------------------------------------------------------


@isolated
def test_what_works_passes_and_what_does_not_fails() -> None:
    assert run_program("import re, math, collections, heapq\nassert math.sqrt(4) == 2").outcome == "passed"
    assert run_program("assert 1 == 2").said == "AssertionError"
    for wrong in ("def f(:", "import sys; sys.exit(3)", "import os; os._exit(0)", "\udcff", "\0"):
        assert run_program(wrong).outcome == "failed", wrong
    assert run_program("while True: pass", Limits(1)).outcome == "timed out"
    assert run_program("while True: print('x' * 10**6)", LONG).outcome == "failed", "not timed out"
    closes = "import os, time\nos.closerange(0, 65536)\ntime.sleep(3600)"
    assert run_program(closes, LONG).outcome == "failed", "what cannot report is not waited for"


@isolated
def test_answers_are_plain_data() -> None:
    code = """
from collections import Counter, OrderedDict, namedtuple
from enum import IntEnum
class Mine: pass
class Kind(IntEnum): one = 1
"""
    plain = {
        "None": None,
        "[True, 1, 2.5, 1j, 'a', b'b']": [True, 1, 2.5, 1j, "a", b"b"],
        "Counter('aab')": {"a": 2, "b": 1},
        "namedtuple('Pair', 'a b')(1, [2])": (1, [2]),
        "{Kind.one: OrderedDict(a=frozenset({1}))}": {1: {"a": frozenset({1})}},
        "{1: 2}.keys()": {1},
        "'\\udcff'": "\udcff",
        "float('inf')": float("inf"),
        "10**5000": 10**5000,
        "[-0.1, -3, 1e-320, -2.5j]": [-0.1, -3, 1e-320, -2.5j],
    }
    found = answers(code, *plain, run=Here())
    assert found == list(plain.values())
    assert [type(one) for one in found] == [type(one) for one in plain.values()]
    for other in ("Mine()", "(one for one in ())", "[Mine]", "print", "no_such_name"):
        assert run_program(code, questions=(other,)).outcome == "failed"


# ---- the verdict -------------------------------------------------------------------------------------------

ADD = Program("add", "def add(a, b):\n    return a + b", ("assert add(1, 2) == 3", "assert add(0, 0) == 0"))
FORGERIES = {
    "leaves": "import os\nos._exit(0)",
    "exits": "raise SystemExit",
    "says what it finds": """
import gc, os, sys
frame = sys._getframe()
while frame:
    for found in (*frame.f_globals.values(), *frame.f_locals.values(), *frame.f_code.co_consts):
        if isinstance(found, str) and "def add" in found and "_sys.stdout.write(" in found:
            print(found.rpartition("_sys.stdout.write('\\\\n")[2].partition("'")[0], end="", flush=True)
            os._exit(0)
    frame = frame.f_back
for one in gc.get_objects():
    print(one)
""",
    "reports for its harness": """
import os
for report in range(1, 64):
    for text in (b"passed", b"[true, true]", b"[]"):
        try:
            os.write(report, text)
        except OSError:
            pass
os._exit(0)
""",
    "equals everything": """
class Any(int):
    __eq__ = __le__ = __ge__ = lambda *_: True
    __ne__ = lambda *_: False
    __hash__ = int.__hash__
    __reduce__ = __reduce_ex__ = lambda self, *_: (Any, ())
add = lambda a, b: Any()
""",
    "answers with code": """
import json
json.dumps = lambda answers: "'); import os; os._exit(0) #"
""",
    "skips the tests": """
import sys
frame = sys._getframe()
end = sorted({line for *_, line in frame.f_code.co_lines() if line})[-2]
def jump(frame, event, argument):
    if event == "line" and frame.f_lineno < end:
        frame.f_lineno = end
    return jump
frame.f_trace = jump
sys.settrace(jump)
""",
    "reads the tests": """
import gc, sys
texts = [one for one in gc.get_objects() if isinstance(one, list)]
texts = [text for one in texts for text in one if isinstance(text, str) and "add(" in text]
add = lambda a, b: next(int(text.partition("==")[2]) for text in texts if f"({a}, {b}) ==" in text)
""",
}


@isolated
@pytest.mark.parametrize("name", FORGERIES)
def test_success_cannot_be_forged(name: str) -> None:
    assert not evaluate.passes(ADD, f"def add(a, b):\n    return 7\n{FORGERIES[name]}")


@isolated
def test_a_task_is_passed_by_its_solution_only() -> None:
    assert evaluate.passes(ADD, ADD.code)
    assert not evaluate.passes(ADD, "def add(a, b):\n    return a - b")
    assert not evaluate.passes(ADD, "def add(a, b):\n    return a + b if a else 1")
    assert not evaluate.passes(ADD, "I would rather not")
    assert evaluate.passes(ADD, f"{ADD.code}\nprint('3' * 9)\n__name__ == '__main__' and 1 / 0")
    typed = Program("first", "", ("assert first([1]) == 1",))
    assert evaluate.passes(typed, "def first(x: List[int]) -> int:\n    return x[0]"), "as lm-eval runs it"


@isolated
def test_all_forms_of_tests_are_split() -> None:
    node = "class Node:\n    def __init__(self, value):\n        self.value = value\n"
    tree = Program(
        "", f"{node}def value(node):\n    return node.value", ("assert value(root) == 1",), "root = Node(1)"
    )
    assert evaluate.passes(tree, tree.code), "the set-up code uses the program"
    own = Program("", "def sum(a, b):\n    return a", ("assert sum(10, 15) == 10",))
    assert evaluate.passes(own, own.code), "the name of a built-in function"
    code = "import math, sys\ndef f(x):\n    return x * x\ndef g(x):\n    return iter((x, x + 1))"
    right = (
        "assert f(2) == sum([i for i in range(4)]) - 2",
        "assert math.isclose(f(0.1), 0.01, rel_tol=f(0.1)), f(1)",
        "assert not f(0) and (f(1) or f(2)) and not (f(3) < 9)",
        "assert list(g(1)) == [1, 2] != f(1)",
        "assert 1 <= f(1) < f(2) in (4, 5)",
        "assert f(2) is not None",
        "y = f(3)\nassert y == 9",
        "assert f(sys.maxsize) == sys.maxsize**2",
    )
    assert evaluate.passes(Program("", code, right), code)
    wrong = (
        "assert f(2) == sum([i for i in range(4)])",
        "assert math.isclose(f(0.1), 0.02)",
        "assert f(0)",
        "assert not f(1)",
        "assert 1 <= f(1) < f(2) in (3, 5)",
        "assert f(2) is None",
        "y = f(3)\nassert y == 8",
        "assert f(None)",
    )
    for test in wrong:
        assert not evaluate.passes(Program("", code, (right[0], test)), code), test
    with pytest.raises(HoldfastError, match=r"the test 'assert f\(' of an MBPP task is not Python"):
        evaluate.passes(Program("", code, ("assert f(",)), code)

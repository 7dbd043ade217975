"""Runs a program that nobody has read: without rights, without a network, with little of everything.

The program gets a process of its own in namespaces of its own (user, mount, pid, network, IPC), where the
system has them; the user it runs as owns nothing. The file system is read-only to it but for a temporary
directory of its own. Time, memory, processes and file sizes are limited, and when it ends or its time is up,
the pid namespace takes every process it has started with it. As root, without namespaces, nothing is run.
"""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from holdfast.errors import HoldfastError

Outcome = Literal["passed", "failed", "timed out"]
NOBODY = 65534
PYTHON = ".python"
MEGABYTE = 2**20
LOUD = MEGABYTE  # bytes of output from which a program has said too much


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 5.0
    memory: int = 512 * MEGABYTE
    processes: int = 16
    file: int = 4 * MEGABYTE


@dataclass(frozen=True)
class Result:
    """How a program ended, and the last it said."""

    outcome: Outcome
    said: str = ""


CHILD = r"""
import resource, sys
seconds, memory, processes, size = map(int, sys.argv[1:5])
def limit(what, most):
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
limit(resource.RLIMIT_CPU, seconds)
limit(resource.RLIMIT_AS, memory)
limit(resource.RLIMIT_FSIZE, size)
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_NOFILE, 64)
limit(resource.RLIMIT_NPROC, processes)
code = sys.stdin.read()
sys.stdin.close()
exec(compile(code, "<program>", "exec"), {"__name__": "program"})
"""


def run_program(code: str, limits: Limits = Limits()) -> Result:  # noqa: B008
    """Run a program; it passes if it ends by itself without an error."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-sandbox-"))
    place.chmod(0o777)
    isolated = namespaces()
    if os.geteuid() == 0 and not isolated:
        shutil.rmtree(place, ignore_errors=True)
        raise HoldfastError(
            "programs are not run as root without namespaces; run as another user, or where unshare works"
        )
    numbers = [int(limits.seconds + 1), limits.memory, limits.processes, limits.file]
    # The interpreter may live where that user cannot look: it is mounted into the program's directory.
    home = place / PYTHON if isolated else Path(sys.base_prefix)
    python = home / Path(os.path.realpath(sys.executable)).relative_to(os.path.realpath(sys.base_prefix))
    child = [str(python), "-I", "-B", "-S", "-c", CHILD, *map(str, numbers)]
    command = [*isolated, *_mounts(place), *child] if isolated else child
    # Root becomes nobody; anybody else is root of a namespace of their own, without any of root's rights.
    become = f"--reuid={NOBODY} --regid={NOBODY} --clear-groups" if os.geteuid() == 0 else ""
    environment = {
        "SANDBOX_USER": become,
        "HOME": str(place),
        "TMPDIR": str(place),
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
    }
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    # Only a program that comes to its own last line has passed: one that exits before has not.
    token = uuid.uuid4().hex
    whole = f"{code}\nimport sys as _sys\n_sys.stdout.write('\\n{token}')\n"
    try:
        said = _listen(process, whole.encode(), limits.seconds)
    finally:
        _end(process)
        shutil.rmtree(place, ignore_errors=True)
    if said is None:
        return Result("timed out")
    text = said[-2000:].decode(errors="replace").strip()
    done = process.returncode == 0 and text.endswith(token)
    last = text.removesuffix(token).strip().rpartition("\n")[2]
    return Result("passed" if done else "failed", last)


def _listen(process: subprocess.Popen[bytes], code: bytes, seconds: float) -> bytes | None:
    """What a program says, as long as it is little; None if its time is up."""
    assert process.stdin is not None
    assert process.stdout is not None
    until = time.monotonic() + seconds
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(code)
    said = b""
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while len(said) < LOUD:
            left = until - time.monotonic()
            if left <= 0 or not ready.select(left):
                return None
            piece = os.read(process.stdout.fileno(), 65536)
            if not piece:
                break
            said += piece
    if len(said) >= LOUD:
        return said
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None
    return said


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session, and the namespace's first process by itself: its end ends all others in it.

    A program may have left the session, and `unshare` cannot pass on a death to a child that has become
    another user.
    """
    for first in _children(process.pid) if process.poll() is None else ():
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def _children(parent: int) -> list[int]:
    """The processes that a process has started; none where there is no /proc to tell."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended meanwhile
            # The name, in brackets, may hold anything; the state and the parent come after it.
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _mounts(place: Path) -> list[str]:
    """Every mount read-only but for a small one of the program's own; no sight of other processes.

    Whatever of it fails ends the script: nothing runs with less protection than it should have.
    """
    script = """
set -e
place="$1"; base="$2"; shift 2
mount --make-rprivate /
mount -t tmpfs -o size=32m,mode=1777,nosuid,nodev tmpfs "$place"
mkdir "$place/.python"
mount --bind "$base" "$place/.python"
while read -r _ _ _ _ point _; do
    [ "$point" = "$place" ] && continue
    point=$(printf '%b' "$point")
    mount -o remount,bind,ro "$point" 2>/dev/null || [ ! -w "$point" ] || exit 97
done < /proc/self/mountinfo
mount -t proc -o nosuid,nodev,noexec proc /proc
cd "$place"
exec setpriv $SANDBOX_USER --no-new-privs --bounding-set=-all --inh-caps=-all "$@"
"""
    return ["sh", "-c", script, "sh", str(place), sys.base_prefix]


@cache
def namespaces() -> tuple[str, ...]:
    """The command that puts a program into namespaces of its own; empty where the system has none."""
    unshare = shutil.which("unshare")
    if unshare is None or shutil.which("setpriv") is None:
        return ()
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = (unshare, *user, "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child")
    probe = [*command, "sh", "-c", "mount -t proc proc /proc && setpriv --no-new-privs true"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return command if done.returncode == 0 else ()

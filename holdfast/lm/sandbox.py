"""A sandbox for untrusted Python programs.

Where the system supports it, the program runs in its own mount, pid, network and IPC namespaces, without
capabilities: as nobody if root starts it, otherwise in its own user namespace. The file system is read-only
except for a temporary directory. Time, memory, processes and file sizes are limited. When the program ends
or times out, all processes in its pid namespace are killed. Without namespaces, root cannot run programs, and
for other users only the limits apply.
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
LOUD = MEGABYTE  # bytes of output at which a program is killed


@dataclass(frozen=True)
class Limits:
    """Resource limits of a program: seconds, bytes of memory, processes, bytes per file."""

    seconds: float = 5.0
    memory: int = 512 * MEGABYTE
    processes: int = 16
    file: int = 4 * MEGABYTE


@dataclass(frozen=True)
class Result:
    """The outcome of a program and its last line of output, empty after a timeout."""

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
    """Run a program; it passes if it runs to its end and exits without an error."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-sandbox-"))
    place.chmod(0o777)
    isolated = namespaces()
    if os.geteuid() == 0 and not isolated:
        shutil.rmtree(place, ignore_errors=True)
        raise HoldfastError(
            "programs are not run as root without namespaces; run as another user, or allow unshare"
        )
    numbers = [int(limits.seconds + 1), limits.memory, limits.processes, limits.file]
    # The sandbox user may not have access to Python, so it is mounted into the program's directory.
    home = place / PYTHON if isolated else Path(sys.base_prefix)
    python = home / Path(os.path.realpath(sys.executable)).relative_to(os.path.realpath(sys.base_prefix))
    child = [str(python), "-I", "-B", "-S", "-c", CHILD, *map(str, numbers)]
    command = [*isolated, *_mounts(place), *child] if isolated else child
    # Root becomes nobody; other users are root in their own user namespace, without capabilities.
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
    # The token on the last line shows that the program did not exit early.
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
    """Send the code to a process; return its output, cut off at about LOUD bytes, or None after a timeout."""
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
    """Kill the process group and the first process of the pid namespace, which ends all others in it.

    The group alone is not enough: a program may have left it, and `unshare --kill-child` does not reach a
    child that has changed its user.
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
    """Return the child processes of a process; empty on systems without /proc."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended
            # The name, in parentheses, may contain anything; state and parent follow it.
            if int(path.read_text().rpartition(")")[2].split()[1]) == parent:
                found.append(int(path.parent.name))
    return found


def _mounts(place: Path) -> list[str]:
    """Return a command prefix that makes all mounts but a small tmpfs read-only, and mounts a new /proc.

    The script fails rather than run a program with less protection.
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
    """Return the command prefix that creates the namespaces, or () if the system does not support them."""
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

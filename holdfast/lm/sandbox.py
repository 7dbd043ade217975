"""Runs a program that nobody has read: without rights, without a network, with little of everything.

The program gets a process of its own in namespaces of its own (user, mount, pid, network, IPC), where the
system has them; the user it runs as owns nothing. The file system is read-only to it but for a temporary
directory of its own. Time, memory, processes and file sizes are limited, and when it ends or its time is up,
the pid namespace takes every process it has started with it. As root, without namespaces, nothing is run.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
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
import os, resource, sys
seconds, memory, processes, size, user = map(int, sys.argv[1:6])
def limit(what, most):
    hard = resource.getrlimit(what)[1]
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(what, (most, most))
limit(resource.RLIMIT_CPU, seconds)
limit(resource.RLIMIT_AS, memory)
limit(resource.RLIMIT_FSIZE, size)
limit(resource.RLIMIT_CORE, 0)
limit(resource.RLIMIT_NOFILE, 64)
if user >= 0:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
limit(resource.RLIMIT_NPROC, processes)
code = sys.stdin.read()
sys.stdin.close()
exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
"""


def run(code: str, limits: Limits = Limits()) -> Result:  # noqa: B008
    """Run a program; it passes if it ends by itself without an error."""
    place = Path(tempfile.mkdtemp(prefix="holdfast-sandbox-"))
    place.chmod(0o777)
    isolated = namespaces()
    if os.geteuid() == 0 and not isolated:
        shutil.rmtree(place, ignore_errors=True)
        raise HoldfastError(
            "programs are not run as root without namespaces; run as another user, or where unshare works"
        )
    user = NOBODY if os.geteuid() == 0 else -1
    numbers = [int(limits.seconds + 1), limits.memory, limits.processes, limits.file, user]
    # The interpreter may live where that user cannot look: it is mounted into the program's directory.
    home = place / PYTHON if isolated else Path(sys.base_prefix)
    python = home / Path(os.path.realpath(sys.executable)).relative_to(os.path.realpath(sys.base_prefix))
    child = [str(python), "-I", "-B", "-S", "-c", CHILD, *map(str, numbers)]
    command = [*isolated, *_mounts(place), *child] if isolated else child
    environment = {"HOME": str(place), "TMPDIR": str(place), "PATH": os.defpath, "LANG": "C.UTF-8"}
    process = subprocess.Popen(
        command,
        cwd=place,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(code.encode(), timeout=limits.seconds)
    except subprocess.TimeoutExpired:
        return Result("timed out")
    finally:
        _end(process)
        shutil.rmtree(place, ignore_errors=True)
    last = said[-2000:].decode(errors="replace").strip().rpartition("\n")[2]
    return Result("passed" if process.returncode == 0 else "failed", last)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the whole session; the end of a pid namespace's first process ends all others in it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    if process.stdout:
        process.stdout.close()


def _mounts(place: Path) -> list[str]:
    """Everything read-only, but for the program's own directory; no sight of other processes."""
    quoted = str(place)
    script = (
        f'mkdir "{quoted}/{PYTHON}" && mount --bind "{quoted}" "{quoted}" && '
        f'mount --bind "{sys.base_prefix}" "{quoted}/{PYTHON}" && '
        f'mount -o remount,bind,ro "{quoted}/{PYTHON}" && '
        "mount -o remount,bind,ro / && mount -t proc proc /proc && "
        "for m in /tmp /var/tmp /dev/shm /run; do "
        f'[ "$m" = "$(dirname "{quoted}")" ] || mount -o remount,bind,ro "$m" 2>/dev/null || true; done; '
        'cd "$1" && shift && exec "$@"'
    )
    return ["sh", "-c", script, "sh", quoted]


@cache
def namespaces() -> tuple[str, ...]:
    """The command that puts a program into namespaces of its own; empty where the system has none."""
    unshare = shutil.which("unshare")
    if unshare is None:
        return ()
    user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = (unshare, *user, "--mount", "--pid", "--net", "--ipc", "--fork", "--kill-child")
    probe = [*command, "sh", "-c", "mount -t proc proc /proc && exit 0"]
    try:
        done = subprocess.run(probe, capture_output=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return command if done.returncode == 0 else ()

"""A file system that fails: a command runs in a child process and dies, or gets an error, before one step.

Audit events of Python report every open, rename, mkdir, unlink and rmdir before it happens; `os.fsync` is
wrapped. `record` lists the steps of a command, `after_crash` builds the directory as a power failure may
leave it: without changes that were not synced, with some of them, or with files whose content is lost.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pickle
import random
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ERRORS = ("EIO", "ENOSPC", "EACCES")
KILLED = -signal.SIGKILL


@dataclass
class Step:
    """One change of the file system."""

    what: str
    path: str
    other: str = ""
    content: bytes | None = None
    """The content that an fsync has made durable."""


@dataclass
class Outcome:
    """How a command ended."""

    code: int
    errors: str
    steps: list[Step] = field(default_factory=list)


def run(action: Callable[[], int], root: Path, *, fail_at: int | None = None, how: str = "kill") -> Outcome:
    """Run an action in a child process; before step `fail_at` within `root` it is killed or gets an error."""
    with tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as report:
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            sys.stderr = os.fdopen(2, "w", closefd=False)
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
            code = 70
            with contextlib.suppress(BaseException):
                shim = _Shim(str(root), fail_at, how)
                code = _code(action)
                shim.active = False
                pickle.dump(shim.steps, os.fdopen(report.fileno(), "wb", closefd=False))
            sys.stderr.flush()
            os._exit(code)
        _, status = os.waitpid(child, 0)
        errors.seek(0)
        report.seek(0)
        steps = pickle.load(report) if report.read(1) and not report.seek(0) else []
        return Outcome(os.waitstatus_to_exitcode(status), errors.read().decode(), steps)


def _code(action: Callable[[], int]) -> int:
    try:
        return action()
    except SystemExit as end:
        return int(end.code or 0)


class _Shim:
    """Counts the steps within a directory, and fails before one of them."""

    def __init__(self, root: str, fail_at: int | None, how: str) -> None:
        self.root, self.fail_at, self.how = root, fail_at, how
        self.steps: list[Step] = []
        self.active = True
        self.fsync = os.fsync
        os.fsync = self.synced
        sys.addaudithook(self.heard)

    def heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, str | bytes | os.PathLike) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                self.step("create", path)
        elif event == "os.rename":
            self.step("rename", arguments[0], other=arguments[1])
        elif event in ("os.remove", "os.mkdir", "os.rmdir"):
            descriptor = arguments[-1]
            path = os.fspath(arguments[0])
            if isinstance(descriptor, int) and descriptor >= 0:
                path = os.path.join(os.readlink(f"/proc/self/fd/{descriptor}"), path)
            self.step(event.removeprefix("os."), path)

    def synced(self, descriptor: int) -> None:
        self.active, active = False, self.active
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        content = None if stat.S_ISDIR(os.fstat(descriptor).st_mode) else Path(path).read_bytes()
        self.active = active
        self.step("fsync", path, content=content)
        self.fsync(descriptor)

    def step(self, what: str, path: Any, other: Any = "", content: bytes | None = None) -> None:
        name, target = (os.path.abspath(os.fsdecode(p)) if p else "" for p in (path, other))
        if not name.startswith(self.root) or name.endswith(".lock"):
            return
        if len(self.steps) == self.fail_at:
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            self.steps.append(Step(what, name, target, content))
            number = getattr(errno, self.how)
            raise OSError(number, os.strerror(number), name)
        self.steps.append(Step(what, name, target, content))


# ---- power failures -----------------------------------------------------------------------------------


def after_crash(before: Path, root: Path, steps: list[Step], target: Path, rng: random.Random | None) -> None:
    """Build in `target` what `root` may hold if the power fails after these steps.

    `before` is a copy of `root` at the start. Changes that were not synced are lost, or with `rng` some of
    them are: each creation, rename and removal survives by chance, and content that was not synced is gone.
    """
    shutil.copytree(before, target, dirs_exist_ok=True)

    def here(path: str) -> Path:
        return target / os.path.relpath(path, root)

    # Which directory entries were synced, and when.
    syncs = [(n, step.path) for n, step in enumerate(steps) if step.what == "fsync" and step.content is None]

    def survives(number: int, *paths: str) -> bool:
        parents = {os.path.dirname(path) for path in paths}
        if all(any(n > number and place == parent for n, place in syncs) for parent in parents):
            return True
        return rng is not None and rng.random() < 0.5

    files: dict[str, bytes] = {}  # content of files created by these steps, by their present name
    for number, step in enumerate(steps):
        if step.what == "mkdir" and survives(number, step.path):
            with contextlib.suppress(OSError):
                here(step.path).mkdir(parents=True)
        elif step.what == "create":
            files[step.path] = b""
            if survives(number, step.path):
                _write(here(step.path), b"")
        elif step.what == "fsync" and step.content is not None:
            files[step.path] = step.content
            # The content of a file whose name is lost is lost with it; its later rename may still survive.
            if here(step.path).exists():
                _write(here(step.path), step.content)
        elif step.what == "rename":
            for path in [one for one in files if one == step.path or one.startswith(step.path + "/")]:
                files[step.other + path.removeprefix(step.path)] = files.pop(path)
            if survives(number, step.path, step.other):
                _rename(here(step.path), here(step.other), root, step.other, files, target)
        elif step.what in ("remove", "rmdir") and survives(number, step.path):
            with contextlib.suppress(OSError):
                shutil.rmtree(here(step.path)) if here(step.path).is_dir() else here(step.path).unlink()


def _rename(source: Path, goal: Path, root: Path, other: str, files: dict[str, bytes], target: Path) -> None:
    """Rename what is there; the new name also brings the synced content of a file whose old name was lost."""
    if source.exists():
        if goal.is_dir():
            shutil.rmtree(goal)
        with contextlib.suppress(OSError):
            goal.parent.mkdir(parents=True, exist_ok=True)
            os.replace(source, goal)
    for path, data in files.items():
        if path == other or path.startswith(other + "/"):
            _write(target / os.path.relpath(path, root), data)


def _write(path: Path, data: bytes) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

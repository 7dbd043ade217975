"""Start a program in namespaces of its own, or outside them.

`sandbox` runs this file as a script, without site-packages. The launcher stays outside and holds the leash, a
pipe from `sandbox`. Its child enters a new root, gives up all rights and becomes the program. When the leash
closes, because the program's time is over or the process at its other end has been killed, the launcher kills
the child. The child is the first process of its pid namespace, so nothing outlives it. Its root is a tmpfs in
a private mount namespace, which disappears with it.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import platform
import re
import signal
import struct
import sys
from contextlib import suppress
from typing import Any, NoReturn

NOBODY = 65534
FOLDER = "/program"  # the only writable directory inside

# From the kernel's headers.
NEW_MOUNTS = 0x00020000
NEW_USER = 0x10000000
NEW_SPACES = NEW_MOUNTS | 0x04000000 | 0x08000000 | 0x20000000 | 0x40000000  # UTS, IPC, pid, network
READ_ONLY, NO_SUID, NO_DEVICES, NO_EXEC, REMOUNT = 1, 2, 4, 8, 32
BIND, RECURSIVE, PRIVATE, DETACH = 1 << 12, 1 << 14, 1 << 18, 2
DIE_WITH_PARENT, SECCOMP, NO_NEW_PRIVILEGES = 1, 22, 38

ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7, "riscv64": 0xC00000F3}
# System calls that fail in the sandbox: their numbers on x86_64 and on the other architectures. Some sockets
# (vsock) ignore network namespaces. Keys may be the user's. The next five hold memory that no limit counts.
# io_uring opens sockets without `socket`.
DENIED = {
    "socket": (41, 198),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "shmget": (29, 194),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "memfd_create": (319, 279),
    "io_uring_setup": (425, 425),
}


def launch() -> None:
    """Start the program of the job in the first argument; kill it when the leash closes."""
    job = json.loads(sys.argv[1])
    try:
        if job["isolated"]:
            enter_namespaces()
        child = os.fork()
        if child == 0:
            os.close(job["leash"])
            become_program(job)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        os.write(job["report"], f"{where}{error.strerror}".encode())
        os._exit(1)
    # The pipes now belong to the program alone; `sandbox` sees its end as the end of both.
    for descriptor in (0, 1, 2, job["report"]):
        os.close(descriptor)
    os.read(job["leash"], 1)
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGKILL)
    if not job["isolated"]:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)


def become_program(job: dict[str, Any]) -> NoReturn:
    """Replace this process by the program."""
    os.setsid()  # so that it cannot signal the launcher as a member of its own process group
    if job["isolated"]:
        build_root(job["binds"], job["links"], job["room"])
        give_up_rights()
    os.chdir(job["folder"])
    os.execve(job["command"][0], job["command"], job["environment"])


# ---- namespaces --------------------------------------------------------------------------------------------


def enter_namespaces() -> None:
    """Leave the namespaces of the user; only root needs no user namespace for that."""
    user, group = os.geteuid(), os.getegid()
    call_libc("unshare", NEW_SPACES | (NEW_USER if user else 0))
    if user:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{NOBODY} {user} 1"),
            ("gid_map", f"{NOBODY} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    mount(None, "/", flags=RECURSIVE | PRIVATE)


def build_root(binds: list[str], links: dict[str, str], room: int) -> None:
    """Enter a root that holds `binds`, read-only, `links` to them, and FOLDER with `room` bytes.

    The root is a subdirectory of a tmpfs, entered by chroot: from there, the kernel refuses to create user
    namespaces, in which a program could mount file systems of any size. The old root is unmounted.
    """
    os.umask(0o022)
    mount("tmpfs", "/tmp", "tmpfs", NO_SUID | NO_DEVICES, "size=1m,mode=755")
    os.mkdir("/tmp/old")
    os.mkdir("/tmp/new", 0o755)
    call_libc("pivot_root", b"/tmp", b"/tmp/old")
    os.chdir("/")
    for path in binds:
        source, target = f"/old{path}", f"/new{path}"
        os.makedirs(os.path.dirname(target), exist_ok=True)
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.close(os.open(target, os.O_CREAT, 0o644))
        mount(source, target, flags=BIND | RECURSIVE)
    for path, target in links.items():
        os.makedirs(os.path.dirname(f"/new{path}"), exist_ok=True)
        os.symlink(target, f"/new{path}")
    for point in _mount_points("/old/proc/self/mountinfo"):
        if point.startswith("/new/"):
            _protect(point)
    os.mkdir(f"/new{FOLDER}")
    mount("tmpfs", f"/new{FOLDER}", "tmpfs", NO_SUID | NO_DEVICES, f"size={room},nr_inodes=4096,mode=777")
    call_libc("umount2", b"/old", DETACH)
    _protect("/")
    os.chroot("/new")


def _mount_points(table: str) -> list[str]:
    """Return the mount points in a mountinfo file; it escapes some characters as octal numbers."""
    with open(table, "rb") as file:
        fields = [line.split(b" ")[4] for line in file]
    unescaped = (re.sub(rb"\\([0-7]{3})", lambda code: bytes([int(code[1], 8)]), field) for field in fields)
    return [os.fsdecode(field) for field in unescaped]


def _protect(point: str) -> None:
    """Make a mount read-only, without set-user-id programs and devices; keep a noexec flag."""
    kept = os.statvfs(point).f_flag & NO_EXEC
    mount(None, point, flags=REMOUNT | BIND | READ_ONLY | NO_SUID | NO_DEVICES | kept)


# ---- rights ------------------------------------------------------------------------------------------------


def give_up_rights() -> None:
    """Become nobody for good, refuse the DENIED system calls, and die with the launcher.

    Capabilities end when the program starts: it is not root, neither outside nor in its user namespace.
    """
    if os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    call_libc("prctl", DIE_WITH_PARENT, signal.SIGKILL, 0, 0, 0)
    call_libc("prctl", NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    steps = denying_filter(platform.machine())
    code = ctypes.create_string_buffer(b"".join(steps))
    program = ctypes.create_string_buffer(struct.pack("HP", len(steps), ctypes.addressof(code)))
    call_libc("prctl", SECCOMP, 2, ctypes.addressof(program), 0, 0)


def denying_filter(machine: str) -> list[bytes]:
    """Return a seccomp filter that refuses the DENIED system calls, as BPF instructions."""
    if machine not in ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine} processors")
    load, equal, at_least, give = 0x20, 0x15, 0x35, 0x06
    refuse, allow, kill = 0x00050000 | errno.EPERM, 0x7FFF0000, 0x80000000
    numbers = [one if machine == "x86_64" else other for one, other in DENIED.values()]

    def step(code: int, value: int, then: int = 0, otherwise: int = 0) -> bytes:
        return struct.pack("HBBI", code, then, otherwise, value)

    return [
        step(load, 4),  # the architecture: a 64-bit process may also make 32-bit calls
        step(equal, ARCHITECTURES[machine], then=1),
        step(give, kill),
        step(load, 0),  # the number of the call
        step(at_least, 0x40000000, then=len(numbers) + 1),  # x32 has numbers of its own
        *(step(equal, number, then=len(numbers) - place) for place, number in enumerate(numbers)),
        step(give, allow),
        step(give, refuse),
    ]


# ---- the C library -----------------------------------------------------------------------------------------


def mount(
    source: str | None, target: str, kind: str | None = None, flags: int = 0, options: str | None = None
) -> None:
    """Mount a file system, or change a mount, as mount(2) does."""
    texts = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    call_libc("mount", *texts[:3], flags, texts[3], about=f" {target}")


def call_libc(name: str, *values: bytes | int | None, about: str = "") -> None:
    """Call a function of the C library; raise an error that names it if it fails."""
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    given = [ctypes.c_ulong(value) if isinstance(value, int) else ctypes.c_char_p(value) for value in values]
    if function(*given) == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}{about}: {os.strerror(number)}")


if __name__ == "__main__":
    launch()

"""Start processes that never run as root, at the cost of a plain vfork and exec.

Linux keeps credentials per thread. All sandboxes are started by one thread which, where the program runs as root, has
given up root for good; whatever it starts inherits that. (`Popen(user=...)` would fork the whole address space, tens of
milliseconds with a model loaded, and `setpriv` costs another exec.) The thread lives as long as the program, which
matters too: the kernel sends a parent-death signal when the parent *thread* ends.
"""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from whippletree.errors import SandboxError

UNPRIVILEGED_ID = 61_000
"""User and group id of sandboxes that root starts; in no range that distributions or systemd hand out."""

_SYSCALLS = {"x86_64": (116, 119, 117), "aarch64": (159, 149, 147)}
"""Numbers of setgroups, setresgid, setresuid. libc's wrappers would change every thread."""


def sandbox_owner() -> tuple[int, int]:
    """User and group id, as the host sees them, of the processes that `spawn` starts."""
    return (UNPRIVILEGED_ID, UNPRIVILEGED_ID) if os.geteuid() == 0 else (os.geteuid(), os.getegid())


def spawn(
    argv: Sequence[str],
    *,
    stdin: int,
    output: int,
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str],
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start `argv` in a session of its own, without root, with `output` as both stdout and stderr.

    Raises SandboxError where the program cannot be executed or root cannot be given up.
    """

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            argv, stdin=stdin, stdout=output, stderr=output, pass_fds=pass_fds, env=env, cwd=cwd, start_new_session=True
        )

    try:
        return _thread().submit(start).result()
    except OSError as error:
        raise SandboxError(f"cannot start {argv[0]!r}: {error.strerror}") from error


@cache
def _thread() -> ThreadPoolExecutor:
    thread = ThreadPoolExecutor(1, thread_name_prefix="spawn")
    if os.geteuid() == 0:
        thread.submit(_give_up_root).result()
    return thread


def _give_up_root() -> None:
    """Set the calling thread's ids for good. The kernel clears its capabilities and shields the process from ptrace."""
    numbers = _SYSCALLS.get(platform.machine())
    if numbers is None:
        raise SandboxError(f"cannot give up root on {platform.machine()}: run as an ordinary user")
    libc = ctypes.CDLL(None, use_errno=True)
    uid = ctypes.c_uint(UNPRIVILEGED_ID)
    for number, arguments in zip(numbers, ((0, None), (uid, uid, uid), (uid, uid, uid)), strict=True):
        if libc.syscall(ctypes.c_long(number), *arguments) != 0:
            reason = os.strerror(ctypes.get_errno())
            raise SandboxError(f"root cannot become user {UNPRIVILEGED_ID} ({reason}): run as an ordinary user")

"""Start a bash over pipes, and end it: our side of one shell process and of everything that it starts.

Invariant: after `kill` has been called and `ended` has come true, no process of the shell is left (in a namespace; a
plain process group can be left by its members).
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import secrets
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.sandbox.base import SandboxLimits
from whippletree.sandbox.spawn import sandbox_owner, spawn

_CHILD_PID = re.compile(rb'"child-pid": (\d+)')
_STARTUP_S = 5.0
"""How long `kill` waits, blocking, for a shell that is just being started to say which process to kill."""


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start one shell."""

    argv: Callable[[int], Sequence[str]]
    """Command line, given a descriptor for bubblewrap's `--info-fd`."""
    env: Mapping[str, str]
    prologue: str
    """One line of shell that must succeed before the first command: the limits."""
    namespaced: bool
    """Whether the child's process id is told on the info descriptor, and its end is the end of all its processes."""
    cwd: Path | None = None


@dataclass(slots=True)
class ShellProcess:
    """A running shell. The host's ends of the pipes do not block."""

    popen: subprocess.Popen[bytes]
    namespaced: bool
    stdin: int
    output: int
    control: int
    shell_control: int
    """Number of the control pipe's descriptor within the shell."""
    pidfd: int
    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    commands: int = 0
    heard: bytearray = field(default_factory=bytearray)
    """What came on the control pipe and is not yet understood."""
    child_pid: int | None = None
    ready: bool = False
    killed: bool = False

    def listen(self) -> bool:
        """Take in what is on the control pipe; False: nobody can write to it any more."""
        try:
            data = os.read(self.control, 4096)
        except BlockingIOError:
            return True
        self.heard += data
        if not self.ready:
            if self.namespaced and (match := _CHILD_PID.search(self.heard)):
                self.child_pid = int(match[1])
            self.ready = f"ready {self.nonce}\n".encode() in self.heard
        if len(self.heard) > 8192:  # not ours: a command has found the descriptor
            del self.heard[:-4096]
        return bool(data)

    def kill(self) -> None:
        """Send SIGKILL to every process; `ended` tells when they are gone."""
        if self.killed:
            return
        self.killed = True
        if not self.namespaced:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.popen.pid, signal.SIGKILL)
            return
        # Killing bwrap itself would end the sandbox too, but some time after bwrap is gone. Its child is the init of
        # the namespace: the kernel lets it, and so bwrap, end only after all others.
        deadline = time.monotonic() + _STARTUP_S
        while self.child_pid is None and (left := deadline - time.monotonic()) > 0:
            if not select.select([self.control], [], [], left)[0] or not self.listen():
                break
        if not self.ended():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child_pid or self.popen.pid, signal.SIGKILL)

    def ended(self) -> bool:
        """Whether the process is over. It is not collected, so that its id stays its own until `close`."""
        return os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def close_stdin(self) -> None:
        """A shell that still reads commands then ends."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def close(self) -> None:
        """Collect the process, which must have ended, and give the descriptors back."""
        self.popen.wait()
        self.close_stdin()
        for descriptor in (self.output, self.control, self.pidfd):
            os.close(descriptor)


def start(launch: Launch) -> ShellProcess:
    """Start the shell and queue its prologue. Raises SandboxError where the program cannot be executed."""
    pipes: list[int] = []
    try:
        for _ in range(3):
            pipes += os.pipe2(os.O_CLOEXEC)
        stdin_r, stdin, output, output_w, control, control_w = pipes
        os.fchown(output_w, *sandbox_owner())  # so that /dev/stdout and /dev/stderr can be opened
        info_w = os.dup(control_w)
        pipes.append(info_w)
        popen = spawn(
            launch.argv(info_w),
            stdin=stdin_r,
            output=output_w,
            pass_fds=(control_w, info_w) if launch.namespaced else (control_w,),
            env=launch.env,
            cwd=launch.cwd,
        )
        pidfd = os.pidfd_open(popen.pid)
    except (OSError, SandboxError) as error:
        for descriptor in pipes:
            os.close(descriptor)
        raise SandboxError(f"cannot start a shell: {error}") from error
    for descriptor in (stdin_r, output_w, control_w, info_w):
        os.close(descriptor)
    for descriptor in (stdin, output, control):
        os.set_blocking(descriptor, False)
    process = ShellProcess(popen, launch.namespaced, stdin, output, control, control_w, pidfd)
    prologue = f"{{ {launch.prologue}; }} && builtin printf 'ready {process.nonce}\\n' >&{control_w} || exit\n"
    with contextlib.suppress(BrokenPipeError):  # it is dead already: its exit will tell
        os.write(stdin, prologue.encode())
    return process


def limits_prologue(limits: SandboxLimits, *, count_processes: bool, furnished: bool = False) -> str:
    """The shell command that sets the limits, hard and soft, of the shell and all that it starts."""
    option, memory = ("-d", resource.RLIMIT_DATA) if furnished else ("-v", resource.RLIMIT_AS)
    wanted = [
        ("-c", resource.RLIMIT_CORE, 0, 1),
        (option, memory, limits.memory_mb << 20, 1024),
        ("-f", resource.RLIMIT_FSIZE, limits.max_file_mb << 20, 1024),
    ]
    if count_processes:
        wanted.append(("-u", resource.RLIMIT_NPROC, limits.max_processes, 1))
    settings: list[str] = []
    for option, kind, value, unit in wanted:
        hard = resource.getrlimit(kind)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        settings.append(f"{option} {allowed // unit}")
    return "ulimit " + " ".join(settings)

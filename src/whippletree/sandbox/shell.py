"""One persistent bash, driven over pipes: `cd` and `export` last, and a command costs no process of its own.

Commands go in on stdin, one quoted text at a time; stdout and stderr come back on one pipe, in order; how a
command ended comes back on a second pipe, the control pipe, which commands do not see. Invariant: whatever a command
does, `run` ends, either with the word of this shell on the control pipe, or with the exit of the process, or at a
limit. After the latter two the next `run` starts the shell anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import struct
import termios
from enum import Enum

from whippletree.errors import SandboxError
from whippletree.sandbox.base import SandboxLimits
from whippletree.sandbox.launch import Launch, ShellProcess, start
from whippletree.types import ExecResult

_CHUNK = 65_536
_DEATH_S = 60.0
"""How long a killed process may take to be gone; uninterruptible I/O can hold it."""
_QUICK_S = 0.01
"""How long only the control pipe is watched; what a pipe holds needs no reader meanwhile."""
_TIMEOUT_CODE = 124
"""As timeout(1) has it."""
_KILLED_CODE = 137


class _End(Enum):
    EXITED = "exited"
    TIMED_OUT = "timed out"
    FLOODED = "flooded"


class Shell:
    """Runs one command at a time. Started by the first one, and again by the first one after it has ended."""

    def __init__(self, launch: Launch, limits: SandboxLimits, *, keep_last: bool = False) -> None:
        self._launch = launch
        self._limits = limits
        self._keep_last = keep_last
        self._process: ShellProcess | None = None
        self._stopped = False
        self._lock = asyncio.Lock()

    @property
    def namespaced(self) -> bool:
        return self._launch.namespaced

    @property
    def child_pid(self) -> int:
        """Of the first process in the namespaces; raises SandboxError where none is alive."""
        if self._process is None or self._process.child_pid is None:
            raise SandboxError("the sandbox has no process: run a command in it first")
        return self._process.child_pid

    async def run(self, command: str) -> ExecResult:
        """As `Sandbox.run`. A command that ends the shell gives the exit code that it ended with."""
        async with self._lock:
            if self._process is not None and (self._process.killed or self._process.ended()):
                await self._bury(self._process)
            if self._stopped:
                raise SandboxError("the sandbox is stopped: no command can be run in it any more")
            process = self._process = self._process or start(self._launch)
            flight = _Flight(process, self._limits, keep_last=self._keep_last)
            try:
                end = await flight.run(command)
            except BaseException:
                process.kill()
                raise
            finally:
                flight.close()
            if isinstance(end, _End):
                process.kill()
                await self._bury(process)
            return self._result(flight, process, end)

    async def stop(self) -> None:
        """Kill every process and wait until all are gone; a command that is running raises SandboxError."""
        self._stopped = True
        if process := self._process:
            process.kill()
        async with self._lock:
            if process := self._process:
                await self._bury(process)

    def _result(self, flight: _Flight, process: ShellProcess, end: int | _End) -> ExecResult:
        output, truncated = flight.output()
        if self._stopped:
            raise SandboxError("the sandbox was stopped while a command was running")
        if end is _End.TIMED_OUT:
            return ExecResult(output, _TIMEOUT_CODE, timed_out=True, truncated=truncated)
        if end is _End.FLOODED:
            return ExecResult(output, _KILLED_CODE, truncated=True)
        if isinstance(end, int):
            return ExecResult(output, end, truncated=truncated)
        code = process.popen.returncode
        if not process.ready:
            raise SandboxError(f"the sandbox's shell did not start (exit code {code}): {output.strip()[:500]}")
        if code < 0 and process.namespaced:
            raise SandboxError(f"the sandbox was killed from outside by signal {-code}; is the machine out of memory?")
        return ExecResult(output, code if code >= 0 else 128 - code, truncated=truncated)

    async def _bury(self, process: ShellProcess) -> None:
        """Wait until a killed process is gone, and forget it. Can be taken up again after a cancellation."""
        process.kill()
        if not process.ended():
            loop = asyncio.get_running_loop()
            gone: asyncio.Future[None] = loop.create_future()
            loop.add_reader(process.pidfd, gone.set_result, None)
            try:
                async with asyncio.timeout(_DEATH_S):
                    await gone
            except TimeoutError as error:
                raise SandboxError(f"process {process.popen.pid} did not die within {_DEATH_S:.0f} s") from error
            finally:
                loop.remove_reader(process.pidfd)
        process.close()
        self._process = None


class _Flight:
    """One command in flight: watches the pipes, the process and the clock, and keeps a part of the output."""

    def __init__(self, process: ShellProcess, limits: SandboxLimits, *, keep_last: bool) -> None:
        self._process = process
        self._limits = limits
        self._keep_last = keep_last
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int | _End] = self._loop.create_future()
        self._kept = bytearray()
        self._keep = 4 * limits.max_output_chars + 4  # bytes; UTF-8 takes up to 4 for a character
        self._drained = 0
        self._last_output = self._loop.time()
        self._unsent = b""
        self._timers: list[asyncio.TimerHandle] = []
        process.commands += 1
        self._word = f"{process.nonce}.{process.commands} ".encode()

    async def run(self, command: str) -> int | _End:
        """The command's exit code, or why there is none."""
        process, loop, limits = self._process, self._loop, self._limits
        quoted = command.replace("\0", "").replace("'", "'\\''")
        descriptor = process.shell_control
        # Sourced rather than evaluated, so that bash counts lines from the command's first in what it complains of. The
        # command finds stdin at its end and no control pipe. The word comes on a line of its own: an error that makes
        # bash give up a line leaves the next one.
        self._unsent = (
            f". /dev/stdin <<<'{quoted}' {descriptor}>&-\n"
            f"\\builtin printf '{self._word.decode()}%d\\n' $? >&{descriptor}\n"
        ).encode(errors="replace")
        loop.add_reader(process.control, self._on_control)
        self._timers.append(loop.call_later(_QUICK_S, self._watch_closely))
        self._timers.append(loop.call_later(limits.command_timeout_s, self._finish, _End.TIMED_OUT))
        if limits.idle_timeout_s is not None:
            self._timers.append(loop.call_later(limits.idle_timeout_s, self._on_idle))
        self._send()
        return await self._end

    def close(self) -> None:
        """Take what the command had written by its end, and stop watching."""
        process, loop = self._process, self._loop
        for descriptor in (process.output, process.control, process.pidfd):
            loop.remove_reader(descriptor)
        if process.stdin >= 0:
            loop.remove_writer(process.stdin)
        for timer in self._timers:
            timer.cancel()
        waiting = struct.unpack("i", fcntl.ioctl(process.output, termios.FIONREAD, b"\0" * 4))[0]
        while waiting > 0 and (data := os.read(process.output, min(waiting, _CHUNK))):
            self._take(data)
            waiting -= len(data)

    def output(self) -> tuple[str, bool]:
        """The text, and whether some is missing."""
        text = self._kept.decode("utf-8", errors="replace")
        most = self._limits.max_output_chars
        return text[-most:] if self._keep_last else text[:most], len(text) > most

    def _take(self, data: bytes) -> None:
        self._drained += len(data)
        if self._keep_last:
            self._kept += data
            del self._kept[: -self._keep]
        elif (room := self._keep - len(self._kept)) > 0:
            self._kept += data[:room]

    def _finish(self, end: int | _End) -> None:
        if not self._end.done():
            self._end.set_result(end)

    def _send(self) -> None:
        try:
            self._unsent = self._unsent[os.write(self._process.stdin, self._unsent) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self._unsent = b""  # nobody reads: the exit is about to be seen
        if self._unsent:
            self._loop.add_writer(self._process.stdin, self._send)
        else:
            self._loop.remove_writer(self._process.stdin)

    def _on_output(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._process.output, _CHUNK)
            if not data:
                self._loop.remove_reader(self._process.output)
            self._take(data)
        self._last_output = self._loop.time()
        if self._drained > self._limits.max_drained_mb * 1_000_000:
            self._finish(_End.FLOODED)

    def _watch_closely(self) -> None:
        """Read output while it comes, and see the exit. Most commands are over before, and need neither."""
        if not self._end.done():
            self._loop.add_reader(self._process.output, self._on_output)
            self._loop.add_reader(self._process.pidfd, self._finish, _End.EXITED)

    def _on_control(self) -> None:
        process = self._process
        if not process.listen():
            # The shell is gone, has become another program, or has closed its descriptor. In the last case it can only
            # be asked to end.
            self._watch_closely()
            self._loop.remove_reader(process.control)
            if process.stdin >= 0:
                self._loop.remove_writer(process.stdin)
            process.close_stdin()
            return
        begin = process.heard.rfind(self._word)
        if begin >= 0 and (stop := process.heard.find(b"\n", begin)) >= 0:
            code = process.heard[begin + len(self._word) : stop]
            process.heard.clear()
            if code.isdigit():
                self._finish(int(code) & 0xFF)

    def _on_idle(self) -> None:
        limit = self._limits.idle_timeout_s or 0.0
        quiet = self._loop.time() - self._last_output
        if quiet >= limit:
            self._finish(_End.TIMED_OUT)
        else:
            self._timers[-1] = self._loop.call_later(limit - quiet, self._on_idle)

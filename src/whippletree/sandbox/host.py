"""Sandboxes whose workspace is a directory of this machine: files, shell, and the order in which they go.

Invariant: a workspace is only filled before the first process has started and only removed after the last has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from whippletree.errors import SandboxError
from whippletree.sandbox.base import SandboxLimits
from whippletree.sandbox.launch import Launch
from whippletree.sandbox.shell import Shell
from whippletree.sandbox.workspace import WorkspaceRoot, remove
from whippletree.types import ExecResult

_AT_ONCE = 200
"""Entries of a workspace up to which it is removed without a thread."""


class HostSandbox:
    """A `Sandbox` over a directory that holds `workspace` and `tmp`."""

    def __init__(self, place: Path, shell: Shell, on_closed: Callable[[HostSandbox], None]) -> None:
        self.workspace = place / "workspace"
        self._place = place
        self._shell = shell
        self._on_closed = on_closed
        self._closing: asyncio.Task[None] | None = None

    async def run(self, command: str) -> ExecResult:
        return await self._shell.run(command)

    async def stop(self) -> None:
        await self._shell.stop()

    async def close(self) -> None:
        # Shielded: a cancelled caller leaves, the work goes on, and a second caller waits for the same.
        self._closing = self._closing or asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        await self._shell.stop()
        if not remove(self._place, most=_AT_ONCE):
            await asyncio.to_thread(remove, self._place)
        self._on_closed(self)


class HostSandboxes:
    """A `Sandboxes` that makes a directory for each sandbox and starts its shell as `launch(place)` says."""

    def __init__(self, launch: Callable[[Path], Launch], limits: SandboxLimits, root: WorkspaceRoot) -> None:
        self._launch = launch
        self._limits = limits
        self._root = root
        self._open: set[HostSandbox] = set()
        self._closed = False

    async def open(self, files: Mapping[str, str]) -> HostSandbox:
        if self._closed:
            raise SandboxError("the sandboxes of this run are closed: none can be opened any more")
        place = self._root.make(files)
        sandbox = HostSandbox(place, Shell(self._launch(place), self._limits), self._open.discard)
        self._open.add(sandbox)
        return sandbox

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in self._open), return_exceptions=True)
        await asyncio.to_thread(self._root.close)

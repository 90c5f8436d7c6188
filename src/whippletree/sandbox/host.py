"""Sandboxes whose workspace is a directory of this machine: files, shell, and the order in which they go.

Invariant: a workspace is only filled before the first process has started and only removed after the last has ended.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from whippletree.errors import SandboxError
from whippletree.sandbox.base import BARE, Furnishing, SandboxLimits, Scene
from whippletree.sandbox.launch import Launch
from whippletree.sandbox.network import BACKLOG, listen_in
from whippletree.sandbox.shell import Shell
from whippletree.sandbox.workspace import WorkspaceRoot, check_reachable, fill, remove
from whippletree.types import ExecResult

_AT_ONCE = 200
"""Entries of a workspace up to which it is removed without a thread."""


class Views(NamedTuple):
    """Where the host's directories of a sandbox are seen inside."""

    workspace: str
    home: str
    program: str
    tools: str
    grader: str


class HostSandbox:
    """A `Sandbox` over a directory that holds `workspace`, `tmp` and, where they are asked for, `home` and `grader`."""

    def __init__(
        self,
        place: Path,
        shell: Shell,
        on_closed: Callable[[HostSandbox], None],
        owner: tuple[int, int],
        seen_at: Mapping[Path, str],
    ) -> None:
        self.workspace = place / "workspace"
        self.home = place / "home"
        self._owner, self._seen_at = owner, seen_at
        self._place = place
        self._shell = shell
        self._on_closed = on_closed
        self._closing: asyncio.Task[None] | None = None
        self._has_run = False

    async def run(self, command: str) -> ExecResult:
        self._has_run = True
        return await self._shell.run(command)

    def inside(self, path: Path) -> str:
        for outside, seen in self._seen_at.items():
            if path.is_relative_to(outside):
                return str(Path(seen, path.relative_to(outside)))
        raise ValueError(f"{path} is not seen in this sandbox")

    def write_home(self, files: Mapping[str, str]) -> None:
        """Raises SandboxError for a path that cannot be, and after the first command: it could turn paths elsewhere."""
        if self._has_run or not self.home.exists():
            why = "a command has run in it" if self._has_run else "it has none; open it with a furnishing"
            raise SandboxError(f"no files can be put into this sandbox's HOME: {why}")
        fill(self.home, files, self._owner)

    async def listen(self) -> socket.socket:
        """Raises SandboxError where the sandbox's network cannot be entered."""
        if not self._shell.namespaced:
            return socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
        await self._shell.run(":")  # there is no network before there is a process
        return await asyncio.to_thread(listen_in, self._shell.child_pid)

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
    """A `Sandboxes` that makes a directory for each sandbox and starts its shell as `launch(place, furnishing, scene)`
    says.

    `views` is None where processes see the host's own paths.
    """

    def __init__(
        self,
        launch: Callable[[Path, Furnishing | None, Scene], Launch],
        limits: SandboxLimits,
        root: WorkspaceRoot,
        views: Views | None,
    ) -> None:
        self._launch = launch
        self._views = views
        self._limits = limits
        self._root = root
        self._open: set[HostSandbox] = set()
        self._closed = False

    async def open(
        self, files: Mapping[str, str], furnishing: Furnishing | None = None, scene: Scene = BARE
    ) -> HostSandbox:
        if self._closed:
            raise SandboxError("the sandboxes of this run are closed: none can be opened any more")
        for directory in (furnishing.program if furnishing else None, scene.tools):
            if directory is not None:
                check_reachable(directory, self._root.owner)
        rooms: dict[str, Path | None] = {"workspace": scene.tree, "tmp": None}
        rooms |= {"home": None} if furnishing else {}
        rooms |= {"grader": scene.grader} if scene.grader else {}
        if scene.tree or scene.grader:
            place = await asyncio.to_thread(self._root.make, files, rooms)
        else:
            place = self._root.make(files, rooms)
        limits = scene.limits or (furnishing.limits if furnishing else self._limits)
        try:
            launch = self._launch(place, furnishing, scene)
        except SandboxError:
            remove(place)
            raise
        shell = Shell(launch, limits, keep_last=bool(furnishing or scene.grader))
        seen_at = self._seen_at(place, furnishing, scene)
        sandbox = HostSandbox(place, shell, self._open.discard, self._root.owner, seen_at)
        self._open.add(sandbox)
        return sandbox

    def _seen_at(self, place: Path, furnishing: Furnishing | None, scene: Scene) -> dict[Path, str]:
        outside = (
            place / "workspace",
            place / "home",
            furnishing and furnishing.program,
            scene.tools,
            place / "grader",
        )
        seen = self._views or tuple(map(str, outside))
        return {path: view for path, view in zip(outside, seen, strict=True) if path is not None}

    async def close(self) -> None:
        self._closed = True
        await asyncio.gather(*(sandbox.close() for sandbox in self._open), return_exceptions=True)
        await asyncio.to_thread(self._root.close)

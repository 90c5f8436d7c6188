"""What every kind of sandbox has in common: its limits, and the factory that opens one sandbox per rollout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from whippletree.errors import SandboxError
from whippletree.types import Sandbox


@dataclass(frozen=True, slots=True)
class SandboxLimits:
    """What one sandbox may use. Disk space in total is not limited, only the size of each file."""

    command_timeout_s: float = 10.0
    """Wall time of one command; what still runs then is killed."""
    idle_timeout_s: float | None = None
    """Wall time without output after which a command is killed; None: only `command_timeout_s` counts."""
    max_output_chars: int = 16_000
    """Of one command's stdout and stderr together; the first ones are kept, the rest is read and dropped."""
    max_drained_mb: int = 32
    """A command that prints more than this is killed."""
    memory_mb: int = 1024
    """Address space of each process."""
    max_processes: int = 64
    """Processes and threads at one time, the shell included."""
    max_file_mb: int = 64
    """Size of each file."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise SandboxError(f"the sandbox limit {name} must be positive, got {value}")


@dataclass(frozen=True, slots=True)
class Furnishing:
    """What a sandbox holds for an agent program, besides the task's files: the program, and a HOME for it."""

    program: Path
    """A directory of the host that is seen inside, read-only."""
    limits: SandboxLimits
    """Of this sandbox. `memory_mb` limits the private memory that a process may write to, as runtimes such as Node
    reserve far more; of the output the last characters are kept, as they tell why a program ended."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What a sandbox holds for a task, besides files of text."""

    tree: Path | None = None
    """A directory of the host that is copied into the workspace."""
    workspace_at: str = ""
    """A second path at which the workspace is seen; not without isolation."""
    tools: Path | None = None
    """A directory of the host that is seen inside, read-only; its `bin` comes first in PATH."""
    grader: Path | None = None
    """A directory of the host of which a copy is seen inside, read-only; not without isolation."""
    limits: SandboxLimits | None = None
    """Of this sandbox, where they are not those of all."""


BARE = Scene()


class Sandboxes(Protocol):
    """Opens sandboxes of one kind under one private root directory."""

    async def open(
        self, files: Mapping[str, str], furnishing: Furnishing | None = None, scene: Scene = BARE
    ) -> Sandbox:
        """A new sandbox whose workspace holds `files` (workspace-relative path -> text) and the scene's tree. No
        process is started yet.

        Raises SandboxError where a path is absolute, leaves the workspace or names a file and a directory at once,
        where the program's or the tools' directory cannot be reached by the sandboxes' user, and where the scene cannot
        be had in this kind of sandbox.
        """
        ...

    async def close(self) -> None:
        """Close every sandbox that is still open and remove the root. Safe to call twice."""
        ...

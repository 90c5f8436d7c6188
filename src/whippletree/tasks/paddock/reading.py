"""Reading a workspace that an agent has left behind.

Invariant: no symbolic link below the workspace is followed, nothing blocks, at most MAX_BYTES are read, and no state of
the file system raises.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

MAX_BYTES = 1 << 20
"""Larger files count as unreadable; no task asks for one."""

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_text(workspace: Path, path: str) -> str | None:
    """The text of a regular UTF-8 file at a workspace-relative path, or None for anything else."""
    try:
        with _parent(workspace, path) as (folder, name):
            file = os.open(name, _FILE, dir_fd=folder)
            try:
                if not stat.S_ISREG(os.fstat(file).st_mode):
                    return None
                with open(file, "rb", closefd=False) as stream:
                    content = stream.read(MAX_BYTES + 1)
            finally:
                os.close(file)
        return content.decode() if len(content) <= MAX_BYTES else None
    except (OSError, UnicodeDecodeError):
        return None


def is_absent(workspace: Path, path: str) -> bool:
    """Whether it is certain that nothing, not even a dangling link, lies at the path."""
    try:
        with _parent(workspace, path) as (folder, name):
            os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def _parent(workspace: Path, path: str) -> Generator[tuple[int, str], None, None]:
    """A descriptor of the folder that holds `path`, opened component by component, and the last component."""
    *folders, name = PurePosixPath(path).parts
    current = os.open(workspace, _FOLDER)
    try:
        for part in folders:
            inner = os.open(part, _FOLDER | os.O_NOFOLLOW, dir_fd=current)
            os.close(current)
            current = inner
        yield current, name
    finally:
        os.close(current)

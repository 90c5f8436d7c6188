"""Room on the disk, and what to say when there is none.

Invariant: a full disk surfaces as one StoreError that says what was not stored and how to go on.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from whippletree.errors import StoreError

MIN_FREE_BYTES = 256 * 2**20
"""A run does not start with less free space than this."""

_NO_ROOM_BYTES = 2**20


def check_free_space(path: Path, need_bytes: int) -> None:
    """Raise StoreError where the file system of `path`, or of its nearest existing parent, has too little room."""
    existing = path.absolute()
    while not existing.exists():
        existing = existing.parent
    free = shutil.disk_usage(existing).free
    if free < need_bytes:
        raise StoreError(
            f"{path} has {_mib(free)} of free space, but a run needs {_mib(need_bytes)} to start: "
            "make room or choose a path on another disk"
        )


@contextmanager
def storing(run: Path, what: str) -> Generator[None]:
    """Turn a full or failing disk met while storing `what` into a StoreError; let every other error pass."""
    try:
        yield
    except Exception as error:
        if not _is_full(error, run):
            if not isinstance(error, sqlite3.OperationalError):
                raise
            raise StoreError(
                f"{what} was not stored in {run} ({error}), nothing stored before it is lost: "
                f"check the disk, then resume the run {run}"
            ) from error
        raise StoreError(
            f"the disk that holds {run} is full ({_mib(shutil.disk_usage(run).free)} free): {what} was not stored, "
            f"nothing stored before it is lost. Make room, then resume the run {run}"
        ) from error


def write_lines(path: Path, lines: Iterable[str]) -> int:
    """Write a file of lines, whole or not at all; returns how many there were."""
    temporary = path.with_name(f".{path.name}.writing")
    count = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("w", encoding="utf-8") as file:
            for line in lines:
                file.write(line + "\n")
                count += 1
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return count


def sync_tree(path: Path) -> None:
    """Flush every file and directory under `path`, and `path` itself, to the disk."""
    for folder, _, files in os.walk(path, topdown=False):
        for name in files:
            sync_path(Path(folder) / name)
        sync_path(Path(folder))


def sync_path(path: Path) -> None:
    """Flush one file, or the names in one directory, which makes a rename in it durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_full(error: Exception, run: Path) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        return code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR_WRITE and _no_room(run))
    # Native writers of tensors raise their own types: some quote the system's words, others say nothing of the disk.
    return "No space left on device" in str(error) or _no_room(run)


def _no_room(run: Path) -> bool:
    return shutil.disk_usage(run).free < _NO_ROOM_BYTES


def _mib(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"

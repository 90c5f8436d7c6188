"""The directories of sandboxes on the host: made privately, filled safely, and removed whatever was done to them.

A root directory is locked by the process that made it. The kernel drops the lock when that process dies in any way, so
an unlocked root is a leftover and nothing else is.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import secrets
import shutil
import stat
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from whippletree.errors import SandboxError

_PREFIX = "whippletree-sandboxes-"
_ROOMY = 4 << 30
"""Free bytes that /dev/shm must have; containers often get 64 MiB."""
MAX_ENTRIES = 100_000
MAX_BYTES = 2 << 30
"""Of a tree that is copied."""


_ROOMS: Mapping[str, Path | None] = {"workspace": None, "tmp": None}


class WorkspaceRoot:
    """A private directory in `place_for_roots()`, with a numbered directory for each sandbox."""

    def __init__(self, owner: tuple[int, int]) -> None:
        """Remove the leftovers of dead programs, then make the root. `owner` is the user and group of sandboxes."""
        parent = place_for_roots()
        reap(parent)
        self.owner = owner
        self._numbers = itertools.count()
        self.path, self._lock = _make_locked(parent)

    def make(self, files: Mapping[str, str], rooms: Mapping[str, Path | None] = _ROOMS) -> Path:
        """A new directory that holds `rooms`, all the owner's, among them `workspace` with `files`; a room with a path
        holds a copy of that tree.

        Raises SandboxError for a path that cannot be, for a tree that cannot be copied, and where the disk is full.
        """
        place = self.path / str(next(self._numbers))
        try:
            place.mkdir()
            place.chmod(0o755)  # whatever the umask
            for name in rooms:
                (place / name).mkdir(0o700)
            fill(place / "workspace", files, self.owner)
            for name, tree in rooms.items():
                if tree is not None:
                    copy_tree(tree, place / name, self.owner)
                os.chown(place / name, *self.owner)
        except OSError as error:
            remove(place)
            raise SandboxError(f"cannot make a workspace in {self.path}: {error.strerror}") from error
        except BaseException:
            remove(place)
            raise
        return place

    def close(self) -> None:
        if self._lock is None:
            return
        remove(self.path)
        os.close(self._lock)
        self._lock = None


def place_for_roots() -> Path:
    """$TMPDIR where it is set; else /dev/shm where that is roomy and may hold programs; else the temporary directory.

    In memory, the files of a rollout cost a tenth of what a journalling file system takes for them.
    """
    memory = Path("/dev/shm")
    if "TMPDIR" not in os.environ and memory.is_mount() and os.access(memory, os.W_OK | os.X_OK):
        status = os.statvfs(memory)
        if status.f_bavail * status.f_frsize >= _ROOMY and not status.f_flag & os.ST_NOEXEC:
            return memory
    return Path(tempfile.gettempdir())


def fill(directory: Path, files: Mapping[str, str], owner: tuple[int, int]) -> None:
    """Write `files` (relative path -> text, as UTF-8) into an empty directory.

    Nothing outside can be reached: the tree starts empty, only plain directories and new files are made, and `..` is
    refused. Raises SandboxError for a path that cannot be.
    """
    made: set[str] = set()
    for name, text in files.items():
        parts = name.split("/")
        if "\0" in name or any(part in ("", ".", "..") for part in parts):
            raise SandboxError(f"the file path {name!r} must be relative and stay within the {directory.name}")
        try:
            for depth in range(1, len(parts)):
                parent = "/".join(parts[:depth])
                if parent not in made:
                    os.mkdir(directory / parent)  # noqa: PTH102 (one call fewer, on the hot path)
                    os.chown(directory / parent, *owner)
                    made.add(parent)
            descriptor = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise SandboxError(f"the file {name!r} cannot be made in the {directory.name}: {error.strerror}") from error
        with os.fdopen(descriptor, "wb") as file:
            os.fchown(descriptor, *owner)
            file.write(text.encode("utf-8", errors="replace"))


def copy_tree(source: Path, target: Path, owner: tuple[int, int]) -> None:
    """Copy a tree that no process changes any more into a directory, where what it holds must not lie yet.

    Modes and times are kept. Symbolic links are copied and never followed, hard links become files, pipes and sockets
    are left out. Raises SandboxError for a tree that is larger than MAX_ENTRIES or MAX_BYTES, or cannot be copied.
    """
    seen = size = 0
    waiting, directories = [Path()], [(target, source.stat())]
    try:
        while waiting:
            inner = waiting.pop()
            with os.scandir(source / inner) as entries:
                for entry in entries:
                    seen, status = seen + 1, entry.stat(follow_symlinks=False)
                    size += status.st_size if stat.S_ISREG(status.st_mode) else 0
                    if seen > MAX_ENTRIES or size > MAX_BYTES:
                        raise SandboxError(
                            f"{source} is too large to be copied: at most {MAX_ENTRIES} files and {MAX_BYTES >> 20} MiB"
                        )
                    if _copy_entry(entry.path, status, target / inner / entry.name, owner):
                        waiting.append(inner / entry.name)
                        directories.append((target / inner / entry.name, status))
        for path, status in reversed(directories):  # now that nothing is made in them any more
            path.chmod(stat.S_IMODE(status.st_mode) & 0o777 if path != target else 0o700)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    except OSError as error:
        raise SandboxError(f"{source} cannot be copied: {error.strerror} ({error.filename!r:.200})") from error


def _copy_entry(source: str, status: os.stat_result, target: Path, owner: tuple[int, int]) -> bool:
    """Copy one entry; whether it is a directory, whose entries are to follow."""
    kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode) & 0o777
    if kind == stat.S_IFLNK:
        target.symlink_to(os.readlink(source))  # noqa: PTH115 (keeps what it says to the letter)
    elif kind == stat.S_IFDIR:
        if mode & 0o500 != 0o500:  # their owner may have locked himself out
            os.chmod(source, mode | 0o700)  # noqa: PTH101
        target.mkdir(0o700, exist_ok=True)
    elif kind == stat.S_IFREG:
        if not mode & 0o400:
            os.chmod(source, mode | 0o400)  # noqa: PTH101
        with Path(source).open("rb") as old, target.open("xb") as new:
            shutil.copyfileobj(old, new)
        target.chmod(mode)
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    else:
        return False
    os.chown(target, *owner, follow_symlinks=False)
    return kind == stat.S_IFDIR


def check_reachable(directory: Path, owner: tuple[int, int]) -> None:
    """Raise SandboxError where the sandboxes' user cannot read a directory of the host."""
    if os.geteuid() != 0:  # then sandboxes are this user's
        if not os.access(directory, os.R_OK | os.X_OK):
            raise SandboxError(f"{directory} is not there or cannot be read: install it again")
        return
    real = directory.resolve()
    for path in (real, *real.parents):
        try:
            status = path.stat()
        except OSError as error:
            raise SandboxError(f"{path} cannot be read ({error.strerror}): install it again") from error
        mode = status.st_mode >> (6 if status.st_uid == owner[0] else 3 if status.st_gid == owner[1] else 0)
        if not mode & 0o1 or (path == real and not mode & 0o4):
            raise SandboxError(
                f"{directory} cannot be reached by the sandboxes' user, because of {path}: set WHIPPLETREE_HOME to a "
                "directory below which every user may read, and install it again"
            )


def remove(path: Path, most: int = sys.maxsize) -> bool:
    """Remove a tree that no process uses any more, whatever its modes, depth, kinds and names; whether all is gone.

    After `most` entries it stops, and the next call goes on. Raises SandboxError where something cannot be removed.
    """
    try:
        return _remove(path, most)
    except OSError as error:
        raise SandboxError(f"cannot remove {path}: {error}") from error


def _remove(path: Path, most: int) -> bool:
    # Directories are moved to the top before they are emptied, so that no path grows long and nothing recurses.
    top = str(path)
    if not os.path.lexists(top):
        return True
    prefix = f"{top}/{secrets.token_hex(8)}-"
    waiting = [top]
    seen = 0
    while waiting:
        directory = waiting[-1]
        os.chmod(directory, 0o700)  # noqa: PTH101
        nested: list[str] = []
        with os.scandir(directory) as entries:
            for entry in entries:
                seen += 1
                if seen > most:
                    return False
                if not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)  # noqa: PTH108
                elif directory == top:
                    nested.append(entry.path)
                else:
                    os.chmod(entry.path, 0o700)  # noqa: PTH101 (moving writes to it)
                    os.rename(entry.path, f"{prefix}{seen}")  # noqa: PTH104
                    nested.append(f"{prefix}{seen}")
        if directory != top or not nested:
            os.rmdir(directory)  # noqa: PTH106
            waiting.pop()
        waiting += nested
    return True


def reap(parent: Path) -> None:
    """Remove the roots in `parent` that are ours by name and owner and whose program is dead."""
    for path in parent.glob(_PREFIX + "*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            if os.fstat(lock).st_uid == os.geteuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(path)
        except (BlockingIOError, SandboxError):
            pass  # alive, or not removable by us: somebody else's to judge
        finally:
            os.close(lock)


def _make_locked(parent: Path) -> tuple[Path, int]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:  # another program's `reap` came between
            continue
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            path.chmod(0o711)  # sandboxes of another user must be able to pass through
            return path, lock
        os.close(lock)

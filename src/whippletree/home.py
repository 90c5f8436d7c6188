"""The directory of what is installed beside the package: agent programs, suites of tasks, tools.

Invariant: what lies there is whole, and every user may read it, or it does not exist.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from whippletree.errors import WhippletreeError

Say = Callable[[str], None]
Problem = Callable[[str], WhippletreeError]
"""Makes the error that is raised, of what is wrong."""


def default_root() -> Path:
    """WHIPPLETREE_HOME where it is set, else /opt/whippletree for root and a directory in HOME for others."""
    if home := os.environ.get("WHIPPLETREE_HOME"):
        return Path(home).expanduser().absolute()
    return Path("/opt/whippletree") if os.geteuid() == 0 else Path.home() / ".local/share/whippletree"


def make_whole(place: Path, what: str, build: Callable[[Path], None], say: Say, problem: Problem) -> bool:
    """Have `build` fill a directory that then becomes `place`; False where `place` is there already.

    Others that want the same wait. What an interrupted one has left is thrown away, with a word. Raises `problem`
    where the disk is full or may not be written to, and what `build` raises.
    """
    try:
        make_directories(place.parent)
        with alone(place.parent, say):
            if place.is_dir():
                return False
            partial = place.with_name(f".{place.name}.partial")
            if partial.exists():
                say(f"{what}: an earlier try was not finished; beginning anew")
                shutil.rmtree(partial)
            try:
                partial.mkdir()
                build(partial)
                open_to_all(partial)
                partial.rename(place)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise problem(f"{what} cannot be installed in {place}: {os_advice(error)}") from error
    return True


def make_directories(path: Path) -> None:
    """With the missing parents, for everyone to pass whatever the umask."""
    for part in (*reversed(path.parents), path):
        if not part.exists():
            part.mkdir(exist_ok=True)
            part.chmod(0o755)


@contextmanager
def alone(directory: Path, say: Say) -> Generator[None]:
    """Keep others that install in the same directory out."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that installs in {directory}")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def run_installer(command: Sequence[str], wanted: str, problem: Problem, **env: str) -> None:
    """Run npm, pip or git. Raises `problem` with what a failure means and the program's last words."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**os.environ, **env},
        umask=0o022,
        check=False,
    )
    if done.returncode:
        raise problem(f"{wanted} cannot be installed: {_explain(done.stdout, command)}. It said: {done.stdout[-800:]}")


def _explain(said: str, command: Sequence[str]) -> str:
    if re.search(r"ENOSPC|No space left on device", said):
        return "the disk is full; make room, or set WHIPPLETREE_HOME to a directory on another one"
    if re.search(r"No module named pip", said):
        return f"{command[0]} has no pip; add it (`python -m ensurepip`, or `uv pip install pip`)"
    if re.search(r"E404|ETARGET|No matching distribution found|notarget", said):
        return "the registry has no such package or version; check the registry that npm or pip is set up for"
    if re.search(r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|NewConnectionError|Failed to establish", said):
        return "the registry cannot be reached; check the network and the proxy"
    if re.search(r"Could not resolve host|Failed to connect|unable to access|Connection timed out", said):
        return "the repository cannot be reached; check the network and the proxy"
    return "the installer failed"


def open_to_all(prefix: Path) -> None:
    """Let every user read and run what is there."""
    for folder, _, names in os.walk(prefix):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                mode = path.stat().st_mode
                path.chmod(mode & 0o777 | (0o555 if mode & 0o100 else 0o444))


def bytes_on_disk(prefix: Path) -> int:
    """Of all files, each counted once however many names it has."""
    found = (Path(folder, name).lstat() for folder, _, names in os.walk(prefix) for name in names)
    return sum({status.st_ino: status.st_blocks for status in found}.values()) * 512


def os_advice(error: OSError) -> str:
    """What can be done where a directory cannot be filled."""
    advice = {
        errno.ENOSPC: "the disk is full; make room",
        errno.EACCES: "you may not write there",
        errno.EROFS: "it cannot be written to",
    }.get(error.errno or 0, str(error))
    return f"{advice}, or set WHIPPLETREE_HOME to another directory"

"""Installs harnesses by npm and pip, each into a directory of its own: `<root>/harnesses/<name>/<version>`.

Invariant: that directory is a whole installation whose version was checked, or it does not exist. Nothing in it points
outside of it but to /usr, and every user may read it, so that a sandbox can run it wherever it is mounted.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from whippletree.errors import HarnessError
from whippletree.rollout.adapters.base import Adapter, Npm, Pip, Place
from whippletree.rollout.adapters.launch import materialise
from whippletree.rollout.adapters.python import furnish_python

Say = Callable[[str], None]

SYSTEM = Path("/usr")
"""What sandboxes see of the host."""
_VERSION_TIMEOUT_S = 300.0


def default_root() -> Path:
    """WHIPPLETREE_HOME where it is set, else /opt/whippletree for root and a directory in HOME for others."""
    if home := os.environ.get("WHIPPLETREE_HOME"):
        return Path(home).expanduser().absolute()
    return Path("/opt/whippletree") if os.geteuid() == 0 else Path.home() / ".local/share/whippletree"


def installed(adapter: Adapter, root: Path) -> Path | None:
    place = _place(adapter, root)
    return place if place.is_dir() else None


def install(adapter: Adapter, root: Path, say: Say) -> Path:
    """Install unless it is there; returns the directory. `say` gets a line before each step and one at the end.

    Raises HarnessError where npm or pip is missing or fails, the disk is full, or the program is of another version.
    """
    place = _place(adapter, root)
    try:
        _make_directories(place.parent)
        with _alone(place.parent, say):
            if place.is_dir():
                say(f"{adapter.name} {place.name} is installed in {place}")
                return place
            _build(adapter, place, say)
    except OSError as error:
        raise HarnessError(_os_problem(adapter, place, error)) from error
    return place


def _place(adapter: Adapter, root: Path) -> Path:
    return root / "harnesses" / adapter.name / adapter.package.version


def _make_directories(path: Path) -> None:
    """With the missing parents, for everyone to pass whatever the umask."""
    for part in (*reversed(path.parents), path):
        if not part.exists():
            part.mkdir(exist_ok=True)
            part.chmod(0o755)


@contextmanager
def _alone(directory: Path, say: Say) -> Generator[None]:
    """Keep other installers of the same harness out."""
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


def _build(adapter: Adapter, place: Path, say: Say) -> None:
    started = time.monotonic()
    partial = place.with_name(f".{place.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of an installer that was killed
    try:
        partial.mkdir()
        match adapter.package:
            case Npm() as package:
                _npm(package, partial, say)
            case Pip() as package:
                _pip(package, partial, say)
        _check_version(adapter, partial)
        size_mb = _open_to_all(partial) / 1e6
        partial.rename(place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    say(f"installed {adapter.name} {place.name} in {place}: {size_mb:.0f} MB, {time.monotonic() - started:.0f} s")


# ---- npm ---------------------------------------------------------------------------------------------------------


def _npm(package: Npm, prefix: Path, say: Say) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise HarnessError(
            f"{package.package} is installed by npm, which was not found: install Node.js with npm "
            "(`apt install nodejs npm`, `dnf install nodejs`, or from https://nodejs.org)"
        )
    flags = ("--prefix", str(prefix), "--no-audit", "--no-fund", "--no-update-notifier", "--loglevel=error")
    path = os.environ.get("PATH", os.defpath)
    if package.min_node is not None:
        node, found = _system_node()
        if node is None or found < package.min_node:
            wanted = ".".join(map(str, package.min_node))
            say(f"installing Node {package.node}: {wanted} or newer is needed below {SYSTEM}, {_found(node, found)}")
            _run([npm, "install", *flags, f"node@{package.node}"], f"node@{package.node}")
            node = Path("../node_modules/node/bin/node")
            path = f"{prefix}/node_modules/node/bin:{path}"
        (prefix / "bin").mkdir()
        (prefix / "bin" / "node").symlink_to(node)
    wanted = f"{package.package}@{package.version}"
    say(f"installing {wanted} by npm")
    _run([npm, "install", *flags, wanted], wanted, PATH=path)


def _system_node() -> tuple[Path | None, tuple[int, ...]]:
    """Node where sandboxes see it, and its version."""
    found = shutil.which("node")
    if found is None:
        return None, ()
    node = Path(found).resolve()
    if not node.is_relative_to(SYSTEM):
        return None, ()
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout
    return node, tuple(map(int, re.findall(r"\d+", said)))


def _found(node: Path | None, version: Sequence[int]) -> str:
    return f"found {'.'.join(map(str, version))}" if node else "found none"


# ---- pip ---------------------------------------------------------------------------------------------------------


def _pip(package: Pip, prefix: Path, say: Say) -> None:
    python = furnish_python(prefix, SYSTEM, package.min_python)
    say(f"installing {', '.join(package.requirements)} by pip")
    command = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input")
    _run([*command, "install", "--quiet", *package.requirements], package.requirements[0])


# ---- both --------------------------------------------------------------------------------------------------------


def _run(command: Sequence[str], wanted: str, **env: str) -> None:
    """Run an installer. Raises HarnessError with what it means and its last words."""
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
        raise HarnessError(f"{wanted} cannot be installed: {_explain(done.stdout)}. It said: {done.stdout[-800:]}")


def _explain(said: str) -> str:
    if re.search(r"ENOSPC|No space left on device", said):
        return "the disk is full; make room, or set WHIPPLETREE_HOME to a directory on another one"
    if re.search(r"No module named pip", said):
        return f"{sys.executable} has no pip; add it (`python -m ensurepip`, or `uv pip install pip`)"
    if re.search(r"E404|ETARGET|No matching distribution found|notarget", said):
        return "the registry has no such package or version; check the registry that npm or pip is set up for"
    if re.search(r"ENOTFOUND|ECONNREFUSED|EAI_AGAIN|ETIMEDOUT|NewConnectionError|Failed to establish", said):
        return "the registry cannot be reached; check the network and the proxy"
    return "the installer failed"


def _check_version(adapter: Adapter, prefix: Path) -> None:
    """Ask the program itself."""
    with tempfile.TemporaryDirectory() as home:
        place = Place("http://127.0.0.1:9", "key", "model", "", str(prefix), home, context=8192, max_tokens=1024)
        variant = next(iter(adapter.variants.values()))
        launch = materialise(adapter, variant, place)
        command = [*launch.argv[: len(adapter.program)], *adapter.version_args]
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                env=launch.env,
                cwd=home,
                timeout=_VERSION_TIMEOUT_S,
                check=False,
            )
            said = done.stdout + done.stderr
        except subprocess.TimeoutExpired:
            said = f"(nothing within {_VERSION_TIMEOUT_S:.0f} s)"
        except OSError as error:
            said = str(error)
    wanted = adapter.package.version
    if not re.search(rf"(?<![\d.]){re.escape(_plain(wanted))}(?![\d.]*\d)", _plain(said)):
        asked = " ".join(command)
        raise HarnessError(f"{adapter.name}: version {wanted} was installed, but `{asked}` says: {said.strip()[-400:]}")


def _plain(version: str) -> str:
    """Without the marks by which npm and pip write the same pre-release differently."""
    return re.sub(r"[-.]?(a|b|rc)[-.]?(?=\d)", r"\1", version)


def _open_to_all(prefix: Path) -> int:
    """Let every user read and run what is there; returns bytes on the disk."""
    blocks: dict[int, int] = {}  # by inode, as a file may have two names
    for folder, _, names in os.walk(prefix):
        Path(folder).chmod(0o755)
        for path in (Path(folder, name) for name in names):
            if not path.is_symlink():
                status = path.stat()
                path.chmod(status.st_mode & 0o777 | (0o555 if status.st_mode & 0o100 else 0o444))
                blocks[status.st_ino] = status.st_blocks
    return sum(blocks.values()) * 512


def _os_problem(adapter: Adapter, place: Path, error: OSError) -> str:
    advice = {
        errno.ENOSPC: "the disk is full; make room",
        errno.EACCES: "you may not write there",
        errno.EROFS: "it cannot be written to",
    }.get(error.errno or 0, str(error))
    return f"{adapter.name} cannot be installed in {place}: {advice}, or set WHIPPLETREE_HOME to another directory"

"""Installs harnesses by npm and pip, each into a directory of its own: `<root>/harnesses/<name>/<version>`.

Invariant: that directory is a whole installation whose version was checked, or it does not exist. Nothing in it points
outside of it but to /usr, and every user may read it, so that a sandbox can run it wherever it is mounted.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from whippletree.errors import HarnessError
from whippletree.home import Say, bytes_on_disk, make_whole, run_installer
from whippletree.python import SYSTEM, install_python
from whippletree.rollout.adapters.base import Adapter, Npm, Pip, Place
from whippletree.rollout.adapters.launch import materialise

_VERSION_TIMEOUT_S = 300.0


def installed(adapter: Adapter, root: Path) -> Path | None:
    place = _place(adapter, root)
    return place if place.is_dir() else None


def install(adapter: Adapter, root: Path, say: Say) -> Path:
    """Install unless it is there; returns the directory. `say` gets a line before each step and one at the end.

    Raises HarnessError where npm or pip is missing or fails, the disk is full, or the program is of another version.
    """
    place = _place(adapter, root)
    started = time.monotonic()

    def build(partial: Path) -> None:
        match adapter.package:
            case Npm() as package:
                _npm(package, partial, say)
            case Pip() as package:
                _pip(package, partial, say)
        _check_version(adapter, partial)

    if make_whole(place, adapter.name, build, say, HarnessError):
        size_mb = bytes_on_disk(place) / 1e6
        say(f"installed {adapter.name} {place.name} in {place}: {size_mb:.0f} MB, {time.monotonic() - started:.0f} s")
    else:
        say(f"{adapter.name} {place.name} is installed in {place}")
    return place


def _place(adapter: Adapter, root: Path) -> Path:
    return root / "harnesses" / adapter.name / adapter.package.version


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
            run_installer([npm, "install", *flags, f"node@{package.node}"], f"node@{package.node}", HarnessError)
            node = Path("../node_modules/node/bin/node")
            path = f"{prefix}/node_modules/node/bin:{path}"
        (prefix / "bin").mkdir()
        (prefix / "bin" / "node").symlink_to(node)
    wanted = f"{package.package}@{package.version}"
    say(f"installing {wanted} by npm")
    run_installer([npm, "install", *flags, wanted], wanted, HarnessError, PATH=path)


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
    say(f"installing {', '.join(package.requirements)} by pip")
    install_python(prefix, package.requirements, package.min_python, HarnessError)


# ---- both --------------------------------------------------------------------------------------------------------


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

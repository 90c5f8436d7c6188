"""A Python of its own for a harness or for the tools of a suite, which runs wherever its directory is mounted.

Where sandboxes see a Python that is new enough, the directory becomes a virtual environment of that one; else the
running interpreter's installation is copied into it. Both have `bin/python`, and install into themselves.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from whippletree.home import Problem, run_installer

SYSTEM = Path("/usr")
"""What sandboxes see of the host."""
_LEFT_OUT = ("site-packages", "test", "tests", "idlelib", "turtledemo", "EXTERNALLY-MANAGED", "config-*", "*.a")


def install_python(prefix: Path, requirements: Sequence[str], at_least: tuple[int, int], problem: Problem) -> None:
    """Make a Python in an empty directory, with what pip finds for `requirements`. Raises `problem` where it fails."""
    python = furnish_python(prefix, SYSTEM, at_least)
    command = (sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--no-input")
    run_installer([*command, "install", "--quiet", *requirements], requirements[0], problem)


def furnish_python(prefix: Path, system: Path, at_least: tuple[int, int]) -> Path:
    """Make `prefix/bin/python`, and return it."""
    (prefix / "bin").mkdir()
    python = prefix / "bin" / "python"
    found = next(((path, version) for path, version in _candidates(system) if version >= at_least), None)
    if found is None:
        _copy_running(prefix)
        python.symlink_to(f"python{_numbers(sys.version_info[:2])}")
        return python
    base, version = found
    python.symlink_to(base)
    (prefix / "lib" / f"python{_numbers(version)}" / "site-packages").mkdir(parents=True)
    (prefix / "pyvenv.cfg").write_text(f"home = {base.parent}\ninclude-system-site-packages = false\n")
    return python


def _candidates(system: Path) -> Iterator[tuple[Path, tuple[int, int]]]:
    """Interpreters below `system` with their versions, the plain `python3` first."""
    for folder in (system / "local" / "bin", system / "bin"):
        for path in sorted(folder.glob("python3*"), key=lambda path: (len(path.name), path.name)):
            if not re.fullmatch(r"python3(\.\d+)?", path.name) or not path.resolve().is_relative_to(system):
                continue
            command = [path, "-I", "-c", "import sys; print(*sys.version_info[:2])"]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode == 0:
                major, minor = map(int, done.stdout.split())
                yield path, (major, minor)


def _copy_running(prefix: Path) -> None:
    """The interpreter, its standard library and its shared library, as they lie below `sys.base_prefix`."""
    base, name = Path(sys.base_prefix), f"python{_numbers(sys.version_info[:2])}"
    shutil.copy2(base / "bin" / name, prefix / "bin" / name)
    shutil.copytree(base / "lib" / name, prefix / "lib" / name, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (prefix / "lib" / name / "site-packages").mkdir()
    for library in base.glob("lib/libpython*.so*"):
        shutil.copy2(library, prefix / "lib" / library.name)


def _numbers(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))

"""The tools of a suite: a Python with its packages, made once, which sandboxes see read-only.

Invariant: a directory of tools is named after what is in it, so that it never has to be changed.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from whippletree.errors import TaskError
from whippletree.home import Say, make_whole
from whippletree.python import SYSTEM, install_python
from whippletree.tasks.base import Tools


def place_of(tools: Tools, root: Path) -> Path | None:
    """Where the tools are or will be; None where nothing has to be installed."""
    if not tools.requirements:
        return None
    wanted = "\n".join((*tools.requirements, repr(tools.min_python)))
    return root / "tools" / hashlib.sha256(wanted.encode()).hexdigest()[:16]


def missing_programs(tools: Tools) -> tuple[str, ...]:
    """Those of the system that sandboxes would not find."""
    path = f"{SYSTEM}/local/bin:{SYSTEM}/bin:/bin"
    return tuple(name for name in tools.programs if shutil.which(name, path=path) is None)


def build(tools: Tools, root: Path, say: Say) -> Path | None:
    """Install what is not there yet. Raises TaskError where a program is missing or pip fails."""
    if missing := missing_programs(tools):
        raise TaskError(f"these tasks need {', '.join(missing)} below {SYSTEM}: install it (`apt install ...`)")
    place = place_of(tools, root)
    if place is not None:
        if not place.is_dir():
            say(f"installing {', '.join(tools.requirements)} by pip")
        make_whole(place, "the suite's tools", lambda partial: _install(tools, partial), say, TaskError)
    return place


def _install(tools: Tools, prefix: Path) -> None:
    install_python(prefix, tools.requirements, tools.min_python, TaskError)
    if not (prefix / "bin" / "python3").exists():
        (prefix / "bin" / "python3").symlink_to("python")
    for script in (prefix / "bin").iterdir():  # pip wrote where they were made, and they are seen elsewhere
        if script.is_file() and not script.is_symlink() and (text := script.read_bytes()).startswith(b"#!"):
            script.write_bytes(b"#!/usr/bin/env python3\n" + text.split(b"\n", 1)[1])

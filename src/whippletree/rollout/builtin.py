"""The tools that every white-box harness really has: execute_bash and file_editor, on a sandbox.

Invariant: file_editor runs on the host and touches regular files inside the workspace only. It walks from the
workspace's own directory descriptor and follows no symbolic link, so that nothing that a running command does can lead
it out.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from whippletree.harness.tools import CanonicalCall
from whippletree.types import ExecResult, Json, Sandbox

ROOT = "/workspace"
"""The name of the workspace in paths; relative paths start there too."""
MAX_FILE_BYTES = 1_000_000
MAX_OUTPUT_CHARS = 30_000
"""Of a file or directory that is viewed."""


class _EditError(Exception):
    """Why an edit cannot be made, in words that the model can act on; may begin with the argument at fault."""

    def __init__(self, problem: str, argument: str = "") -> None:
        super().__init__(problem)
        self.argument = argument


async def call(sandbox: Sandbox, meant: CanonicalCall, also_at: str = "") -> ExecResult:
    """Run a tool; `also_at` is a second path of the workspace. Raises SandboxError where the sandbox has failed."""
    if meant.name == "execute_bash":
        command: str = meant.arguments["command"]
        if not _plain(command):
            return ExecResult("error: the command has a null byte or half a surrogate pair", exit_code=1)
        return await sandbox.run(command)
    return edit(sandbox.workspace, meant.arguments, meant.shown, also_at)


def edit(
    workspace: Path,
    arguments: Mapping[str, Json],
    shown: Mapping[str, str] = MappingProxyType({}),
    also_at: str = "",
) -> ExecResult:
    """Run file_editor: view, create, str_replace or insert. What the model did wrong is a result with exit code 1.

    `shown` gives the names of the arguments in messages, where they are not the canonical ones.
    """
    try:
        parts = _parts(arguments["path"], (ROOT, str(workspace), also_at))
        output = _COMMANDS[arguments["command"]](workspace, parts, arguments)
        return ExecResult(output[:MAX_OUTPUT_CHARS], exit_code=0, truncated=len(output) > MAX_OUTPUT_CHARS)
    except _EditError as error:
        words = ["error:", *([shown.get(error.argument, error.argument)] if error.argument else []), str(error)]
        return ExecResult(" ".join(words), exit_code=1)
    except OSError as error:
        reason = "a symbolic link is in the way" if error.errno == errno.ELOOP else (error.strerror or "failed").lower()
        return ExecResult(f"error: {arguments['path']}: {reason}", exit_code=1)


def write(workspace: Path, path: str, text: str) -> ExecResult:
    """Create or overwrite one file as file_editor does."""
    return edit(workspace, {"command": "create", "path": path, "file_text": text})


def _plain(text: str) -> bool:
    """Whether the operating system can take the text; JSON can spell more."""
    return "\0" not in text and not any("\ud800" <= char <= "\udfff" for char in text)


def _parts(path: str, roots: Sequence[str]) -> list[str]:
    """The names on the way from the workspace, which may be called by any of `roots`; none for the workspace itself."""
    if not _plain(path):
        raise _EditError("the path has a null byte or half a surrogate pair")
    shown = posixpath.normpath(path)
    for root in filter(None, roots):
        if shown == root or shown.startswith(root + "/"):
            shown = shown[len(root) :].lstrip("/") or "."
            break
    if shown.startswith(("/", "../")) or shown == "..":
        raise _EditError(f"{path} is outside the workspace {ROOT}")
    return [] if shown == "." else shown.split("/")


def _view(workspace: Path, parts: list[str], arguments: Mapping[str, Json]) -> str:
    descriptor = _open(workspace, parts, os.O_RDONLY)
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            return _read(descriptor, parts)
        with os.scandir(descriptor) as entries:
            names = sorted(entry.name + "/" * entry.is_dir(follow_symlinks=False) for entry in entries)
        return "\n".join(names)
    finally:
        os.close(descriptor)


def _create(workspace: Path, parts: list[str], arguments: Mapping[str, Json]) -> str:
    text = _needed(arguments, "file_text")
    _save(workspace, parts, text)
    return f"created {_name(parts)}"


def _replace(workspace: Path, parts: list[str], arguments: Mapping[str, Json]) -> str:
    old = _needed(arguments, "old_str")
    text = _load(workspace, parts)
    if not old:
        raise _EditError("must not be empty", "old_str")
    if (count := text.count(old)) != 1:
        raise _EditError(f"must occur once in {_name(parts)}, it occurs {count} times", "old_str")
    _save(workspace, parts, text.replace(old, arguments.get("new_str", "")))
    return f"edited {_name(parts)}"


def _insert(workspace: Path, parts: list[str], arguments: Mapping[str, Json]) -> str:
    line, new = _needed(arguments, "insert_line"), _needed(arguments, "new_str")
    lines = _load(workspace, parts).split("\n")
    if lines[-1] == "":
        lines.pop()
    if not 0 <= line <= len(lines):
        raise _EditError(f"must be from 0 to {len(lines)} in {_name(parts)}, got {line}", "insert_line")
    lines[line:line] = new.removesuffix("\n").split("\n")
    _save(workspace, parts, "".join(f"{text}\n" for text in lines))
    return f"edited {_name(parts)}"


_COMMANDS = {"view": _view, "create": _create, "str_replace": _replace, "insert": _insert}


def _needed(arguments: Mapping[str, Json], name: str) -> Json:
    if name not in arguments:
        raise _EditError(f"is needed for {arguments['command']}", name)
    return arguments[name]


def _name(parts: list[str]) -> str:
    return "/".join(parts) or ROOT


def _open(workspace: Path, parts: list[str], flags: int, make_parents: bool = False) -> int:
    """Open a file below the workspace without following a symbolic link on the way. Raises OSError."""
    # O_NONBLOCK keeps a named pipe from blocking the host.
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    directory = os.open(workspace, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for index, part in enumerate(parts):
        try:
            if index == len(parts) - 1:
                return os.open(part, flags, 0o644, dir_fd=directory)
            if make_parents:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=directory)
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)
        directory = inner
    return directory


def _read(descriptor: int, parts: list[str]) -> str:
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise _EditError(f"{_name(parts)} is not a regular file")
    if status.st_size > MAX_FILE_BYTES:
        raise _EditError(f"{_name(parts)} has {status.st_size} bytes, the limit is {MAX_FILE_BYTES}")
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        data = file.read(MAX_FILE_BYTES)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise _EditError(f"{_name(parts)} is not a text file in UTF-8") from None


def _load(workspace: Path, parts: list[str]) -> str:
    descriptor = _open(workspace, parts, os.O_RDONLY)
    try:
        return _read(descriptor, parts)
    finally:
        os.close(descriptor)


def _save(workspace: Path, parts: list[str], text: str) -> None:
    data = text.encode(errors="replace")
    if len(data) > MAX_FILE_BYTES:
        raise _EditError(f"{_name(parts)} would have {len(data)} bytes, the limit is {MAX_FILE_BYTES}")
    if not parts:
        raise _EditError(f"{ROOT} is a directory")
    descriptor = _open(workspace, parts, os.O_WRONLY | os.O_CREAT, make_parents=True)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _EditError(f"{_name(parts)} is not a regular file")
        os.ftruncate(descriptor, 0)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
    finally:
        os.close(descriptor)

import asyncio
import os
import sys
from pathlib import Path

import pytest

from whippletree.harness.tools import CanonicalCall
from whippletree.rollout import builtin
from whippletree.types import ExecResult


def edit(workspace, command, path, **arguments):
    return builtin.edit(workspace, {"command": command, "path": path, **arguments})


def test_create_view_replace_insert(tmp_path):
    assert edit(tmp_path, "create", "a/b/elm.txt", file_text="red\nblue\n") == ExecResult("created a/b/elm.txt", 0)
    assert edit(tmp_path, "view", "/workspace/a/b/elm.txt") == ExecResult("red\nblue\n", 0)
    assert (
        edit(tmp_path, "str_replace", "a/b/../b/elm.txt", old_str="blue", new_str="gold").output == "edited a/b/elm.txt"
    )
    assert edit(tmp_path, "insert", "a/b/elm.txt", insert_line=1, new_str="grey").output == "edited a/b/elm.txt"
    assert (tmp_path / "a/b/elm.txt").read_text() == "red\ngrey\ngold\n"
    assert edit(tmp_path, "str_replace", str(tmp_path / "a/b/elm.txt"), old_str="grey\n").exit_code == 0
    assert (tmp_path / "a/b/elm.txt").read_text() == "red\ngold\n"
    assert edit(tmp_path, "create", "a/b/elm.txt", file_text="x").exit_code == 0
    assert (tmp_path / "a/b/elm.txt").read_text() == "x"


def test_the_workspace_may_have_a_second_path(tmp_path):
    asked = {"command": "create", "path": "/root/.agent/work/a.txt", "file_text": "x"}
    assert builtin.edit(tmp_path, asked).exit_code == 1
    assert builtin.edit(tmp_path, asked, also_at="/root/.agent/work") == ExecResult("created a.txt", 0)


@pytest.mark.parametrize(
    ("before", "line", "after"),
    [
        ("", 0, "new\n"),
        ("a\nb\n", 0, "new\na\nb\n"),
        ("a\nb", 2, "a\nb\nnew\n"),
        ("a\n\n", 2, "a\n\nnew\n"),
    ],
)
def test_insert_makes_whole_lines(tmp_path, before, line, after):
    (tmp_path / "f").write_text(before)
    assert edit(tmp_path, "insert", "f", insert_line=line, new_str="new").exit_code == 0
    assert (tmp_path / "f").read_text() == after


def test_view_lists_a_directory(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.txt").touch()
    (tmp_path / ".notes").touch()
    for path in (".", "/workspace", "/workspace/", "sub/..", str(tmp_path)):
        assert edit(tmp_path, "view", path).output == ".notes\nb.txt\nsub/"


def test_a_long_view_is_cut(tmp_path):
    (tmp_path / "f").write_text("x" * (builtin.MAX_OUTPUT_CHARS + 1))
    result = edit(tmp_path, "view", "f")
    assert (len(result.output), result.truncated) == (builtin.MAX_OUTPUT_CHARS, True)


@pytest.mark.parametrize(
    ("command", "path", "arguments", "message"),
    [
        ("create", "new", {}, "error: file_text is needed for create"),
        ("str_replace", "f", {}, "error: old_str is needed for str_replace"),
        ("insert", "f", {"new_str": "x"}, "error: insert_line is needed for insert"),
        ("insert", "f", {"insert_line": 0}, "error: new_str is needed for insert"),
        ("str_replace", "f", {"old_str": ""}, "error: old_str must not be empty"),
        ("str_replace", "f", {"old_str": "a"}, "error: old_str must occur once in f, it occurs 2 times"),
        ("str_replace", "f", {"old_str": "z"}, "error: old_str must occur once in f, it occurs 0 times"),
        ("insert", "f", {"insert_line": 3, "new_str": ""}, "error: insert_line must be from 0 to 2 in f, got 3"),
        ("insert", "f", {"insert_line": -1, "new_str": ""}, "error: insert_line must be from 0 to 2 in f, got -1"),
        ("view", "none", {}, "error: none: no such file or directory"),
        ("view", "f/x", {}, "error: f/x: not a directory"),
        ("create", "sub", {"file_text": ""}, "error: sub: is a directory"),
        ("create", ".", {"file_text": ""}, "error: /workspace is a directory"),
        ("str_replace", "sub", {"old_str": "x"}, "error: sub is not a regular file"),
        ("view", "binary", {}, "error: binary is not a text file in UTF-8"),
        ("view", "big", {}, "error: big has 1000001 bytes, the limit is 1000000"),
        ("create", "new", {"file_text": "x" * 1_000_001}, "error: new would have 1000001 bytes, the limit is 1000000"),
        ("view", "pipe", {}, "error: pipe is not a regular file"),
        ("create", "pipe", {"file_text": "x"}, "error: pipe: no such device or address"),
        ("view", "a\0b", {}, "error: the path has a null byte or half a surrogate pair"),
        ("view", "\ud800", {}, "error: the path has a null byte or half a surrogate pair"),
        ("view", "x" * 300, {}, f"error: {'x' * 300}: file name too long"),
    ],
)
def test_mistakes_are_told_and_change_nothing(tmp_path, command, path, arguments, message):
    (tmp_path / "f").write_text("a\na\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "big").write_bytes(b"x" * 1_000_001)
    os.mkfifo(tmp_path / "pipe")
    before = sorted(tmp_path.iterdir())
    assert edit(tmp_path, command, path, **arguments) == ExecResult(message, exit_code=1)
    assert sorted(tmp_path.iterdir()) == before
    assert (tmp_path / "f").read_text() == "a\na\n"


@pytest.mark.parametrize(
    "path", ["../secret", "/etc/passwd", "a/../../secret", "..", "/workspace/../secret", "/workspaces/x"]
)
def test_paths_outside_are_refused(tmp_path, path):
    (tmp_path / "secret").write_text("s")
    workspace = tmp_path / "w"
    workspace.mkdir()
    for result in (edit(workspace, "view", path), edit(workspace, "create", path, file_text="x")):
        assert result == ExecResult(f"error: {path} is outside the workspace /workspace", exit_code=1)
    assert (tmp_path / "secret").read_text() == "s"


def test_symbolic_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("s")
    workspace = tmp_path / "w"
    workspace.mkdir()
    (workspace / "directory").symlink_to(outside)
    (workspace / "file").symlink_to(outside / "secret")
    (workspace / "dangling").symlink_to(outside / "new")
    for path in ("file", "directory/secret", "directory", "dangling", "directory/new/x"):
        assert edit(workspace, "view", path).exit_code == 1
        assert edit(workspace, "create", path, file_text="x").exit_code == 1
    assert edit(workspace, "view", "file").output == "error: file: a symbolic link is in the way"
    assert {path.name: path.read_text() for path in outside.iterdir()} == {"secret": "s"}


def test_messages_use_the_argument_names_that_are_shown(tmp_path):
    result = builtin.edit(tmp_path, {"command": "create", "path": "f"}, {"file_text": "content"})
    assert result.output == "error: content is needed for create"


class Echo:
    def __init__(self, workspace):
        self.workspace = workspace

    async def run(self, command):
        return ExecResult(f"ran {command}", exit_code=7)

    async def close(self):
        pass


def test_bash_runs_in_the_sandbox_and_the_editor_in_its_workspace(tmp_path):
    bash = CanonicalCall("execute_bash", {"command": "ls"}, {})
    assert asyncio.run(builtin.call(Echo(tmp_path), bash)) == ExecResult("ran ls", 7)
    null = CanonicalCall("execute_bash", {"command": "ls\0"}, {})
    assert "null byte" in asyncio.run(builtin.call(Echo(tmp_path), null)).output
    editor = CanonicalCall("file_editor", {"command": "create", "path": "f", "file_text": "x"}, {})
    assert asyncio.run(builtin.call(Echo(tmp_path), editor)).exit_code == 0
    assert (tmp_path / "f").read_text() == "x"


def test_no_descriptor_is_left_open(tmp_path):
    if sys.platform != "linux":
        pytest.skip("counts descriptors in /proc")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("a/b/c", ".", "../x", "a/b"):
        for command in ("create", "view", "str_replace"):
            edit(tmp_path, command, path, file_text="x", old_str="x", new_str="y")
    assert len(list(Path("/proc/self/fd").iterdir())) == before

"""What a task brings into its sandbox besides files of text: trees, a second path, tools, a grader's directory."""

import os
import shutil
import socket
from pathlib import Path

import pytest

from whippletree.errors import SandboxError
from whippletree.sandbox import workspace
from whippletree.sandbox.base import Scene
from whippletree.sandbox.spawn import sandbox_owner
from whippletree.sandbox.workspace import copy_tree, place_for_roots


@pytest.fixture
def tree(tmp_path):
    """What an agent may leave behind, and more."""
    tree = tmp_path / "tree"
    (tree / "deep/er").mkdir(parents=True)
    (tree / "deep/er/data.bin").write_bytes(bytes(range(256)))
    (tree / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (tree / "run.sh").chmod(0o755)
    (tree / "locked").write_text("x")
    (tree / "locked").chmod(0)
    (tree / "out").symlink_to("/etc/passwd")
    (tree / "away").symlink_to("/etc")
    os.link(tree / "run.sh", tree / "again.sh")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tree / "socket"))
    os.utime(tree / "run.sh", (1, 2))
    return tree


def copied(tree, target):
    target.mkdir()
    copy_tree(tree, target, (os.geteuid(), os.getegid()))
    return target


def test_a_tree_is_copied_as_it_is_and_nothing_is_followed(tree, tmp_path):
    target = copied(tree, tmp_path / "target")
    assert (target / "deep/er/data.bin").read_bytes() == bytes(range(256))
    assert (target / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (target / "run.sh").stat().st_mtime == 2
    assert (target / "locked").stat().st_mode & 0o777 == 0
    assert [str((target / name).readlink()) for name in ("out", "away")] == ["/etc/passwd", "/etc"]
    assert (target / "again.sh").stat().st_nlink == 1
    assert not os.path.lexists(target / "pipe")
    assert not os.path.lexists(target / "socket")


def test_trees_that_are_too_large_are_refused(tree, tmp_path, monkeypatch):
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 3)
    with pytest.raises(SandboxError, match="too large to be copied: at most 3 files"):
        copied(tree, tmp_path / "many")
    monkeypatch.setattr(workspace, "MAX_ENTRIES", 100)
    monkeypatch.setattr(workspace, "MAX_BYTES", 100)
    with pytest.raises(SandboxError, match="too large"):
        copied(tree, tmp_path / "large")


def test_what_is_there_already_is_not_overwritten(tree, tmp_path):
    (tmp_path / "target/deep").mkdir(parents=True)
    (tmp_path / "target/run.sh").write_text("mine")
    with pytest.raises(SandboxError, match="File exists"):
        copy_tree(tree, tmp_path / "target", (os.geteuid(), os.getegid()))


@pytest.fixture
def tools():
    """A directory that the sandboxes' user can reach."""
    path = place_for_roots() / f"tools-{os.getpid()}"
    (path / "bin").mkdir(parents=True, mode=0o755)
    (path / "bin/greet").write_text("#!/bin/sh\necho hello from $0\n")
    (path / "bin/greet").chmod(0o755)
    path.chmod(0o755)
    yield path
    shutil.rmtree(path)


def test_trees_and_files_lie_in_the_workspace_and_belong_to_the_sandbox(tree, play):
    async def script(sandbox):
        assert (sandbox.workspace / "run.sh").stat().st_uid == sandbox_owner()[0]
        return await sandbox.run(
            "./run.sh; cat deep/more.txt; wc -c < deep/er/data.bin; echo changed > run.sh && cat run.sh"
        )

    found = play(script, {"deep/more.txt": "more\n"}, scene=Scene(tree=tree))
    assert found.output == "ran\nmore\n256\nchanged\n"
    assert (tree / "run.sh").read_text().startswith("#!")


def test_tools_come_first_in_the_path_and_cannot_be_changed(tools, play):
    async def script(sandbox):
        return await sandbox.run("greet"), await sandbox.run(f"echo x > {sandbox.inside(tools)}/bin/greet"), sandbox

    greeted, _, sandbox = play(script, scene=Scene(tools=tools))
    assert greeted.output == f"hello from {sandbox.inside(tools)}/bin/greet\n"
    assert "hello" in (tools / "bin/greet").read_text()


def test_the_workspace_is_seen_at_a_second_path(play_bubblewrap):
    async def script(sandbox):
        return await sandbox.run(
            "cat /root/.agent/work/a; echo new > /root/.agent/work/b; cat /workspace/b; ls /root/.agent"
        )

    scene = Scene(workspace_at="/root/.agent/work")
    assert play_bubblewrap(script, {"a": "old\n"}, scene=scene).output == "old\nnew\nwork\n"


@pytest.mark.parametrize("path", ["root/work", "/", "/usr/work", "/tmp/x", "/workspace/y", "/root/../etc"])
def test_second_paths_that_cannot_be(path, play_bubblewrap):
    async def script(sandbox):
        raise AssertionError("it was opened")

    with pytest.raises(SandboxError, match="cannot be seen at"):
        play_bubblewrap(script, scene=Scene(workspace_at=path))


def test_a_grader_is_seen_read_only(tree, play_bubblewrap):
    async def script(sandbox):
        return await sandbox.run("/opt/grader/run.sh; echo x > /opt/grader/new || echo kept; ls /opt/grader/deep")

    (tree / "locked").unlink()
    output = play_bubblewrap(script, scene=Scene(grader=tree)).output
    assert output.startswith("ran\n")
    assert "kept\ner\n" in output


@pytest.mark.parametrize("scene", [Scene(workspace_at="/root/x"), Scene(grader=Path(__file__).parent)])
def test_plain_processes_keep_nothing_apart(scene, play_process):
    async def script(sandbox):
        raise AssertionError("it was opened")

    with pytest.raises(SandboxError, match="these tasks need sandbox"):
        play_process(script, scene=scene)

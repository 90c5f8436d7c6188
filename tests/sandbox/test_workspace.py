"""Directories on the host: only what is asked for is written, and everything is removed."""

import fcntl
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import SandboxError
from whippletree.sandbox.workspace import WorkspaceRoot, fill, place_for_roots, reap, remove

ME = (os.geteuid(), os.getegid())


@pytest.mark.parametrize(
    "name", ["", "/etc/x", "../x", "a/../../x", "a/..", ".", "a/./b", "a//b", "a/", "a\0b", "x" * 300]
)
def test_bad_paths_are_refused(tmp_path, name):
    with pytest.raises(SandboxError, match=r"file|path"):
        fill(tmp_path, {name: "text"}, ME)
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "a"])


@pytest.mark.parametrize("files", [{"a": "1", "a/b": "2"}, {"a/b": "1", "a": "2"}])
def test_conflicting_paths_are_refused(tmp_path, files):
    with pytest.raises(SandboxError, match="cannot be made"):
        fill(tmp_path, files, ME)


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "w").mkdir()
    (tmp_path / "w/link").symlink_to(tmp_path / "outside")
    (tmp_path / "w/dir").symlink_to(tmp_path)
    for name in ("link", "dir/outside"):
        with pytest.raises(SandboxError):
            fill(tmp_path / "w", {name: "text"}, ME)
    assert not (tmp_path / "outside").exists()


PATHS = st.lists(st.sampled_from(["a", "b", "..c", "d d", "é"]), min_size=1, max_size=3).map("/".join)


@given(st.dictionaries(PATHS, st.text()))
def test_files_are_written_exactly_or_refused(tmp_path_factory, files):
    place = tmp_path_factory.mktemp("w")
    clash = any(f"{one}/" == other[: len(one) + 1] for one in files for other in files)
    if clash:
        with pytest.raises(SandboxError):
            fill(place, files, ME)
        return
    fill(place, files, ME)
    found = {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}
    assert found == {name: text.encode(errors="replace") for name, text in files.items()}


def test_remove_takes_deep_and_closed_trees(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    here = os.open(place, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep" * 10, dir_fd=here)
        below = os.open("deep" * 10, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    (place / "shut").mkdir()
    (place / "shut/file").touch()
    (place / "shut").chmod(0)
    (place / "link").symlink_to(tmp_path)
    remove(place)
    assert list(tmp_path.iterdir()) == []


def test_only_dead_roots_of_ours_are_reaped(tmp_path):
    dead, alive, foreign = (tmp_path / f"whippletree-sandboxes-{name}" for name in ("1-a", "1-b", "1-c"))
    for path in (dead, alive, tmp_path / "whippletree-other"):
        path.mkdir()
    (dead / "0").mkdir()
    foreign.symlink_to(alive)
    lock = os.open(alive, os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    reap(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "whippletree-other",
        "whippletree-sandboxes-1-b",
        "whippletree-sandboxes-1-c",
    ]
    os.close(lock)


def test_root_is_locked_private_and_removed(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert place_for_roots() == tmp_path
    root = WorkspaceRoot(ME)
    place = root.make({"a": "1"})
    reap(tmp_path)
    assert (place / "workspace/a").read_text() == "1"
    assert (place / "workspace").stat().st_mode & 0o777 == 0o700
    assert root.path.stat().st_mode & 0o777 == 0o711
    root.close()
    root.close()
    assert list(tmp_path.iterdir()) == []


def test_a_refused_file_leaves_no_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    root = WorkspaceRoot(ME)
    with pytest.raises(SandboxError):
        root.make({"a": "1", "../b": "2"})
    assert list(root.path.iterdir()) == []
    root.close()

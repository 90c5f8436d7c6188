"""The grader: what it tolerates, what it does not, and that no workspace makes it raise."""

import os
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.tasks.paddock.checks import absent, csv_rows, grade, json_value, normalise, text
from whippletree.tasks.paddock.reading import MAX_BYTES, is_absent, read_text

FILES = {"oak.txt": "red\nblue\n"}
GOALS = {"goal": [text("elm.txt", "red\n")]}


@pytest.fixture
def ws(tmp_path):
    workspace = tmp_path / "ws"
    workspace.mkdir()
    (workspace / "oak.txt").write_text(FILES["oak.txt"])
    return workspace


def holds(check, workspace):
    return grade({}, {"goal": [check]}, workspace).passed


@pytest.mark.parametrize("content", ["red\n", "red", "red  \n", "red\r\n", "red\n\n"])
def test_ends_of_lines_and_of_the_file_are_free(ws, content):
    (ws / "elm.txt").write_bytes(content.encode())
    assert grade(FILES, GOALS, ws).value == 1.0


@pytest.mark.parametrize("content", ["", " red\n", "Red\n", "\nred\n", "red\nblue\n", "red blue"])
def test_other_text_fails(ws, content):
    (ws / "elm.txt").write_text(content)
    assert grade(FILES, GOALS, ws).value == 0.0


@given(st.text())
def test_normalise_is_idempotent(content):
    assert normalise(normalise(content)) == normalise(content)


def test_value_is_the_share_of_parts_once_a_goal_is_met(ws):
    goals = {**GOALS, "second": [text("ash.txt", "blue")]}
    assert grade(FILES, goals, ws).value == 0.0
    (ws / "elm.txt").write_text("red")
    reward = grade(FILES, goals, ws)
    assert reward.parts == {"goal": 1.0, "second": 0.0, "untouched": 1.0}
    assert reward.value == pytest.approx(2 / 3)
    (ws / "ash.txt").write_text("blue")
    assert grade(FILES, goals, ws).passed


def test_damage_costs_and_new_files_do_not(ws):
    (ws / "elm.txt").write_text("red")
    (ws / "notes.md").write_text("done")
    assert grade(FILES, GOALS, ws).passed
    (ws / "oak.txt").write_text("blue")
    assert grade(FILES, GOALS, ws).value == 0.5


def test_absent(ws):
    assert holds(absent("elm.txt"), ws)
    assert holds(absent("box/elm.txt"), ws)
    assert not holds(absent("oak.txt"), ws)
    (ws / "elm.txt").symlink_to("nowhere")
    assert not holds(absent("elm.txt"), ws)


@pytest.mark.parametrize(
    ("content", "same"),
    [
        ('{"b": [1, null], "a": true}', True),
        ('{\n "a": true,\n "b": [1.0, null]}', True),
        ('{"a": 1, "b": [1, null]}', False),
        ('{"a": true, "b": [true, null]}', False),
        ('{"a": true, "b": [1]}', False),
        ('{"a": true, "b": [1, null], "c": 0}', False),
        ('{"a": true, "b": {"0": 1}}', False),
        ('{"a": true, "b": [1, null]', False),
        ("[" * 100_000, False),
        ("1" * 10_000, False),
        ("NaN", False),
    ],
)
def test_json(ws, content, same):
    (ws / "a.json").write_text(content)
    assert holds(json_value("a.json", {"a": True, "b": [1, None]}), ws) is same


@pytest.mark.parametrize(
    ("content", "same"),
    [
        ("a,b\n1,x y\n", True),
        ('"a", b \r\n\n1,"x y"\r\n', True),
        ("a,b\nx y,1\n", False),
        ("a,b\n", False),
        ("a,b\n1,x y,\n", False),
        ("a;b\n1;x y\n", False),
        ('a,b\n1,"x y', True),
        ("a,b\n1," + "x" * 200_000, False),
        ("a,b\n1,\0", False),
    ],
)
def test_csv(ws, content, same):
    (ws / "a.csv").write_bytes(content.encode())
    assert holds(csv_rows("a.csv", [["a", "b"], ["1", "x y"]]), ws) is same


def test_unknown_checks_are_a_bug_of_the_task(ws):
    with pytest.raises(ValueError, match="unknown check 'smell'"):
        grade({}, {"goal": [{"is": "smell", "path": "a"}]}, ws)


# ---- hostile workspaces -----------------------------------------------------------------------------------------


def a_socket(path):
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


def an_unreadable_file(path):
    path.write_text("red")
    path.chmod(0)


def a_large_file(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


HOSTILE = {
    "fifo": os.mkfifo,
    "socket": a_socket,
    "folder": lambda path: path.mkdir(),
    "binary": lambda path: path.write_bytes(bytes(range(256))),
    "mode 000": an_unreadable_file,
    "large": a_large_file,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link out": lambda path: path.symlink_to("/etc/passwd"),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link inside": lambda path: path.symlink_to("red.txt"),
}
CHECKS = [text("elm.txt", "red"), json_value("elm.txt", {}), csv_rows("elm.txt", [["red"]])]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_hostile_files_fail_and_do_not_raise(ws, hostile):
    (ws / "red.txt").write_text("red")
    HOSTILE[hostile](ws / "elm.txt")
    unreadable = hostile == "mode 000" and os.geteuid() != 0
    for check in CHECKS:
        passed = holds(check, ws)
        assert not passed or (hostile == "mode 000" and not unreadable)
    assert not holds(absent("elm.txt"), ws)
    assert not is_absent(ws, "elm.txt")


def test_folders_that_are_links_are_not_entered(ws, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "elm.txt").write_text("red")
    (ws / "box").symlink_to(tmp_path / "outside")
    assert read_text(ws, "box/elm.txt") is None
    assert not is_absent(ws, "box/elm.txt")
    assert not is_absent(ws, "box/ash.txt")


def test_a_workspace_that_is_gone_earns_nothing(tmp_path):
    assert grade(FILES, GOALS, tmp_path / "gone").value == 0.0


def test_a_file_in_place_of_a_folder(ws):
    assert read_text(ws, "oak.txt/elm.txt") is None
    assert not is_absent(ws, "oak.txt/elm.txt")


def test_size_limit(ws):
    (ws / "elm.txt").write_text("x" * MAX_BYTES)
    assert read_text(ws, "elm.txt") is not None
    (ws / "elm.txt").write_text("x" * (MAX_BYTES + 1))
    assert read_text(ws, "elm.txt") is None


def test_reading_leaks_no_descriptor(ws):
    (ws / "box").mkdir()
    os.mkfifo(ws / "fifo")
    before = len(list(Path("/proc/self/fd").iterdir()))
    for path in ("box", "fifo", "oak.txt", "gone", "gone/oak.txt", "box/oak.txt", "oak.txt/oak.txt"):
        read_text(ws, path)
        is_absent(ws, path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before

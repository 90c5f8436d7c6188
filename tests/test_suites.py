"""The commands about suites, from adding one to evaluating on it."""

import json
import os
import shutil
import sys
from dataclasses import replace

import pytest

from whippletree import suites
from whippletree.sandbox.workspace import place_for_roots
from whippletree.tasks import clawgym
from whippletree.tasks import suites as table
from whippletree.tasks.base import ByHand, Tools

isolated = pytest.mark.usefixtures("grades_by_code")
CHECK = """
import json, sys
from pathlib import Path
print(json.dumps({"answered": Path(sys.argv[1], "answer.txt").exists(), "kept": False}))
"""


@pytest.fixture
def home(monkeypatch):
    """A home that sandboxes can reach, in which ClawGym needs no tools."""
    path = place_for_roots() / f"home-{os.getpid()}"
    path.mkdir(mode=0o755)
    bare = replace(
        clawgym.SUITE, tools=Tools(), sha256="", origin=ByHand("https://example.com", "its licence forbids it")
    )
    monkeypatch.setattr(table, "SUITES", {"clawgym": bare})
    monkeypatch.setenv("WHIPPLETREE_HOME", str(path))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def given(tmp_path):
    """A directory with five tasks; the grader of one crashes, that of another is content with nothing."""
    for split, count in (("clawgym_train", 2), ("clawgym_eval", 3)):
        for number in range(count):
            folder = tmp_path / "given" / split / f"task_{number}"
            (folder / "reward").mkdir(parents=True)
            (folder / "reward/check.py").write_text(CHECK)
            (folder / "input_files").mkdir()
            (folder / "input_files/a.csv").write_text("1,2\n")
            (folder / "input_files/b.bin").write_bytes(bytes([255]))
            (folder / "data_entry.json").write_text(json.dumps({"user_query": f"add {number}"}))
    (tmp_path / "given/clawgym_eval/task_1/reward/check.py").write_text("raise SystemExit('no verdict')")
    (tmp_path / "given/clawgym_eval/task_2/reward/check.py").write_text("print('{\"a\": 1}')")
    return tmp_path / "given"


@pytest.fixture
def added(home, given, run):
    code, text, err = run("tasks", "add", "clawgym", "--path", given)
    assert code == 0, err
    return text, err


def test_a_suite_is_added_listed_and_shown(added, run, home):
    assert "Apache-2.0" in added[0]
    assert f"clawgym is in {home}/suites/clawgym/data" in added[1]
    (row,) = json.loads(run("tasks", "suites", "--json")[1])
    assert (row["name"], row["licence"], row["here"]) == ("clawgym", "Apache-2.0", "other files")
    assert "paddock" in run("tasks", "suites")[1]
    assert json.loads(run("tasks", "list", "clawgym", "--json")[1])["splits"] == {
        "train": {"bin": 2},
        "test": {"bin": 3},
    }
    shown = run("tasks", "show", "clawgym/test/task_1")[1]
    assert shown.startswith("add 1\n\n--- a.csv\n1,2\n--- b.bin\n(1 bytes that are no text)\n--- gold\n(none is known)")
    assert "add 1" in run("harness", "show", "S0T0O0C0W0", "--task", "clawgym/test/task_1")[1]


@isolated
def test_a_check_quarantines_what_fails_and_keeps_what_it_found(added, run):
    code, text, err = run("tasks", "check", "clawgym")
    assert code == 1
    rows = [line.split() for line in text.splitlines() if line.split()[:1] in (["train"], ["test"], ["all"])]
    assert [row[:8] for row in rows] == [
        ["train", "2", "2", "0", "of", "0", "0", "0.000"],
        ["test", "3", "2", "0", "of", "0", "1", "1.000"],
        ["all", "5", "4", "0", "of", "0", "1", "1.000"],
    ]
    assert "quarantined: clawgym/test/task_1: its grader ended with exit code 1; it said: no verdict" in text
    assert "quarantined: clawgym/test/task_2: doing nothing earns 1" in text
    assert "5 of 5" in err
    again = run("tasks", "check", "clawgym", "--json")
    assert again[2] == ""
    assert [bool(check["problem"]) for check in json.loads(again[1])] == [False, False, False, True, True]
    assert "quarantined: clawgym/test/task_2" in run("tasks", "list", "clawgym")[1]
    assert run("tasks", "check", "clawgym", "clawgym/train/task_0", "--again")[0] == 0


@isolated
def test_a_suite_is_evaluated_on(added, run, tiny, tmp_path):
    change = [f"policy.model={tiny}", "policy.max_context=768", "sampling.max_tokens=4", "rollout.max_calls=2"]
    change += ["evaluate.rollouts_per_set=2", 'evaluate.sets={base = "base"}', "tasks.quarantined=true"]
    options = [word for setting in change for word in ("--set", setting)]
    code, text, err = run("evaluate", "--tasks", "clawgym", "--dir", tmp_path / "run", "--json", *options)
    assert code == 0, err
    cells = json.loads(text)["base"]["cells"]
    assert [(task, rewards) for _, task, _, rewards in cells] == [("clawgym/test/task_0", [0.0])]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["tasks", "add", "clawgim"], "there is no suite 'clawgim' to add; there are clawgym"),
        (["tasks", "add", "paddock"], "paddock comes with the package"),
        (["tasks", "add", "clawgym", "--yes"], "cannot be fetched: its licence forbids it. Get it yourself"),
        (["tasks", "add", "clawgym", "--path", "nowhere"], "there is no directory nowhere"),
        (["tasks", "list", "clawgym"], "the files of clawgym are not here: `whippletree tasks add clawgym`"),
        (["tasks", "show", "clawgym/test/1"], "the files of clawgym are not here"),
        (["tasks", "check", "clawgym"], "the files of clawgym are not here"),
        (["evaluate", "--tasks", "clawgym", "--dir", "run"], "the files of clawgym are not here"),
        (["train", "scaling", "--set", "tasks.source=nowhere", "--dir", "run"], "no suite and no directory 'nowhere'"),
        (["train", "scaling", "--set", "tasks.source=a.b:C", "--dir", "run"], "there is no module 'a'"),
    ],
)
def test_mistakes_end_with_one_message_and_code_2(arguments, words, home, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = run(*arguments)
    assert code == 2
    assert words in err
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_fetched_without_consent(home, run, monkeypatch):
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    code, text, err = run("tasks", "add", "clawgym")
    assert (code, "licence" in text) == (2, True)
    assert "nobody is here to agree to these terms; --yes does" in err
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(suites.typer, "confirm", lambda _: False)
    assert "clawgym was not fetched" in run("tasks", "add", "clawgym")[2]

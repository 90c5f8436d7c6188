"""Finding a suite by its name, its directory or MODULE:CLASS, and choosing among its tasks."""

import asyncio
import textwrap
from dataclasses import replace

import pytest
from clawgym_tasks import write_suite

from whippletree.errors import TaskError
from whippletree.tasks import SUITES, clawgym, fetching, quarantine, suites, tools
from whippletree.tasks.base import ByHand, Ending, Tools
from whippletree.tasks.quarantine import TaskCheck
from whippletree.tasks.suites import find, open_source, task_by_id

ANY = {"quarantined": False, "training": True, "isolated": True}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home in which ClawGym needs no tools."""
    bare = replace(clawgym.SUITE, tools=Tools(), sha256="")
    monkeypatch.setattr(suites, "SUITES", {"clawgym": bare})
    monkeypatch.setenv("WHIPPLETREE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def here(home, tmp_path):
    """The suite, added."""
    fetching.add(suites.SUITES["clawgym"], home, write_suite(tmp_path / "given"), lambda _: None)
    return find("clawgym")


def test_the_table_names_every_suite_by_its_name():
    assert all(name == suite.name for name, suite in SUITES.items())
    assert all(len(suite.sha256) == 64 for suite in SUITES.values() if not isinstance(suite.origin, ByHand))


def test_suites_are_found_by_name_and_by_directory(here, tmp_path):
    assert here.source.tasks("test")[0].id == find(str(tmp_path / "given")).source.tasks("test")[0].id
    assert find(str(tmp_path / "given")).checks != here.checks
    assert task_by_id("clawgym/test/task_0001") == here.source.tasks("test")[1]
    assert task_by_id("paddock/train/copy/1").kind == "copy"
    with pytest.raises(TaskError, match="clawgym has no task 'clawgym/test/task_9'"):
        task_by_id("clawgym/test/task_9")


def test_what_is_no_suite(home, tmp_path):
    with pytest.raises(TaskError, match="the files of clawgym are not here"):
        find("clawgym")
    with pytest.raises(TaskError, match="no suite and no directory 'clawgim'; did you mean clawgym"):
        find("clawgim")
    with pytest.raises(TaskError, match="holds no tasks in a format that is known: clawgym"):
        find(str(tmp_path))


def test_tools_must_be_there(here, home, monkeypatch):
    needy = replace(suites.SUITES["clawgym"], tools=Tools(("tool==1",), ()))
    monkeypatch.setattr(suites, "SUITES", {"clawgym": needy})
    with pytest.raises(TaskError, match=r"the tools of clawgym \(tool==1\) are not here: .*tasks tools clawgym"):
        find("clawgym")
    tools.place_of(needy.tools, home).mkdir(parents=True)
    assert find("clawgym").source.tasks("test")[0].tools == tools.place_of(needy.tools, home)
    monkeypatch.setattr(suites, "SUITES", {"clawgym": replace(needy, tools=Tools((), ("no-such-program",)))})
    with pytest.raises(TaskError, match="needs no-such-program in sandboxes"):
        find("clawgym")


def test_tasks_that_failed_a_check_are_left_out_unless_asked_for(here):
    first, second = (task.id for task in here.source.tasks("test"))
    sha = here.files
    for check in (
        TaskCheck(first, "doing nothing earns 1", 1.0, files=sha),
        TaskCheck(second, "old", files=sha),
        TaskCheck(second, "", 0.0, files=sha),
        TaskCheck(second, "of other files", files="other"),
    ):
        quarantine.append(here.checks, check)
    with here.checks.open("a") as file:
        file.write('{"task_id": "cut o')
    assert find("clawgym").quarantine == {first: "doing nothing earns 1"}
    assert [task.id for task in open_source("clawgym", None, **ANY).tasks("test")] == [second]
    assert len(open_source("clawgym", None, **ANY | {"quarantined": True}).tasks("test")) == 2
    quarantine.append(here.checks, TaskCheck(second, "too", files=sha))
    with pytest.raises(TaskError, match="all 2 tasks of clawgym, split 'test', are left out"):
        open_source("clawgym", None, **ANY).tasks("test")


def test_kinds_are_chosen_by_name(here):
    assert len(open_source("clawgym", ("csv",), **ANY).tasks("train")) == 3
    with pytest.raises(TaskError, match=r"no kinds \['pdf'\] in split 'train'; it has \['csv'\]"):
        open_source("clawgym", ("pdf",), **ANY).tasks("train")


def test_uses_that_are_refused(here, monkeypatch):
    with pytest.raises(TaskError, match="cannot be graded in sandboxes that do not isolate"):
        open_source("clawgym", None, **ANY | {"isolated": False})
    asked = replace(suites.SUITES["clawgym"], evaluation_only="its authors ask that it never be trained on")
    monkeypatch.setattr(suites, "SUITES", {"clawgym": asked})
    with pytest.raises(TaskError, match=r"must not be trained on: its authors ask .*evaluate --tasks clawgym"):
        open_source("clawgym", None, **ANY)
    assert open_source("clawgym", None, **ANY | {"training": False}).tasks("test")


# ---- outside the package ----------------------------------------------------------------------------------------

MINE = """
from whippletree.types import Reward, Task

class Mine:
    name = "mine"

    def tasks(self, split):
        return [Task(f"mine/{split}/{n}", "mine", split, "word", 1, "write hello", {"a.txt": "x"}) for n in range(3)]

    async def grade(self, task, ending):
        return Reward(float((ending.workspace / "a.txt").read_text() == "hello"))

class Half:
    name = "half"

number = 3
"""


@pytest.fixture
def module(home, tmp_path, monkeypatch):
    (tmp_path / "my_suite.py").write_text(textwrap.dedent(MINE))
    (tmp_path / "my_broken_suite.py").write_text("1 / 0\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_class_outside_the_package(module, tmp_path):
    source = open_source("my_suite:Mine", None, **ANY | {"isolated": False})
    task = source.tasks("test")[0]
    (tmp_path / "a.txt").write_text("hello")
    assert source.name == "mine"
    assert asyncio.run(source.grade(task, Ending(tmp_path))).passed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("no_such_suite:Mine", "there is no module 'no_such_suite'"),
        ("my_broken_suite:Mine", "importing 'my_broken_suite' failed with ZeroDivisionError"),
        ("my_suite:Yours", "module 'my_suite' has no 'Yours'"),
        ("my_suite:number", "is no class, but 3"),
        ("my_suite:Half", "is no suite: it lacks tasks, grade"),
    ],
)
def test_mistakes_in_the_name_of_a_class(name, words, module):
    with pytest.raises(TaskError, match=words):
        find(name)

"""Loading and grading in ClawGym's format: tasks of our own, and the real ones where WHIPPLETREE_CLAWGYM names them."""

import asyncio
import os
import re
from pathlib import Path

import pytest
from clawgym_tasks import CHECK, SOLVE, write_suite, write_task

from whippletree.errors import GradingError, TaskError
from whippletree.sandbox import open_sandboxes
from whippletree.sandbox.base import Scene
from whippletree.tasks import clawgym
from whippletree.tasks.base import Ending, Opening

isolated = pytest.mark.usefixtures("grades_by_code")


def source(folder):
    return clawgym.ClawGym(Opening(folder))


def graded(folder, *attempts):
    """Rewards of tasks, or the errors of their graders: one for each pair of a task's folder and a command."""

    async def one(sandboxes, task_folder, command):
        task = clawgym.read_task(task_folder, "train")
        sandbox = await sandboxes.open(task.files, None, Scene(task.tree, task.workspace_at))
        if command:
            await sandbox.run(command)
        await sandbox.stop()
        try:
            return await source(folder).grade(task, Ending(sandbox.workspace, (), sandboxes))
        except GradingError as error:
            return str(error)
        finally:
            await sandbox.close()

    async def all_of_them():
        sandboxes = open_sandboxes("bubblewrap")
        try:
            return await asyncio.gather(*(one(sandboxes, *attempt) for attempt in attempts))
        finally:
            await sandboxes.close()

    return asyncio.run(all_of_them())


# ---- loading ----------------------------------------------------------------------------------------------------


def test_tasks_are_read_in_order_with_what_they_need(tmp_path):
    found = source(write_suite(tmp_path))
    assert [task.id for task in found.tasks("train")] == [f"clawgym/train/task_000{n}" for n in range(3)]
    task = found.tasks("test")[0]
    assert (task.source, task.split, task.kind, task.tags) == ("clawgym", "test", "csv", ("csv", "png"))
    assert task.workspace_at == "/root/.openclaw/workspace"
    assert task.tree == tmp_path / "clawgym_eval/task_0000/input_files"
    assert "check.py" not in str(task.files)
    with pytest.raises(TaskError, match="no split 'validation' here; it has train and test"):
        found.tasks("validation")


def test_a_repository_and_a_lone_folder_of_tasks_are_found_too(tmp_path):
    write_suite(tmp_path / "repository/RL/data")
    assert len(source(tmp_path / "repository").tasks("test")) == 2
    assert len(source(tmp_path / "repository/RL/data/clawgym_eval").tasks("train")) == 2


def test_a_task_may_have_no_files(tmp_path):
    task = clawgym.read_task(write_task(tmp_path / "t", inputs=False), "train")
    assert (task.tree, task.kind, task.workspace_at) == (None, "none", clawgym.WORKSPACE)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda folder: (folder / "data_entry.json").unlink(), "is no ClawGym task: it has no data_entry.json"),
        (
            lambda folder: (folder / "data_entry.json").write_text("{"),
            "data_entry.json cannot be read: JSONDecodeError",
        ),
        (lambda folder: (folder / "data_entry.json").write_text("[]"), "data_entry.json cannot be read: TypeError"),
        (lambda folder: (folder / "data_entry.json").write_text('{"user_query": " "}'), "user_query is ' '"),
        (lambda folder: (folder / "reward/check.py").unlink(), "has no grader: expected reward/check.py"),
    ],
)
def test_folders_that_are_no_tasks(spoil, words, tmp_path):
    folder = write_task(tmp_path / "train/task_1")
    write_task(tmp_path / "train/task_0")
    spoil(folder)
    with pytest.raises(TaskError, match=words):
        source(tmp_path).tasks("train")


def test_a_folder_without_tasks(tmp_path):
    with pytest.raises(TaskError, match="holds no ClawGym tasks: expected clawgym_train or"):
        source(tmp_path)


# ---- grading ----------------------------------------------------------------------------------------------------


@isolated
def test_the_mean_of_checks_and_all_of_them(tmp_path):
    folder = write_task(tmp_path / "train/task_0")
    untouched, solved, half = graded(
        tmp_path,
        (folder, ""),
        (folder, SOLVE),
        (folder, "mkdir out; echo 41 > /root/.openclaw/workspace/out/answer.txt"),
    )
    assert (untouched.value, untouched.passed, dict(untouched.parts)) == (
        0.0,
        False,
        {"exists": 0, "right": 0, "kept": 0},
    )
    assert (solved.value, solved.passed) == (1.0, True)
    assert half.value == pytest.approx(2 / 3)
    assert (half.passed, dict(half.parts)) == (False, {"exists": 1, "right": 0, "kept": 1})


BROKEN = {
    "crashes": ("raise ValueError('bad luck')", "exit code 70; it said: .*bad luck"),
    "exits": ("import sys; sys.exit(3)", "exit code 3"),
    "kills": ("import os; os.kill(os.getpid(), 9)", "exit code 137"),
    "silent": ("pass", "printed no JSON but ''"),
    "chatty": ("print('half'); print('{}')", "printed no JSON but"),
    "empty": ("print('{}')", "made no check"),
    "nan": (
        "import json; print(json.dumps({'a': 1.0, 'b': float('nan')}))",
        "gave 'b' the value nan; expected a number",
    ),
    "large": ("print('{\"a\": 3}')", "gave 'a' the value 3"),
    "words": ('print(\'{"a": "yes"}\')', "gave 'a' the value 'yes'"),
    "network": (
        "import urllib.request as u; u.urlopen('http://192.0.2.1'); print('{\"a\": 1}')",
        "Network is unreachable",
    ),
    "endless": ("while True: pass", "did not end within 1 s"),
}


@isolated
def test_graders_that_fail_give_a_reason_and_no_reward(tmp_path, monkeypatch):
    monkeypatch.setattr(clawgym, "GRADING_TIMEOUT_S", 20.0)
    folders = {name: write_task(tmp_path / "train" / name, check) for name, (check, _) in BROKEN.items()}
    endless = folders.pop("endless")
    found = dict(zip(folders, graded(tmp_path, *((folder, SOLVE) for folder in folders.values())), strict=True))
    monkeypatch.setattr(clawgym, "GRADING_TIMEOUT_S", 1.0)
    found["endless"] = graded(tmp_path, (endless, SOLVE))[0]
    for name, said in found.items():
        assert isinstance(said, str), name
        assert said.startswith(f"clawgym/train/{name}: its grader ")
        assert re.search(BROKEN[name][1], said, re.DOTALL), said


RUNS_THE_AGENTS_CODE = """
import json, subprocess, sys
done = subprocess.run(["sh", "tool.sh"], cwd=sys.argv[1], timeout=20)
print(json.dumps({"ran": 1.0, "earned": 0.0}))
"""
FORGERIES = [
    """echo '{"earned": 1.0}'""",
    """for fd in /proc/$PPID/fd/*; do echo '{"earned": 1.0}' > $fd; done""",
    """echo 'print(1)' > /opt/grader/check.py; rm -rf /opt/grader""",
    """(sleep 1; echo '{"earned": 1.0}') & exit 0""",
    """printf 'import os\\nos._exit(0)\\n' | tee json.py subprocess.py sitecustomize.py /tmp/json.py""",
]


@isolated
def test_what_the_agent_wrote_cannot_speak_for_the_grader(tmp_path):
    folder = write_task(tmp_path / "train/task_0", RUNS_THE_AGENTS_CODE)
    commands = [f"cat > tool.sh <<'END'\n{forgery}\nEND\nsh tool.sh 2>/dev/null" for forgery in FORGERIES]
    for reward in graded(tmp_path, *((folder, command) for command in commands)):
        assert dict(reward.parts) == {"ran": 1.0, "earned": 0.0}
    assert (folder / "reward/check.py").read_text() == RUNS_THE_AGENTS_CODE


HOSTILE = """
mkfifo pipe; ln -s /etc/passwd out; ln -s . loop; ln -s /opt/grader/check.py reward; mkdir locked; chmod 0 locked
touch "$(printf 'a\\nb')"; mkdir -p input; rm -f input/data.csv; ln -s /dev/zero input/data.csv
"""


@isolated
def test_hostile_workspaces_are_graded(tmp_path):
    check = CHECK.replace('(ws / "input/data.csv").read_bytes()', '(ws / "input/data.csv").open("rb").read(9)')
    folder = write_task(tmp_path / "train/task_0", check)
    (reward,) = graded(tmp_path, (folder, HOSTILE))
    assert reward.value == 0.0


def test_a_grader_that_is_code_needs_a_sandbox(tmp_path):
    task = clawgym.read_task(write_task(tmp_path / "train/task_0"), "train")
    with pytest.raises(GradingError, match="there is no sandbox to run it in"):
        asyncio.run(source(tmp_path).grade(task, Ending(tmp_path)))


# ---- the real ones ----------------------------------------------------------------------------------------------


@isolated
@pytest.mark.skipif("WHIPPLETREE_CLAWGYM" not in os.environ, reason="WHIPPLETREE_CLAWGYM names no copy of RL/data")
def test_the_real_tasks_load_and_doing_nothing_earns_little():
    folder = Path(os.environ["WHIPPLETREE_CLAWGYM"])
    found = source(folder)
    assert (len(found.tasks("train")), len(found.tasks("test"))) == (2000, 200)
    chosen = [Path(task.check["grader"]).parent for task in found.tasks("test")[:10]]
    for reward in graded(folder, *((task_folder, "") for task_folder in chosen)):
        assert reward.value <= 0.25

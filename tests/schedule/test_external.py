import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest

from whippletree.config import RunConfig, parse, to_toml
from whippletree.errors import ConfigError, ScheduleError
from whippletree.keys import explain
from whippletree.schedule.base import Plan
from whippletree.types import Group, Task

PAGE = (Path(__file__).parents[2] / "docs" / "schedules.md").read_text(encoding="utf-8")
PLAN = Plan(
    ("a", "b", "c"),
    lambda one, other: int(one != other),
    [Task(f"t{i}", "test", "train", "kind", 1, "do it") for i in range(9)],
    batch_size=2,
    group_size=4,
    seed=0,
)
MODULE = """
from pydantic import BaseModel

class Settled(BaseModel):
    window: int = 5
    names: tuple[str, ...] = ("a",)

    def open(self, plan):
        return object()

class Closed(BaseModel):
    pass

def opened(plan):
    return None

CONSTANT = 5
"""


@pytest.fixture
def modules(tmp_path, monkeypatch):
    """Modules that are importable in one test: file name -> text."""
    monkeypatch.syspath_prepend(tmp_path)
    written = {"own_schedules.py": MODULE, "broken_schedules.py": "1 / 0\n", "needy.py": "import absent_package\n"}
    for name, text in written.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def example(modules):
    """The settings of the documentation's example, whose module is importable."""
    file, body = re.search(r"```python\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL).groups()
    (modules / file).parent.mkdir()
    (modules / file).write_text(body)
    return tomllib.loads(re.search(r"```toml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL).group(1))


def run(scheduler, steps):
    """The harness of each step; each harness passes by its own rate."""
    met = []
    for step in steps:
        assignments = scheduler.assign(step)
        met += {assignment.harness for assignment in assignments}
        passed = {"a": 0.5, "b": 0.2, "c": 0.9}[met[-1]]
        groups = [Group(assignment, ()) for assignment in assignments]
        scheduler.observe(step, groups, {"passed": passed}, np.zeros(scheduler.sketch_size, np.float32))
    return met


def test_the_documented_example_runs_and_resumes(example):
    config = parse(example, "the example")
    whole, first, second = (config.schedule.open(PLAN) for _ in range(3))
    expected = run(whole, range(60))
    assert set(expected) == {"a", "b", "c"}
    assert expected.count("b") > 40
    assert run(first, range(30)) == expected[:30]
    second.restore(json.loads(json.dumps(first.state())))
    assert run(second, range(30, 60)) == expected[30:]


def test_the_run_keeps_the_settings_with_their_defaults(example):
    assert parse(example, "here").schedule.explore == 0.1
    config = parse({"schedule": {"type": "own_schedules:Settled", "window": 7}}, "here")
    assert tomllib.loads(to_toml(config))["schedule"] == {
        "type": "own_schedules:Settled",
        "window": 7,
        "names": ["a"],
    }
    assert parse(tomllib.loads(to_toml(config)), "there") == config


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"type": "nowhere.schedules:Mine"}, ["schedule.type = 'nowhere.schedules:Mine'", "'nowhere'", "PYTHONPATH"]),
        ({"type": "own_schedules.deeper:Mine"}, ["own_schedules"]),
        ({"type": "broken_schedules:Mine"}, ["importing 'broken_schedules'", "ZeroDivisionError: division by zero"]),
        ({"type": "needy:Mine"}, ["importing 'needy'", "ModuleNotFoundError", "absent_package"]),
        ({"type": "own_schedules:Setled"}, ["no 'Setled'", "did you mean 'Settled'?"]),
        ({"type": "own_schedules:Zzzzzzzz"}, ["no 'Zzzzzzzz'", "own_schedules.py"]),
        ({"type": "own_schedules:"}, ["no ''"]),
        ({"type": ":Mine"}, ["schedule.type = ':Mine'"]),
        ({"type": "own_schedules:Closed"}, ["method open(plan)"]),
        ({"type": "own_schedules:opened"}, ["method open(plan)"]),
        ({"type": "own_schedules:CONSTANT"}, ["method open(plan)"]),
        ({"type": "own_schedules:Settled", "windoe": 5}, ["schedule.windoe = 5", "no such setting", "window, names"]),
        ({"type": "own_schedules:Settled", "window": "x"}, ["schedule.window = 'x'", "valid integer"]),
        ({"type": "own_schedules.Settled"}, ["schedule.type = 'own_schedules.Settled'", "bandit, MODULE:CLASS"]),
        ({"type": ["own_schedules:Settled"]}, ["schedule.type = ['own_schedules:Settled']", "MODULE:CLASS"]),
    ],
)
def test_what_is_wrong_is_told_as_the_configuration_is_read(modules, table, words):
    with pytest.raises(ConfigError) as refused:
        parse({"schedule": table}, "mine.toml")
    assert all(word in str(refused.value) for word in ["mine.toml", *words])


def test_what_is_opened_must_be_a_scheduler(modules):
    schedule = parse({"schedule": {"type": "own_schedules:Settled"}}, "here").schedule
    with pytest.raises(ScheduleError, match="Settled' opens is no scheduler: object lacks sketch_size, assign"):
        schedule.open(PLAN)


def test_the_form_is_explained_with_the_other_types():
    (accepted,) = [row[1] for row in explain(RunConfig) if row[0] == "schedule.type"]
    assert accepted == "single | random | repeat | locality | all | mixed | bandit | MODULE:CLASS"

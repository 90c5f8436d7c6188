"""The suite as a source: balanced, lazy, deterministic, and with disjoint splits."""

import hashlib
import os
import subprocess
import sys
from collections import Counter

import pytest

from whippletree.errors import TaskError
from whippletree.tasks import Paddock, TaskSource
from whippletree.tasks.paddock.kinds import KINDS

DIGEST = """
import hashlib
from whippletree.tasks import Paddock
tasks = Paddock(tiers=(1, 2, 3)).tasks("test")[:60]
print(hashlib.sha256(repr(tasks).encode()).hexdigest())
"""


def test_is_a_task_source():
    source: TaskSource = Paddock()
    assert source.name == "paddock"
    assert [len(source.tasks(split)) for split in ("train", "validation", "test")] == [20000, 2000, 2000]


def test_kinds_take_turns():
    tasks = Paddock(tiers=(1, 2)).tasks("train")
    kinds = [kind for kind in KINDS.values() if kind.tier <= 2 and "train" in kind.splits]
    first = tasks[: 2 * len(kinds)]
    assert [task.kind for task in first] == [kind.name for kind in kinds] * 2
    assert [task.id for task in first if task.kind == "copy"] == ["paddock/train/copy/0", "paddock/train/copy/1"]
    assert set(Counter(task.kind for task in first).values()) == {2}


def test_indexing_is_that_of_a_sequence():
    tasks = Paddock(kinds=("copy", "csv_sum"), per_split={"train": 7}).tasks("train")
    assert [task.id for task in tasks] == [task.id for task in tasks[:]]
    assert tasks[-1].id == "paddock/train/copy/3"
    assert len(Paddock(per_split={"train": 7}).tasks("test")) == 0
    with pytest.raises(IndexError):
        tasks[7]


def test_a_task_follows_from_its_id():
    source = Paddock(tiers=(1, 2, 3))
    for split in ("train", "validation", "test"):
        for task in source.tasks(split)[100:150]:
            assert source.task_by_id(task.id) == task
            assert (task.source, task.split, task.tier) == ("paddock", split, KINDS[task.kind].tier)


def test_tasks_are_the_same_in_another_process():
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    out = subprocess.run([sys.executable, "-c", DIGEST], env=env, capture_output=True, text=True, check=True).stdout
    here = repr(Paddock(tiers=(1, 2, 3)).tasks("test")[:60])
    assert out.strip() == hashlib.sha256(here.encode()).hexdigest()


def test_splits_share_no_job():
    source = Paddock(tiers=(1, 2, 3), per_split={"train": 3000, "validation": 1000, "test": 1000})

    def jobs(split):
        return {repr((sorted(task.files.items()), task.check)) for task in source.tasks(split)}

    train, validation, test = map(jobs, ("train", "validation", "test"))
    assert not train & validation
    assert not train & test
    assert not validation & test
    assert len(train) >= 2990


@pytest.mark.parametrize(
    "settings", [{"tiers": (6,)}, {"kinds": ("fly",)}, {"per_split": {"dev": 3}}], ids=["tier", "kind", "split"]
)
def test_unknown_settings_are_refused(settings):
    with pytest.raises(TaskError, match=r"paddock has no .*expected some of"):
        Paddock(**settings)


@pytest.mark.parametrize(
    "task_id",
    [
        "",
        "copy",
        "paddock/train/fly/1",
        "paddock/dev/copy/1",
        "paddock/train/dedupe/1",
        "paddock/train/copy/01",
        "paddock/train/copy/-1",
        "paddock/train/copy/x",
        "other/train/copy/1",
        "paddock/train/copy/1/2",
    ],
)
def test_unknown_ids_are_refused(task_id):
    with pytest.raises(TaskError, match="expected paddock/SPLIT/KIND/N"):
        Paddock().task_by_id(task_id)


def test_a_split_without_kinds_is_refused():
    with pytest.raises(TaskError, match="no kind for split 'train'"):
        Paddock(kinds=("dedupe",)).tasks("train")
    with pytest.raises(TaskError, match="no splits"):
        Paddock().tasks("dev")

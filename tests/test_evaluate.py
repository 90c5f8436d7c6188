from collections import Counter

import pytest

from whippletree.errors import ConfigError, SandboxError
from whippletree.evaluate import evaluate, matrix, scores
from whippletree.sandbox.host import HostSandboxes
from whippletree.store.run_dir import RunStore
from whippletree.train import train
from whippletree.types import Assignment, Group, Reward, Rollout, Score, StopReason, Task

SETS = {"sets": {"base": "base", "training": "training", "some": "random:7"}, "rollouts_per_set": 20}


async def cells(run):
    return {name: [(a.harness, a.task.id) for a in matrix(run, name, -1)] for name in run.config.evaluate.sets}


@pytest.fixture(scope="module")
def found(create, act, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "matrix"
    return act(path, create(path, {"evaluate": SETS}), cells)


def test_harnesses_of_a_set_share_its_rollouts_equally(found):
    for name, num_harnesses, each in (("base", 1, 20), ("training", 18, 2), ("some", 7, 3)):
        counts = Counter(harness for harness, _ in found[name])
        assert len(counts) == num_harnesses
        assert set(counts.values()) == {each}


def test_the_tasks_of_a_set_are_distinct_and_of_the_split(found):
    for listed in found.values():
        tasks = [task for _, task in listed]
        assert len(set(tasks)) == len(tasks)
        assert all(task.startswith("paddock/test/delete/") for task in tasks)


def test_two_policies_meet_the_same_cells(found, create, act, tmp_path):
    path = tmp_path / "other"
    config = create(path, {"evaluate": SETS, "steps": 9, "harnesses": {"train": "training"}})
    assert act(path, config, cells)["base"] == found["base"]
    assert act(path, config, cells)["training"] == found["training"]


def test_every_assignment_is_one_evaluation_rollout(create, act, tmp_path):
    async def story(run):
        return matrix(run, "base", 4)

    path = tmp_path / "run"
    assert {(a.step, a.num_rollouts, a.purpose) for a in act(path, create(path), story)} == {(4, 1, "evaluate")}


def test_new_kinds_are_asked_for(create, act, tmp_path):
    async def kinds(run):
        return {a.task.kind for a in matrix(run, "base", -1)}

    tasks = {"tasks": {"kinds": None}, "evaluate": {"rollouts_per_set": 100}}
    seen = {}
    for new in (False, True):
        path = tmp_path / str(new)
        changes = {**tasks, "evaluate": {"rollouts_per_set": 100, "new_kinds": new}}
        seen[new] = act(path, create(path, changes), kinds)
    assert seen[False] < seen[True]
    assert "follow_count" in seen[True] - seen[False]


def test_too_few_tasks_are_found_before_the_first_rollout(create, act, tmp_path):
    async def story(run):
        raise AssertionError("the run was opened")

    config = create(tmp_path / "run", {"evaluate": {"rollouts_per_set": 2001}})
    with pytest.raises(ConfigError, match="set 'base' needs 2001 distinct tasks, but split 'test' has 2000"):
        act(tmp_path / "run", config, story)


def test_finished_cells_are_kept_and_not_evaluated_again(create, act, tmp_path):
    path = tmp_path / "run"
    config = create(path)
    seen = []

    async def story(run):
        run.progress = seen.append
        return await evaluate(run, label="start", step=-1)

    first = act(path, config, story)
    assert len(seen) == 12
    with RunStore.open(path) as store:  # forget two cells
        store._db.execute("DELETE FROM scores WHERE name = 'base' AND task_id IN (?, ?)", _two(first["base"]))
    seen.clear()
    assert act(path, config, story) == first
    assert {rollout.task_id for rollout in seen} == set(_two(first["base"]))
    seen.clear()
    act(path, config, story)
    assert seen == []


def _two(found):
    return found[1].task_id, found[3].task_id


def test_the_same_policy_scores_the_same_again(create, act, tmp_path):
    async def story(run):
        return await evaluate(run, label="start", step=-1)

    runs = [act(tmp_path / name, create(tmp_path / name), story) for name in ("a", "b")]
    assert runs[0] == runs[1]
    assert {name: len(found) for name, found in runs[0].items()} == {"base": 6, "held_out": 6}


TASK = Task("t", "s", "test", "k", 1, "do")


def rollout(reward):
    stop = StopReason.ERROR if reward is None else StopReason.FINISHED
    graded = None if reward is None else Reward(reward)
    return Rollout("r", "t", "k", "H", 0, "evaluate", (), graded, stop, None if graded else "the disk is full")


def test_what_infrastructure_broke_is_no_score():
    groups = [
        Group(Assignment(0, TASK, "H1", 2), (rollout(1.0), rollout(None))),
        Group(Assignment(0, TASK, "H2", 2), (rollout(None), rollout(None))),
        Group(Assignment(0, TASK, "H3", 2), (rollout(0.5), rollout(1.0))),
    ]
    assert list(scores(groups)) == [
        Score("t", "k", "H1", (True,), (1.0,)),
        Score("t", "k", "H3", (False, True), (0.5, 1.0)),
    ]


def break_sandboxes(monkeypatch, every):
    opened, calls = HostSandboxes.open, []

    async def breaks(self, files, furnishing=None, scene=None):
        calls.append(files)
        if len(calls) % every == 0:
            raise SandboxError("the disk is full")
        return await opened(self, files, furnishing)

    monkeypatch.setattr(HostSandboxes, "open", breaks)


@pytest.mark.parametrize("story", [train, lambda run: evaluate(run, label="start", step=-1)])
def test_a_machine_that_breaks_every_rollout_stops_the_run(story, create, act, tmp_path, monkeypatch):
    path = tmp_path / "run"
    config = create(path)
    break_sandboxes(monkeypatch, every=1)
    with pytest.raises(SandboxError, match=r"none of the (16|6) rollouts .* could be graded.*the disk is full"):
        act(path, config, story)


def test_broken_cells_are_not_stored_and_tried_again(create, act, tmp_path, monkeypatch):
    path = tmp_path / "run"
    config = create(path)

    async def story(run):
        return await evaluate(run, label="start", step=-1)

    break_sandboxes(monkeypatch, every=2)
    broken = act(path, config, story)
    assert {name: len(found) for name, found in broken.items()} == {"base": 3, "held_out": 3}
    monkeypatch.undo()
    mended = act(path, config, story)
    assert {name: len(found) for name, found in mended.items()} == {"base": 6, "held_out": 6}

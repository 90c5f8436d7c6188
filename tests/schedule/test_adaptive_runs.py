"""Schedules that learn, in runs of a tiny policy: what they learned is kept with the checkpoint."""

from collections import Counter

import pytest

from whippletree.errors import ScheduleError
from whippletree.store.run_dir import RunStore
from whippletree.train import train

CHANGES = {
    "steps": 4,
    "batch_size": 2,
    "harnesses": {"train": ["S0T0O0C0W0", "S0T0O1C0W0"]},
    "schedule": {"type": "bandit", "sketch_size": 16},
    "evaluate": {"rollouts_per_set": 1, "sets": {"base": "base"}},
}


class Stop(Exception):
    pass


def harnesses_and_states(path):
    with RunStore.open(path, read_only=True) as store:
        met = [(rollout.step, rollout.harness) for rollout in store.rollouts() if rollout.purpose == "train"]
        return Counter(met), [record.scheduler_state for record in store.steps()]


def test_an_interrupted_bandit_goes_on_as_if_nothing_had_happened(create, act, tmp_path):
    async def stop_in_the_third_step(run):
        def stop(rollout):
            if rollout.step == 2:
                raise Stop

        run.progress = stop
        await train(run)

    config = create(tmp_path / "whole", CHANGES)
    act(tmp_path / "whole", config, train)
    create(tmp_path / "stopped", CHANGES)
    with pytest.raises(ExceptionGroup):
        act(tmp_path / "stopped", config, stop_in_the_third_step)
    act(tmp_path / "stopped", config, train)
    met, states = harnesses_and_states(tmp_path / "whole")
    assert harnesses_and_states(tmp_path / "stopped") == (met, states)
    assert set(met.values()) == {8}  # one harness a step, for all tasks
    assert {harness for step, harness in met if step < 2} == set(CHANGES["harnesses"]["train"])
    assert any(len(sketch) == 16 for sketch in states[-1]["sketches"].values())


def test_a_harness_that_is_not_trained_through_is_refused_before_any_rollout(create, act, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "astray.py").write_text(
        "from pydantic import BaseModel\n"
        "from whippletree.schedule.base import BlockScheduler\n"
        "class Astray(BaseModel):\n"
        "    def open(self, plan):\n"
        "        return BlockScheduler(plan, 1, lambda plan, block, visit: ['S2T2O2C2W2'] * plan.batch_size)\n"
    )
    path = tmp_path / "run"
    config = create(path, {**CHANGES, "schedule": {"type": "astray:Astray"}})
    with pytest.raises(ScheduleError, match="'S2T2O2C2W2' is not in the training set of 2"):
        act(path, config, train)
    assert harnesses_and_states(path) == (Counter(), [])

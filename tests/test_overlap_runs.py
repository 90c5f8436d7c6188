"""Runs whose rollouts go on during updates."""

import pytest

from whippletree.store.run_dir import RunStore
from whippletree.train import train

CHANGES = {
    "steps": 4,
    "policy": {"lockstep": False, "micro_batch_tokens": 256},
    "rollout": {"staleness": 1},
    "evaluate": {"every": 2, "rollouts_per_set": 2, "sets": {"base": "base"}},
}


class Stop(Exception):
    pass


def require_whole(path, staleness):
    with RunStore.open(path, read_only=True) as store:
        assert [record.policy_version for record in store.steps()] == [1, 2, 3, 4]
        rollouts = [r for r in store.rollouts(with_calls=True) if r.purpose == "train"]
        assert [sum(r.step == step for r in rollouts) for step in range(4)] == [16] * 4
        ages = {step: set[int]() for step in range(4)}
        for rollout in rollouts:
            for call in rollout.calls:
                ages[rollout.step] |= set((rollout.step - call.versions).tolist())
        assert all(0 <= age <= min(staleness, step) for step, found in ages.items() for age in found)
        assert max(map(max, ages.values())) == staleness
        assert max(value for _, value in store.metric("staleness/max")) <= staleness
        assert max(value for _, value in store.metric("grad_norm")) > 0
        evaluated = [r for r in store.rollouts(with_calls=True) if r.purpose == "evaluate"]
        assert all(set(call.versions.tolist()) == {r.step + 1} for r in evaluated for call in r.calls)
        assert store.meta()["finished"] is True


@pytest.mark.parametrize("staleness", [1, 2])
def test_the_next_rollouts_run_during_the_update_and_are_no_older_than_allowed(staleness, create, act, tmp_path):
    path = tmp_path / "run"
    act(path, create(path, {**CHANGES, "rollout": {"staleness": staleness}}), train)
    require_whole(path, staleness)


@pytest.mark.parametrize("point", [("train", 1), ("train", 3)])
def test_a_run_that_is_stopped_drops_what_is_under_way_and_goes_on(point, create, act, tmp_path):
    async def train_to_the_point(run):
        def stop(rollout):
            if (rollout.purpose, rollout.step) == point:
                raise Stop

        run.progress = stop
        await train(run)

    path = tmp_path / "stopped"
    config = create(path, CHANGES)
    with pytest.raises(Stop):
        act(path, config, train_to_the_point)
    with RunStore.open(path, read_only=True) as store:
        assert {r.step for r in store.rollouts() if r.purpose == "train"} == set(range(store.num_steps()))
    act(path, config, train)
    require_whole(path, 1)

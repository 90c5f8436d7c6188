import asyncio
from dataclasses import replace

import pytest
from scripted_policy import ScriptedPolicy, Watched, assignment, bash, make_world, say

from whippletree.rollout.ahead import acting
from whippletree.sandbox import open_sandboxes

DONE = say("done")


def steps(policy, story, *, staleness, num_steps=5, concurrency=2, progress=lambda rollout: None):
    async def run():
        watched = Watched(open_sandboxes("process"))
        try:
            world = make_world(policy, watched)
            options = {"concurrency": concurrency, "progress": progress, "num_steps": num_steps}
            async with acting(world, staleness=staleness, **options) as it:
                return await story(it)
        finally:
            assert watched.left == []
            await watched.close()

    return asyncio.run(run())


def planned(step):
    return [replace(assignment(kind, num_rollouts=2), step=step) for kind in ("copy", "delete")]


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_steps_begin_as_soon_as_they_may_and_no_sooner(staleness):
    begun, made = [], []

    async def story(it):
        for step in range(5):
            for due in it.due(step):
                begun.append((step, due))
                it.begin(due, planned(due))
            groups = await it.groups(step)
            assert [group.assignment for group in groups] == planned(step)
            assert [r.id for group in groups for r in group.rollouts] == [
                f"train/{step}/S0T0O0C0W0/paddock/train/{kind}/0/{n}" for kind in ("copy", "delete") for n in (0, 1)
            ]
            await it.rest()
            assert len(made) == 4 * min(5, step + 1 + staleness)

    steps(ScriptedPolicy([DONE]), story, staleness=staleness, progress=made.append)
    assert begun == [(max(0, due - staleness), due) for due in range(5)]


@pytest.mark.parametrize("concurrency", [1, 3])
def test_earlier_steps_come_first_and_no_more_run_than_may(concurrency):
    made, policy = [], ScriptedPolicy([bash("true"), DONE])

    async def story(it):
        for due in it.due(0):
            it.begin(due, planned(due))
        await it.groups(0)
        await it.rest()

    steps(policy, story, staleness=2, concurrency=concurrency, progress=lambda rollout: made.append(rollout.step))
    assert sorted(made) == [0] * 4 + [1] * 4 + [2] * 4
    assert concurrency > 1 or made == sorted(made)
    assert policy.most_workers <= concurrency
    assert policy.workers == 0


def test_a_programming_error_in_a_later_step_is_raised_where_an_earlier_one_is_waited_for():
    def script(session):
        return [RuntimeError("a bug")] if session.startswith("train/1/") else [bash("sleep 5"), DONE]

    async def story(it):
        for due in it.due(0):
            it.begin(due, planned(due))
        await it.groups(0)

    with pytest.raises(RuntimeError, match="a bug"):
        steps(ScriptedPolicy(script), story, staleness=1, concurrency=8)


def test_what_is_under_way_is_dropped_when_the_story_ends():
    async def story(it):
        for due in it.due(0):
            it.begin(due, planned(due))
        await asyncio.sleep(0.05)
        raise KeyError("stop")

    policy = ScriptedPolicy([bash("sleep 60"), DONE])
    with pytest.raises(KeyError):
        steps(policy, story, staleness=1)
    assert policy.workers == 0

import asyncio
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_policy import RENDERER, ScriptedPolicy, Watched, assignment, bash, make_world, say

from whippletree.errors import PolicyError, SandboxError
from whippletree.policy.local import LocalPolicy
from whippletree.policy.nano.modeling import NanoConfig, NanoForCausalLM
from whippletree.rollout.engine import roll_out, rollout_ids
from whippletree.sandbox import open_sandboxes
from whippletree.types import Sampling, StopReason

DONE = say("done")


def engine(policy, assignments, *, concurrency=4, before_open=None, progress=None, **settings):
    async def run():
        watched = Watched(open_sandboxes("process"), before_open)
        try:
            world = make_world(policy, watched, **settings)
            return await roll_out(world, assignments, concurrency=concurrency, progress=progress)
        finally:
            assert watched.left == []
            await watched.close()

    return asyncio.run(run())


async def dawdle():
    for _ in range(random.randrange(20)):
        await asyncio.sleep(0)


@pytest.mark.parametrize("concurrency", [1, 3, 50])
def test_groups_come_in_the_order_of_the_assignments(concurrency):
    asked = [assignment(kind, n, num_rollouts=n + 1) for n in range(3) for kind in ("copy", "delete")]
    policy, seen = ScriptedPolicy([DONE]), []
    groups = engine(policy, asked, concurrency=concurrency, before_open=dawdle, progress=seen.append)
    assert [group.assignment for group in groups] == asked
    assert [[r.id for r in group.rollouts] for group in groups] == rollout_ids(asked)
    for group in groups:
        assert {(r.task_id, r.harness) for r in group.rollouts} == {
            (group.assignment.task.id, group.assignment.harness)
        }
    assert sorted(r.id for r in seen) == sorted(r.id for group in groups for r in group.rollouts)
    assert policy.most_workers == min(concurrency, 12)
    assert policy.workers == 0


def test_no_more_sandboxes_are_open_than_rollouts_may_run():
    open_at_once = []

    class Counted(ScriptedPolicy):
        async def sample(self, *args, **kwargs):
            open_at_once.append(len(watched.left))
            return await super().sample(*args, **kwargs)

    watched = Watched(open_sandboxes("process"), dawdle)

    async def run():
        world = make_world(Counted([bash("true"), DONE]), watched)
        await roll_out(world, [assignment(num_rollouts=9)], concurrency=3)
        await watched.close()

    asyncio.run(run())
    assert max(open_at_once) <= 3


def test_nothing_to_do():
    assert engine(ScriptedPolicy([]), []) == []


def test_ids_are_unique_even_where_a_cell_comes_twice():
    asked = [assignment(num_rollouts=2), assignment(num_rollouts=3), assignment(harness="S1T0O0C0W0")]
    ids = rollout_ids(asked)
    assert [len(group) for group in ids] == [2, 3, 1]
    assert len({name for group in ids for name in group}) == 6
    assert ids[0][0] == "train/0/S0T0O0C0W0/paddock/train/copy/0/0"
    assert ids[1][0] == "train/0/S0T0O0C0W0/paddock/train/copy/0/2"


def test_groups_are_whole_even_with_failures():
    failing = random.Random(1).sample(range(8), 4)

    def script(session):
        number = int(session.rsplit("/", 1)[1])
        return [PolicyError("broken")] if number in failing else [bash(asked.task.gold), DONE]

    asked = assignment(num_rollouts=8)
    (group,) = engine(ScriptedPolicy(script), [asked])
    assert [r.stop_reason == StopReason.ERROR for r in group.rollouts] == [i in failing for i in range(8)]
    assert len(group.graded) == 4
    assert all(r.passed for r in group.graded)


def test_sandboxes_that_do_not_open_break_their_rollouts_only():
    attempts = iter(range(100))

    async def every_second():
        if next(attempts) % 2:
            raise SandboxError("no room")

    (group,) = engine(ScriptedPolicy([DONE]), [assignment(num_rollouts=6)], before_open=every_second)
    assert sorted(r.error or "" for r in group.rollouts) == [""] * 3 + ["SandboxError: no room"] * 3


def test_a_programming_error_ends_everything_and_is_raised():
    def script(session):
        return [RuntimeError("a bug")] if session.endswith("/2") else [bash("true")] * 10

    policy = ScriptedPolicy(script)
    with pytest.raises(ExceptionGroup) as error:
        engine(policy, [assignment(num_rollouts=6)])
    assert error.group_contains(RuntimeError, match="a bug")
    assert policy.workers == 0


# ---- with a sampler in lockstep ---------------------------------------------------------------------------------


def random_nano():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = NanoConfig(
        vocab_size=280,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=9,
    )
    return LocalPolicy(NanoForCausalLM(config), RENDERER, max_context=1024, num_slots=4)


POLICY = random_nano()


def sampled(ticks):
    """What a group and a lone rollout sample when opening a sandbox takes so many turns of the event loop."""
    left = iter(ticks)

    async def wait():
        for _ in range(next(left, 0)):
            await asyncio.sleep(0)

    asked = [assignment("copy", num_rollouts=3), assignment("delete", harness="S0T0O1C0W1", num_rollouts=2)]
    groups = engine(POLICY, asked, before_open=wait, concurrency=4, max_calls=2, sampling=Sampling(1.0, 6))
    return [
        [(c.completion_ids.tolist(), c.logprobs.tobytes(), c.cached_tokens) for c in rollout.calls]
        for group in groups
        for rollout in group.rollouts
    ]


REFERENCE = sampled([])


@settings(deadline=None, max_examples=5)
@given(st.lists(st.integers(0, 30), min_size=5, max_size=5))
def test_the_same_seed_gives_the_same_bits_whatever_the_sandboxes_speed(ticks):
    assert sampled(ticks) == REFERENCE
    assert [len(calls) for calls in REFERENCE] == [2] * 5
    assert len({np.array(calls[0][0]).tobytes() for calls in REFERENCE}) == 5

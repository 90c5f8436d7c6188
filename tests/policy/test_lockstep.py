"""Sampling from many workers at once: who waits for whom, the same bits in any order, and no one left hanging."""

import asyncio

import numpy as np
import pytest
from contract import ask, asynchronous, tokens
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import CONTEXT, local_policy

from whippletree.errors import PolicyError

POLICY = local_policy(num_slots=3)
TURNS = (3, 1, 4, 2, 3)
"""Turns of each worker."""


async def pause(ticks: int) -> None:
    for _ in range(ticks):
        await asyncio.sleep(0)


async def episodes(policy, order, ticks):
    """Every worker's samples: each continues its own conversation, after pauses as `ticks` has them."""
    found = {}

    async def work(name: int) -> None:
        with policy.worker():
            prompt = np.concatenate([tokens(20), tokens(5 + name)])
            for turn in range(TURNS[name]):
                await pause(ticks[name][turn])
                sampled = await ask(policy, prompt, session=f"rollout {name}", seed=turn, max_tokens=3 + name)
                found[name, turn] = sampled
                prompt = np.concatenate([prompt, sampled.ids, tokens(4, turn)])

    await asyncio.gather(*map(work, order))
    return found


TICKS = st.lists(st.lists(st.integers(0, 6), min_size=4, max_size=4), min_size=5, max_size=5)
REFERENCE = asyncio.run(episodes(POLICY, range(5), [[0] * 4] * 5))


@settings(deadline=None, max_examples=25)
@given(st.permutations(range(5)), TICKS)
def test_the_order_of_arrival_does_not_change_a_bit(order, ticks):
    found = asyncio.run(episodes(POLICY, order, ticks))
    assert found.keys() == REFERENCE.keys()
    for key, sampled in found.items():
        np.testing.assert_array_equal(sampled.ids, REFERENCE[key].ids)
        np.testing.assert_array_equal(sampled.logprobs, REFERENCE[key].logprobs)
        assert sampled.cached_tokens == REFERENCE[key].cached_tokens


@asynchronous
async def test_the_batch_waits_for_every_worker():
    policy = local_policy()
    with policy.worker(), policy.worker():
        early = asyncio.create_task(ask(policy, tokens(5), session="a"))
        await pause(50)
        assert (early.done(), policy._decoder.waiting) == (False, [])
        late = await ask(policy, tokens(5), session="b")
        assert len((await early).ids) == len(late.ids)
    await policy.close()


@asynchronous
async def test_a_worker_that_leaves_releases_the_others():
    policy = local_policy()
    with policy.worker():
        with policy.worker():
            early = asyncio.create_task(ask(policy, tokens(5), session="a"))
            await pause(50)
            assert not early.done()
        assert len((await early).ids) == 12
    await policy.close()


@asynchronous
async def test_without_lockstep_no_one_waits():
    policy = local_policy(lockstep=False, num_slots=2)
    with policy.worker(), policy.worker():
        assert len((await ask(policy, tokens(5), session="a")).ids) == 12
    found = await episodes(policy, range(5), [[name * 7] * 4 for name in range(5)])
    assert {key: len(sampled.ids) for key, sampled in found.items()} == {
        (name, turn): 3 + name for name in range(5) for turn in range(TURNS[name])
    }
    await policy.close()


@asynchronous
async def test_a_newcomer_joins_a_running_batch_without_lockstep():
    policy = local_policy(lockstep=False, max_context=CONTEXT)
    ended = []

    async def request(name, max_tokens):
        await ask(policy, tokens(5), session=name, max_tokens=max_tokens)
        ended.append(name)

    long = asyncio.create_task(request("long", 90))
    while not (policy._decoder.active or long.done()):
        await asyncio.sleep(0)
    await request("short", 1)
    await long
    assert ended == ["short", "long"]
    await policy.close()


# ---- what goes wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lockstep", [True, False])
@asynchronous
async def test_a_failure_while_decoding_reaches_everyone_who_waits(lockstep):
    policy = local_policy(lockstep=lockstep)
    bad = np.array([10**6])  # no embedding has this row
    found = await asyncio.gather(
        ask(policy, tokens(30), session="a"),
        ask(policy, bad, session="b"),
        ask(policy, tokens(30), session="c"),
        return_exceptions=True,
    )
    assert {type(error) for error in found} == {IndexError}
    again = await ask(policy, tokens(30), session="a")
    (expected,) = await policy.logprobs([np.concatenate([tokens(30), again.ids])])
    np.testing.assert_allclose(again.logprobs, expected[29:], atol=1e-4)
    await policy.close()


@pytest.mark.parametrize("lockstep", [True, False])
@asynchronous
async def test_a_cancelled_request_does_not_hinder_the_others(lockstep):
    policy = local_policy(lockstep=lockstep)
    with policy.worker(), policy.worker():
        doomed = asyncio.create_task(ask(policy, tokens(5), session="a", max_tokens=80))
        await pause(3)
        doomed.cancel()
        await pause(3)
        assert doomed.cancelled()
        pair = [asyncio.create_task(ask(policy, tokens(5), session=name)) for name in "bc"]
        assert [len(sampled.ids) for sampled in await asyncio.gather(*pair)] == [12, 12]
    await policy.publish()  # no abandoned job holds on to the old weights
    await policy.close()


@asynchronous
async def test_a_cancelled_request_does_not_count_as_asked():
    policy = local_policy()
    with policy.worker(), policy.worker():
        doomed = asyncio.create_task(ask(policy, tokens(5), session="a"))
        await pause(3)
        doomed.cancel()
        one = asyncio.create_task(ask(policy, tokens(5), session="b"))
        await pause(50)
        assert not one.done()
        await ask(policy, tokens(5), session="c")
        await one
    await policy.close()


@asynchronous
async def test_equal_sessions_and_seeds_are_all_answered():
    policy = local_policy()
    first, second = await asyncio.gather(ask(policy, tokens(5)), ask(policy, tokens(5)))
    np.testing.assert_array_equal(first.ids, second.ids)
    await policy.close()


@asynchronous
async def test_closing_tells_those_who_wait():
    policy = local_policy()
    with policy.worker(), policy.worker():
        waiting = asyncio.create_task(ask(policy, tokens(5)))
        await pause(3)
        await policy.close()
        with pytest.raises(PolicyError, match="closed"):
            await waiting


@pytest.mark.parametrize(("prompt", "max_tokens"), [(tokens(0), 5), (tokens(3), 0)])
@asynchronous
async def test_what_cannot_be_sampled_is_refused_before_it_disturbs_others(prompt, max_tokens):
    with pytest.raises(ValueError, match="must be 1 or more"):
        await ask(POLICY, prompt, max_tokens=max_tokens)


def teardown_module():
    asyncio.run(POLICY.close())


@asynchronous
async def test_new_workers_find_no_keys_of_those_before_even_where_the_sampler_has_not_rested_yet():
    policy = local_policy()
    for _ in range(2):
        with policy.worker():
            asked = asyncio.create_task(ask(policy, tokens(30)))
            while policy._sampling is None or not asked.done():
                await pause(1)  # not one turn of the event loop more than the answer takes
        assert asked.result().cached_tokens == 0
    await policy.close()

import asyncio

import pytest
from scripted_policy import RENDERER, ScriptedPolicy, Watched, assignment, bash, make_world, say

from whippletree.errors import ContextOverflow, PolicyError, SandboxError
from whippletree.rollout.lifecycle import roll_out_once
from whippletree.sandbox import open_sandboxes
from whippletree.sandbox.base import BARE
from whippletree.types import StopReason

COPY = assignment("copy")
GOLD = bash(COPY.task.gold)
DONE = say("done")


class TimeTravel(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward, so that a timeout needs no waiting."""

    forward_s = 0.0

    def time(self):
        return super().time() + self.forward_s


async def hang():
    """Never answer, and let a day go by."""
    asyncio.get_running_loop().forward_s += 86400.0
    await asyncio.Event().wait()


def play(script, *, task=COPY, name="r", sandboxes=None, **settings):
    """One rollout; returns it, and the policy and sandboxes that it met."""
    policy = ScriptedPolicy(script)

    async def once():
        watched = sandboxes or Watched(open_sandboxes("process"))
        try:
            return await roll_out_once(make_world(policy, watched, **settings), task, name), watched
        finally:
            assert watched.left == []
            await watched.close()

    with asyncio.Runner(loop_factory=TimeTravel) as runner:
        rollout, watched = runner.run(once())
    return rollout, policy, watched


# ---- graded endings ---------------------------------------------------------------------------------------------


def test_a_solved_task():
    rollout, _, watched = play([GOLD, DONE])
    assert (rollout.reward.value, rollout.passed, rollout.error) == (1.0, True, None)
    assert (rollout.stop_reason, rollout.num_turns) == (StopReason.FINISHED, 2)
    assert (rollout.id, rollout.task_id, rollout.task_kind) == ("r", COPY.task.id, "copy")
    assert (rollout.harness, rollout.step, rollout.purpose) == (COPY.harness, 0, "train")
    assert [RENDERER.parse(call.completion_ids, ())[0].content for call in rollout.calls] == ["", "done"]
    assert len(watched.opened) == 1
    assert set(rollout.timings_s) == {"sandbox", "policy", "grade", "total"}
    assert 0 < rollout.timings_s["sandbox"] < rollout.timings_s["total"]
    assert 0 < rollout.timings_s["policy"] + rollout.timings_s["grade"] < rollout.timings_s["total"]


def test_an_unsolved_task_is_graded():
    rollout, _, _ = play([DONE])
    assert (rollout.reward.value, rollout.stop_reason, rollout.error) == (0.0, StopReason.FINISHED, None)


def test_a_timeout_is_graded_on_what_was_done():
    rollout, _, _ = play([GOLD, hang])
    assert (rollout.stop_reason, rollout.error, rollout.num_turns) == (StopReason.TIMEOUT, None, 1)
    assert rollout.passed
    assert len(rollout.calls) == 1


@pytest.mark.parametrize(
    ("budget", "reason"), [({"max_calls": 1}, StopReason.MAX_TURNS), ({"max_tokens": 1}, StopReason.MAX_TOKENS)]
)
def test_a_spent_budget_is_graded_on_what_was_done(budget, reason):
    rollout, _, _ = play([GOLD, DONE], **budget)
    assert (rollout.stop_reason, rollout.error, rollout.num_turns) == (reason, None, 1)
    assert rollout.reward is not None


def test_a_full_context_is_graded_on_what_was_done():
    rollout, _, _ = play([GOLD, ContextOverflow("full")])
    assert (rollout.stop_reason, rollout.error, rollout.num_turns) == (StopReason.CONTEXT_OVERFLOW, None, 1)
    assert rollout.passed


# ---- failures ---------------------------------------------------------------------------------------------------


class Failing(Watched):
    """Sandboxes of which one method raises."""

    def __init__(self, method, error):
        super().__init__(open_sandboxes("process"))
        self.method, self.error = method, error

    async def open(self, files, furnishing=None, scene=BARE):
        if self.method == "open":
            raise self.error
        sandbox = await super().open(files, furnishing, scene)

        async def fail(*args):
            raise self.error

        setattr(sandbox, self.method, fail)
        return sandbox


@pytest.mark.parametrize(
    ("method", "turns"),
    [("open", 0), ("run", 1), ("stop", 2)],
)
@pytest.mark.parametrize("error", [SandboxError("the shell is gone"), OSError(28, "no space left")])
def test_a_broken_sandbox_makes_a_rollout_without_a_reward(method, turns, error):
    rollout, _, _ = play([GOLD, DONE], sandboxes=Failing(method, error))
    assert (rollout.reward, rollout.stop_reason, rollout.passed) == (None, StopReason.ERROR, False)
    assert (rollout.num_turns, len(rollout.calls)) == (turns, turns)
    assert rollout.error == f"{type(error).__name__}: {error}"


def test_a_policy_that_fails_makes_a_rollout_without_a_reward():
    rollout, _, _ = play([GOLD, PolicyError("out of memory")])
    assert (rollout.reward, rollout.error, rollout.num_turns) == (None, "PolicyError: out of memory", 1)


def test_a_harness_that_is_not_there_makes_a_rollout_without_a_reward():
    rollout, _, watched = play([DONE], task=assignment(harness="S9T0O0C0W0"))
    assert rollout.reward is None
    assert "factor S has levels 0-2, got 9" in rollout.error
    assert watched.opened == []


def test_a_timeout_of_something_else_is_a_failure():
    rollout, _, _ = play([TimeoutError("the network")])
    assert (rollout.stop_reason, rollout.error) == (StopReason.ERROR, "TimeoutError: the network")


def test_a_programming_error_is_raised_and_the_sandbox_is_closed():
    with pytest.raises(RuntimeError, match="a bug"):
        play([GOLD, RuntimeError("a bug")])


def test_cancelling_closes_the_sandbox():
    async def cancelled():
        reached = asyncio.Event()

        async def wait():
            reached.set()
            await asyncio.Event().wait()

        watched = Watched(open_sandboxes("process"))
        world = make_world(ScriptedPolicy([GOLD, wait]), watched)
        rollout = asyncio.create_task(roll_out_once(world, COPY, "r"))
        await reached.wait()
        assert len(watched.left) == 1
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout
        assert watched.left == []
        await watched.close()

    asyncio.run(cancelled())


# ---- randomness -------------------------------------------------------------------------------------------------


def test_seeds_follow_from_the_run_and_the_rollout_alone():
    found = {
        key: play([GOLD, DONE], name=key[0], seed=key[1], **extra)[1].seeds[key[0]]
        for key, extra in {("a", 0): {}, ("b", 0): {}, ("a", 1): {}, ("a", 0, "again"): {"max_calls": 5}}.items()
    }
    assert found["a", 0] == found["a", 0, "again"]
    every = [seed for key in (("a", 0), ("b", 0), ("a", 1)) for seed in found[key]]
    assert len(set(every)) == len(every) == 6

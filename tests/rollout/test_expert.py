"""End to end: harness, task, sandbox and grader, with a scripted agent in the policy's place."""

import asyncio
import json
import random
import shutil

import pytest
from scripted_policy import PADDOCK, RENDERER, ScriptedPolicy, assignment, make_world, spec

from whippletree.rollout.expert import Expert
from whippletree.rollout.lifecycle import roll_out_once
from whippletree.rollout.whitebox import run
from whippletree.sandbox import open_sandboxes
from whippletree.tasks.base import Ending
from whippletree.types import Message, Request, StopReason

HARNESSES = ["S0T0O0C0W0", "S1T2O2C2W2", "S0T1O1C1W1"]
KINDS = PADDOCK.kinds_of("train")
SANDBOX = "bubblewrap" if shutil.which("bwrap") else "process"


async def attempt(sandboxes, harness, task, **slips):
    expert = Expert(spec(harness), task.gold.split("\n"), RENDERER, files=task.files, **slips)
    sandbox = await sandboxes.open(task.files)
    try:
        outcome = await run(spec(harness), task, sandbox, expert, random.Random(0))
        await sandbox.stop()
        return expert, outcome, await PADDOCK.grade(task, Ending(sandbox.workspace))
    finally:
        await sandbox.close()


def attempts(harness, tasks, **slips):
    async def every():
        sandboxes = open_sandboxes(SANDBOX)
        try:
            return [await attempt(sandboxes, harness, task, **slips) for task in tasks]
        finally:
            await sandboxes.close()

    return asyncio.run(every())


def task_of(kind, number=0):
    return PADDOCK.task_by_id(f"paddock/train/{kind}/{number}")


@pytest.mark.parametrize("harness", HARNESSES)
def test_every_kind_is_solved_in_every_harness(harness):
    tasks = [task_of(kind) for kind in KINDS]
    for task, (expert, outcome, reward) in zip(tasks, attempts(harness, tasks), strict=True):
        assert (task.id, reward.value) == (task.id, 1.0)
        assert outcome.stop_reason == StopReason.FINISHED
        assert all(call.parse_error is None for call in expert.calls)


def test_slips_are_refused_and_do_no_harm():
    tasks = [task_of(kind, 1) for kind in KINDS[::5]]
    for harness in HARNESSES:
        for task, (expert, _, reward) in zip(tasks, attempts(harness, tasks, slips=0.9), strict=True):
            assert (task.id, reward.value) == (task.id, 1.0)
            assert expert.slipped
            assert all(b - a > 1 for a, b in zip(expert.slipped, expert.slipped[1:], strict=False))


@pytest.mark.parametrize("harness", HARNESSES)
def test_what_the_expert_said_solves_the_task_for_a_policy_too(harness):
    """The same tokens through the whole life of a rollout: boundary, sandbox and grade."""
    asked = assignment("move_to_folder", 0, harness)
    ((expert, _, _),) = attempts(harness, [asked.task])
    policy = ScriptedPolicy([call.completion_ids for call in expert.calls])

    async def again():
        sandboxes = open_sandboxes(SANDBOX)
        try:
            return await roll_out_once(make_world(policy, sandboxes), asked, "again")
        finally:
            await sandboxes.close()

    rollout = asyncio.run(again())
    assert (rollout.passed, rollout.error) == (True, None)
    assert [call.kind for call in rollout.calls] == [call.kind for call in expert.calls]


def test_commands_become_calls_under_the_names_that_are_shown():
    expert = Expert(spec("S0T1O0C0W0"), ["true"], RENDERER, files={"a.txt": "red\n", "b.txt": "red red\n"})
    called = {
        command: expert.call(command)
        for command in ("echo a b > c.txt", "sed -i 's/red/blue/' a.txt", "sed -i 's/red/blue/' b.txt", "ls > d.txt")
    }
    shown = {tool.name for tool in expert.spec.tools if not tool.distractor}
    assert {call.name for call in called.values()} == shown
    values = [list(json.loads(call.arguments).values()) for call in called.values()]
    assert values[:2] == [["create", "c.txt", "a b\n"], ["str_replace", "a.txt", "red", "blue"]]
    assert values[2:] == [["sed -i 's/red/blue/' b.txt"], ["ls > d.txt"]]


def test_a_summary_tells_what_was_done():
    expert = Expert(spec("S0T0O0C1W0"), ["mkdir a", "mv b a"], RENDERER)
    expert.answer(Request(messages=(Message("user", "go"),)))
    assert expert.answer(Request(messages=(), kind="compaction")).content == "did ; mkdir a"

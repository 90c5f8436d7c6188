"""A central agent that delegates: what its sub-agents see, may do and cost, and what the expert makes of it."""

import asyncio
from collections import Counter
from dataclasses import replace

import pytest
from scripted_policy import PADDOCK, ScriptedPolicy, assignment, opened_world
from test_whitebox import bash, last, play, say

from whippletree.algorithms.grpo import GRPO
from whippletree.config import HarnessesSection
from whippletree.demonstrate import expert_session
from whippletree.errors import BudgetSpent, ContextOverflow, HarnessError
from whippletree.harnesses import Harnesses
from whippletree.rollout.lifecycle import roll_out_once
from whippletree.rollout.whitebox import WhiteBox
from whippletree.trajectory.tree import CallTree
from whippletree.types import Group, Reward, StopReason


def delegate(task):
    return say("", ("delegate", {"task": task}), finish="tool_calls")


def test_a_sub_agent_works_in_the_same_sandbox_and_its_last_message_is_the_answer(tmp_path):
    items = [delegate("make a"), bash("touch a"), say("a is there"), say("done.")]
    outcome, requests = play("central", tmp_path, *items)
    assert outcome == (StopReason.FINISHED, 2)
    assert [request.kind for request in requests] == ["main", "subagent", "subagent", "main"]
    assert [tool.name for tool in requests[0].tools] == ["delegate"]
    assert [tool.name for tool in requests[1].tools] == ["execute_bash", "file_editor"]
    assert last(requests[1]) == ("user", "make a")
    assert requests[1].messages[0] == play("S0T0O0C0W0", tmp_path, say("done."))[1][0].messages[0]
    assert "delegate" in requests[0].messages[0].content
    assert "delegate" not in requests[1].messages[0].content
    assert last(requests[3]) == ("tool", "a is there")
    assert (tmp_path / "a").exists()


def test_sub_agents_are_those_of_the_named_harness_without_its_workflow(tmp_path):
    items = [say("plan"), delegate("x"), bash("true", tool="run_terminal"), say("did x"), say("done.")]
    outcome, requests = play("central:S0T1O2C0W1", tmp_path, *items)
    assert outcome == (StopReason.FINISHED, 3)
    assert "run_terminal" in [tool.name for tool in requests[2].tools]
    assert last(requests[4])[1].startswith('<result tool="delegate" exit_code="0"')


def test_a_sub_agent_cannot_delegate(tmp_path):
    _, requests = play("central", tmp_path, delegate("x"), delegate("y"), say("no"), say("done."))
    assert [request.kind for request in requests] == ["main", "subagent", "subagent", "main"]
    assert "there is no tool delegate" in last(requests[2])[1]


def test_one_that_does_not_finish_is_told_of(tmp_path):
    patch = {"subagents.limits.max_turns": 2}
    _, requests = play("central", tmp_path, delegate("x"), bash("true"), bash("true"), say("done."), patch=patch)
    assert last(requests[3]) == ("tool", "error: the helper stopped without an answer.")
    _, requests = play("central", tmp_path, delegate("x"), ContextOverflow("full"), say("done."))
    assert last(requests[2]) == ("tool", "error: the helper stopped without an answer.")


def test_the_budget_of_the_rollout_holds_for_all_together(tmp_path):
    assert play("central", tmp_path, delegate("x"), BudgetSpent("spent", "calls"))[0] == (StopReason.MAX_TURNS, 1)


@pytest.mark.parametrize(
    ("name", "patch", "words"),
    [
        ("S0T0O0C0W0", {"tools.delegate": {"description": "", "parameters": {"type": "object"}}}, "properties"),
        ("central", {"subagents": None}, "both the tool delegate and the section subagents"),
        ("central", {"subagents.tools": []}, "at least one tool"),
    ],
)
def test_sub_agents_and_the_tool_that_calls_them_come_together(tmp_path, name, patch, words):
    with pytest.raises(HarnessError, match=words):
        play(name, tmp_path, patch=patch)


def test_a_spec_in_which_sub_agents_delegate_is_refused(tmp_path):
    spec = Harnesses(HarnessesSection()).spec("central")
    nested = [tool.model_dump(mode="json") for tool in (*spec.tools, *spec.subagents.tools)]
    with pytest.raises(HarnessError, match="cannot delegate in its turn"):
        play("central", tmp_path, patch={"subagents.tools": nested})


def test_central_agents_have_names_in_sets():
    harnesses = Harnesses(HarnessesSection())
    assert harnesses.names("central", 0) == ("central",)
    assert harnesses.names(["central:S0T1O0C0W0", "S0T0O0C0W0"], 0) == ("central:S0T1O0C0W0", "S0T0O0C0W0")
    assert harnesses.design(["central", "S0T0O0C0W0"], 0).names == ("S0T0O0C0W0",)
    assert harnesses.distance("central", "S0T0O0C0W0") == 6
    assert (harnesses.levels("central"), harnesses.spec("central").id) == ({}, "central:S0T0O0C0W0")
    with pytest.raises(HarnessError):
        harnesses.names("central:S9T0O0C0W0", 0)
    drawn = Harnesses(HarnessesSection(draw_names=True)).spec("central:S0T2O0C0W0")
    assert drawn.draw == "task"


# ---- played by the expert ---------------------------------------------------------------------------------------

NAME = "central:S0T1O1C1W2"


@pytest.fixture(scope="module")
def rollouts():
    """By the number of the task."""
    harnesses = Harnesses(HarnessesSection())
    asked = [assignment("move_to_folder", number, NAME) for number in range(2)]
    changes = {"session": expert_session, "harness": lambda name: WhiteBox(harnesses.spec(name))}

    async def play():
        async with opened_world(ScriptedPolicy([]), **changes) as world:
            return [await roll_out_once(world, each, f"r{number}") for number, each in enumerate(asked)]

    return asyncio.run(play())


def test_the_expert_solves_tasks_through_sub_agents(rollouts):
    for number, rollout in enumerate(rollouts):
        assert (rollout.passed, rollout.error) == (True, None)
        commands = PADDOCK.task_by_id(f"paddock/train/move_to_folder/{number}").gold.split("\n")
        kinds = Counter(call.kind for call in rollout.calls)
        assert kinds["subagent"] == 2 * len(commands)  # one runs the command, one reports
        assert rollout.num_turns == kinds["main"] > len(commands)


def test_sub_agents_are_roots_of_their_own_in_the_call_tree(rollouts):
    tree = CallTree.build(rollouts[0].calls)
    kinds = [tree.nodes[root].call.kind for root in tree.roots]
    assert kinds == ["main"] + ["subagent"] * (len(kinds) - 1)
    for node in tree.nodes:
        assert node.parent is None or tree.nodes[node.parent].call.kind == node.call.kind


@pytest.mark.parametrize("kinds", [("main",), ("main", "subagent")])
def test_the_central_agent_is_trained_alone_or_with_its_sub_agents(rollouts, kinds):
    won, lost = rollouts[0], replace(rollouts[0], id="lost", reward=Reward(0.0))
    samples = GRPO(kinds=kinds).credit([Group(assignment("move_to_folder", 0, NAME, 2), (won, lost))]).samples
    trained = Counter()
    for sample in samples:
        for index in sample.columns["call"][sample.weights > 0]:
            trained[won.calls[int(index)].kind] += 1
    expected = Counter()
    for call in won.calls:
        expected[call.kind] += 2 * len(call.completion_ids) * (call.kind in kinds)
    assert trained == +expected
    assert sum(float(sample.weights.sum()) for sample in samples) == pytest.approx(1.0)

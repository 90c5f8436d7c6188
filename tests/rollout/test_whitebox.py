import asyncio
import json
import random
import subprocess

import numpy as np
import pytest

from whippletree.config import HarnessesSection
from whippletree.errors import BudgetSpent, ContextOverflow, SandboxError
from whippletree.harness.levels import compose, paper_base, paper_space, patched
from whippletree.harnesses import Harnesses
from whippletree.rollout.whitebox import run
from whippletree.types import Completion, ExecResult, Message, StopReason, Task, ToolCall

TASK = Task("paddock/train/copy/1", "paddock", "train", "copy", 1, "copy oak.txt to elm.txt")


class ShellSandbox:
    """Each command in a fresh `sh`, straight on the host."""

    def __init__(self, workspace):
        self.workspace = workspace

    async def run(self, command):
        done = subprocess.run(["sh", "-c", command], cwd=self.workspace, capture_output=True, text=True, check=False)
        return ExecResult(done.stdout + done.stderr, done.returncode)

    async def close(self):
        pass


class Script:
    """A session that plays completions (or raises errors) in order, and keeps the requests."""

    def __init__(self, *items):
        self.items = list(items)
        self.requests = []
        self.turns = 0

    async def complete(self, request):
        self.requests.append(request)
        item = self.items.pop(0)
        if isinstance(item, Exception):
            raise item
        self.turns += request.kind == "main"
        return item


def say(text="", *calls, finish="stop", parse_error=None):
    tool_calls = tuple(
        ToolCall(f"c{i}", name, arguments if isinstance(arguments, str) else json.dumps(arguments))
        for i, (name, arguments) in enumerate(calls)
    )
    ids, logprobs = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.float32)
    message = Message("assistant", text, tool_calls)
    return Completion(message, finish, ids, ids, logprobs, policy_version=0, parse_error=parse_error)


def bash(command, text="", tool="execute_bash"):
    return say(text, (tool, {"command": command}), finish="tool_calls")


def play(name, workspace, *items, patch=None):
    spec = patched(Harnesses(HarnessesSection()).spec(name), patch or {}, "test")
    script = Script(*items)
    outcome = asyncio.run(run(spec, TASK, ShellSandbox(workspace), script, random.Random(0)))
    return (outcome.stop_reason, script.turns), script.requests


def last(request):
    return request.messages[-1].role, request.messages[-1].content


def test_runs_tools_and_finishes_with_text(tmp_path):
    (tmp_path / "oak.txt").write_text("red\n")
    outcome, requests = play("S0T0O0C0W0", tmp_path, bash("cp oak.txt elm.txt; cat elm.txt; false"), say("done."))
    assert outcome == (StopReason.FINISHED, 2)
    assert (tmp_path / "elm.txt").read_text() == "red\n"
    assert [message.role for message in requests[1].messages] == ["system", "user", "assistant", "tool"]
    assert last(requests[1]) == ("tool", "red")
    assert requests[1].messages[-1].tool_call_id == "c0"
    assert requests[1].messages[:2] == requests[0].messages
    assert [tool.name for tool in requests[0].tools] == ["execute_bash", "file_editor"]
    assert {(request.kind, request.max_tokens) for request in requests} == {("main", None)}


def test_several_calls_are_answered_in_order(tmp_path):
    create = ("file_editor", {"command": "create", "path": "a", "file_text": "x"})
    both = say("", create, ("execute_bash", {"command": "cat a"}))
    outcome, requests = play("S0T0O0C0W0", tmp_path, both, say())
    assert outcome == (StopReason.FINISHED, 2)
    answers = [(message.tool_call_id, message.content) for message in requests[1].messages[-2:]]
    assert answers == [("c0", "created a"), ("c1", "x")]


def test_aliases_do_the_real_work_and_distractors_do_nothing(tmp_path):
    write = say("", ("document_editor", {"action": "create", "document": "a", "content": "x"}))
    wrong = say("", ("document_editor", {"action": "create", "document": "b"}))
    image = say("", ("resize_image", {"image": "a"}))
    outcome, requests = play("S0T1O0C0W0", tmp_path, write, wrong, image, say("done."))
    assert outcome == (StopReason.FINISHED, 4)
    assert last(requests[1]) == ("tool", "created a")
    assert last(requests[2]) == ("tool", "error: content is needed for create")
    assert last(requests[3]) == ("tool", "error: this tool is not available here.")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_distractors_are_no_errors_of_form(tmp_path):
    calls = [say("", ("kdx", {"entry": "x"}))] * 5
    outcome, _ = play("S0T2O0C0W0", tmp_path, *calls, say("done."))
    assert outcome == (StopReason.FINISHED, 6)
    assert list(tmp_path.iterdir()) == []


def test_observations_carry_metadata_of_one_host_and_real_exit_codes(tmp_path):
    _, requests = play("S0T2O2C0W0", tmp_path, bash("exit 3", tool="qzv"), say("", ("sh", {})), say())
    first, second = (requests[i].messages[-1].content for i in (1, 2))
    assert first.startswith('<result tool="qzv" exit_code="3" pid="')
    assert second.startswith('<result tool="sh" exit_code="1" pid="')
    assert "there is no tool sh" in second
    assert first.split('node="')[1][:6] == second.split('node="')[1][:6]


def test_same_seed_same_messages(tmp_path):
    items = [bash("echo a"), bash("echo b"), say("done.")]
    assert play("S0T0O2C0W0", tmp_path, *items)[1] == play("S0T0O2C0W0", tmp_path, *items)[1]


# ---- what is not well formed ------------------------------------------------------------------------------------


def test_a_parse_error_is_told_and_the_rollout_goes_on(tmp_path):
    outcome, requests = play("S0T0O0C0W0", tmp_path, say("<call", parse_error="the call is not closed"), say("done."))
    assert outcome == (StopReason.FINISHED, 2)
    assert requests[1].messages[-2].content == "<call"
    assert last(requests[1]) == ("user", "error: the call is not closed")


def test_a_text_that_was_cut_off_is_no_answer(tmp_path):
    outcome, requests = play("S0T0O0C0W0", tmp_path, say("I will now", finish="length"), say("done."))
    assert outcome == (StopReason.FINISHED, 2)
    assert last(requests[1])[1].startswith("error: the message was cut off")


def test_calls_in_a_malformed_message_are_answered_but_not_run(tmp_path):
    bad = say("", ("execute_bash", {"command": "touch a"}), parse_error="two calls in one")
    _, requests = play("S0T0O0C0W0", tmp_path, bad, say("done."))
    assert [message.role for message in requests[1].messages[-2:]] == ["tool", "user"]
    assert list(tmp_path.iterdir()) == []


def test_consecutive_errors_end_the_rollout_where_the_spec_says_so(tmp_path):
    bad = [say("x", parse_error="bad"), say("", ("sh", {})), say("", ("execute_bash", "{"))]
    assert play("S0T0O0C0W0", tmp_path, *bad)[0] == (StopReason.MAX_TURNS, 3)
    broken_up = [*bad[:2], bash("true"), *bad[:2], say("done.")]
    assert play("S0T0O0C0W0", tmp_path, *broken_up)[0] == (StopReason.FINISHED, 6)
    patient = {"limits": {"max_errors": None}}
    assert play("S0T0O0C0W0", tmp_path, *bad, *bad, say("done."), patch=patient)[0][0] == StopReason.FINISHED


# ---- limits -----------------------------------------------------------------------------------------------------


def test_turns_are_limited(tmp_path):
    outcome, _ = play("S0T0O0C0W0", tmp_path, *[bash("true")] * 5, patch={"limits.max_turns": 4})
    assert outcome == (StopReason.MAX_TURNS, 4)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (BudgetSpent("spent", "tokens"), StopReason.MAX_TOKENS),
        (BudgetSpent("spent", "calls"), StopReason.MAX_TURNS),
        (ContextOverflow("full"), StopReason.CONTEXT_OVERFLOW),
    ],
)
def test_limits_of_the_session_end_the_rollout(tmp_path, error, reason):
    assert play("S0T0O0C0W0", tmp_path, bash("true"), error)[0] == (reason, 1)


def test_a_broken_sandbox_is_for_the_caller(tmp_path):
    with pytest.raises(SandboxError):
        play("S0T0O0C0W0", tmp_path, SandboxError("gone"))


# ---- context ----------------------------------------------------------------------------------------------------


def test_compaction_keeps_five_turns_and_shows_the_summary(tmp_path):
    steps = [bash(f"echo {i}") for i in range(8)]
    items = [*steps, say("did 0 to 2"), *steps[:3], say(""), say("done.")]
    outcome, requests = play("S0T0O0C1W0", tmp_path, *items)
    assert outcome == (StopReason.FINISHED, 12)
    assert [i for i, request in enumerate(requests) if request.kind == "compaction"] == [8, 12]
    compaction, after = requests[8], requests[9]
    assert compaction.tools == ()
    assert compaction.max_tokens is None
    assert [message.role for message in compaction.messages] == ["system", "user"]
    assert "tool: 2" in compaction.messages[1].content
    assert "tool: 3" not in compaction.messages[1].content
    assert after.messages[1].content == f"{TASK.instruction}\nsummary of earlier turns: did 0 to 2"
    assert [message.content for message in after.messages if message.role == "tool"] == ["3", "4", "5", "6", "7"]
    assert "summary so far: did 0 to 2" in requests[12].messages[1].content
    assert requests[13].messages[1].content.endswith("summary of earlier turns: none")


def test_external_summary_is_a_file_that_the_agent_can_read(tmp_path):
    steps = [bash(f"echo {i}") for i in range(5)]
    items = [*steps, say("did 0 and 1"), bash("cat .notes/summary.txt"), say("done.")]
    outcome, requests = play("S0T0O0C2W0", tmp_path, *items, patch={"context.max_tokens": 16})
    assert outcome == (StopReason.FINISHED, 7)
    assert requests[5].kind == "compaction"
    assert requests[5].max_tokens == 16
    assert ".notes/summary.txt" in requests[6].messages[1].content
    assert "did 0 and 1" not in requests[6].messages[1].content
    assert [message.content for message in requests[6].messages if message.role == "tool"] == ["2", "3", "4"]
    assert last(requests[7]) == ("tool", "did 0 and 1")


def test_a_summary_that_cannot_be_written_does_not_leave_the_workspace(tmp_path):
    workspace, outside = tmp_path / "w", tmp_path / "outside"
    workspace.mkdir()
    outside.mkdir()
    items = [bash("ln -s ../outside .notes"), *[bash("true")] * 4, say("a summary"), say("done.")]
    outcome, requests = play("S0T0O0C2W0", workspace, *items)
    assert outcome[0] == StopReason.FINISHED
    assert "error: .notes/summary.txt" in requests[6].messages[1].content
    assert list(outside.iterdir()) == []


# ---- workflow ---------------------------------------------------------------------------------------------------


def test_a_call_before_the_plan_is_refused(tmp_path):
    items = [bash("touch a"), say("first look, then act."), bash("touch b"), say("done.")]
    outcome, requests = play("S0T0O0C0W1", tmp_path, *items)
    assert outcome == (StopReason.FINISHED, 4)
    assert last(requests[1]) == ("tool", "refused: write a short plan first.")
    assert last(requests[2]) == ("user", "plan noted. continue.")
    assert [path.name for path in tmp_path.iterdir()] == ["b"]


def test_progress_is_asked_for_after_three_steps(tmp_path):
    items = [
        *(bash("echo a", "the plan"), bash("echo b"), bash("echo c")),
        *(bash("touch x"), say("two of three done."), bash("touch y"), say("done.")),
    ]
    outcome, requests = play("S0T0O0C0W2", tmp_path, *items)
    assert outcome == (StopReason.FINISHED, 7)
    assert [message.role for message in requests[3].messages[-2:]] == ["tool", "user"]
    assert last(requests[3]) == ("user", "check your progress: say what is done and what is left.")
    assert last(requests[4]) == ("tool", "refused: first say what is done and what is left.")
    assert last(requests[5]) == ("user", "progress noted. continue.")
    assert [path.name for path in tmp_path.iterdir()] == ["y"]


def test_names_drawn_per_task_are_shown_and_understood(tmp_path):
    class ReadsTheList(Script):
        async def complete(self, request):
            self.requests.append(request)
            name = next(tool.name for tool in request.tools if "carries it out" in tool.description)
            return bash("touch a", tool=name) if len(self.requests) == 1 else say("done.")

    space = paper_space()
    spec = patched(compose(space, space.parse("S0T2O0C0W0"), paper_base()), {"draw": "task"}, "test")
    script = ReadsTheList()
    asyncio.run(run(spec, TASK, ShellSandbox(tmp_path), script, random.Random(0)))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

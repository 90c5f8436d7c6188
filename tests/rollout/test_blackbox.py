"""Small scripts in the place of real harnesses, run by the system's Python in real sandboxes."""

import asyncio
import random
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest
from scripted_policy import ScriptedPolicy, assignment, make_world, say

from whippletree.errors import PolicyError
from whippletree.gateway.kinds import Rules
from whippletree.gateway.server import Gateway
from whippletree.rollout.adapters.base import Adapter, Pip, ShellTool, Variant
from whippletree.rollout.blackbox import BlackBox, Terms
from whippletree.rollout.lifecycle import roll_out_once
from whippletree.sandbox import open_sandboxes
from whippletree.types import Message, StopReason, ToolCall

SANDBOX = "bubblewrap" if shutil.which("bwrap") else "process"
PYTHON = "/usr/bin/python3"
pytestmark = pytest.mark.skipif(not Path(PYTHON).exists(), reason="the scripts need a Python that sandboxes see")

TALK = """
import json, os, subprocess, sys, time, urllib.request
url, key, task = sys.argv[1:4]
messages = [{"role": "system", "content": "act"}, {"role": "user", "content": task}]
tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
def ask():
    body = json.dumps({"model": "m", "messages": messages, "tools": tools}).encode()
    request = urllib.request.Request(url + "/v1/chat/completions", body, {"Content-Type": "application/json"})
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    messages.append(message)
    return message
def act():
    while calls := ask().get("tool_calls"):
        for call in calls:
            command = json.loads(call["function"]["arguments"])["command"]
            done = subprocess.run(command, shell=True, capture_output=True, text=True)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": done.stdout})
"""


def bash(command):
    return Message("assistant", "", (ToolCall("", "bash", f'{{"command":"{command}"}}'),))


def program(tmp_path, script):
    (tmp_path / "main.py").write_text(TALK + textwrap.dedent(script))
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:  # pytest's directories are private
        if parent.owner() == Path.home().owner() and parent != Path("/") and not parent.stat().st_mode & 0o1:
            parent.chmod(parent.stat().st_mode | 0o111)
    return Adapter(
        name="test-program",
        package=Pip(("test-program==1",)),
        program=(PYTHON, "$prefix/main.py"),
        command=("$base_url", "$key", "$instruction"),
        shell=ShellTool("bash", {"command": "$command"}),
    )


def play(tmp_path, script, policy, *, idle_timeout_s=60.0, rules=None, task=None, **limits):
    adapter = replace(program(tmp_path, script), rules=rules or Rules())

    async def once():
        gateway = Gateway()
        terms = Terms(timeout_s=60.0, idle_timeout_s=idle_timeout_s, context=4096, max_tokens=64)
        runner = BlackBox(adapter, Variant(), tmp_path, gateway, terms)
        sandboxes = open_sandboxes(SANDBOX)
        try:
            world = replace(make_world(policy, sandboxes, **limits), harness=lambda _: runner)
            asked = replace(assignment(), task=task) if task else assignment()
            return await roll_out_once(world, asked, "r")
        finally:
            await sandboxes.close()
            await gateway.stop()

    return asyncio.run(once())


GOLD = [bash(command) for command in assignment().task.gold.split("\n")]


def test_a_program_solves_a_task(tmp_path):
    rollout = play(tmp_path, "act()", ScriptedPolicy([*GOLD, say("done")]))
    assert (rollout.passed, rollout.error, rollout.stop_reason) == (True, None, StopReason.HARNESS_EXIT)
    assert rollout.counts == {"root:start": 1, "continuation": len(GOLD)}
    assert [call.kind for call in rollout.calls] == ["main"] * (len(GOLD) + 1)
    assert rollout.calls[0].exchange.messages[1].content == assignment().task.instruction


def test_an_exit_code_says_nothing(tmp_path):
    rollout = play(tmp_path, "act()\nsys.exit(3)", ScriptedPolicy([*GOLD, say("done")]))
    assert (rollout.passed, rollout.error) == (True, None)


def test_a_program_that_crashes_at_its_start_is_an_error_with_its_last_words(tmp_path):
    rollout = play(tmp_path, "raise SystemExit('no licence')", ScriptedPolicy([]))
    assert (rollout.reward, rollout.stop_reason) == (None, StopReason.ERROR)
    assert "made no model call" in rollout.error
    assert "no licence" in rollout.error
    assert rollout.calls == ()


def test_a_program_that_is_not_there_is_an_error(tmp_path):
    adapter_missing = "import os; os.execv('/opt/harness/nowhere', ['x'])"
    rollout = play(tmp_path, adapter_missing, ScriptedPolicy([]))
    assert "No such file" in rollout.error


def test_an_endless_program_is_ended_by_its_budget(tmp_path):
    policy = ScriptedPolicy([say("on")] * 3)
    rollout = play(tmp_path, "for _ in range(8): ask()", policy, max_calls=3)
    assert (rollout.stop_reason, rollout.error, len(rollout.calls)) == (StopReason.MAX_TURNS, None, 3)
    assert rollout.counts["wire:closing"] == 5


def test_a_silent_program_is_stopped_and_graded(tmp_path):
    policy = ScriptedPolicy([*GOLD, say("done")])
    rollout = play(tmp_path, "act()\ntime.sleep(600)", policy, idle_timeout_s=0.3)
    assert (rollout.stop_reason, rollout.passed) == (StopReason.IDLE, True)


def test_a_program_that_takes_too_long_is_graded(tmp_path):
    policy = ScriptedPolicy([*GOLD, say("done")])
    rollout = play(tmp_path, "act()\ntime.sleep(600)", policy, timeout_s=2.0)
    assert (rollout.stop_reason, rollout.passed) == (StopReason.TIMEOUT, True)
    assert [call.kind for call in rollout.calls] == ["main"] * (len(GOLD) + 1)


def test_a_policy_that_breaks_makes_a_rollout_without_a_reward(tmp_path):
    rollout = play(tmp_path, "act()", ScriptedPolicy([PolicyError("out of memory")]))
    assert (rollout.reward, rollout.error) == (None, "PolicyError: out of memory")


def test_a_bug_is_no_rollout(tmp_path):
    with pytest.raises(ZeroDivisionError):
        play(tmp_path, "act()", ScriptedPolicy([ZeroDivisionError()]))


def test_side_calls_and_retries_are_not_trained(tmp_path):
    script = """
    main = list(messages)
    messages[:], tools = [{"role": "system", "content": "you write titles"}, messages[1]], []
    ask()
    tools = [{"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}]
    messages[:] = main
    ask()
    messages[:] = main
    act()
    """
    policy = ScriptedPolicy([say("a title"), say("given up"), *GOLD, say("done")])
    rollout = play(tmp_path, script, policy)
    assert [call.kind for call in rollout.calls] == ["auxiliary"] + ["main"] * (len(GOLD) + 2)
    assert rollout.counts["fork:retry"] == 1


def test_nothing_but_side_calls_is_an_error_with_a_reason(tmp_path):
    rollout = play(tmp_path, "ask()", ScriptedPolicy([say("x")]), rules=Rules(auxiliary_system="^act$"))
    assert rollout.reward is None
    assert rollout.error.startswith("no_trainable_token")


def test_daemons_die_with_the_sandbox(tmp_path):
    mark = f"whippletree-daemon-{random.randrange(1 << 40)}"
    script = f"""
    act()
    subprocess.Popen(["setsid", "bash", "-c", "exec -a {mark} sleep 600"])
    """
    rollout = play(tmp_path, script, ScriptedPolicy([*GOLD, say("done")]))
    assert rollout.passed
    if SANDBOX == "bubblewrap":
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not any(mark.encode() in line for line in lines)

"""Tasks whose graders are code, in both kinds of harness: the policy acts, and an own sandbox judges what is left."""

import asyncio
import json
import os
import shutil
from dataclasses import replace

import pytest
from scripted_policy import ScriptedPolicy, Watched, bash, make_world, say
from test_blackbox import play as play_program

from whippletree.rollout.lifecycle import roll_out_once
from whippletree.sandbox import open_sandboxes
from whippletree.sandbox.workspace import place_for_roots
from whippletree.tasks import clawgym
from whippletree.tasks.base import Opening
from whippletree.types import Assignment, Message, StopReason, ToolCall

pytestmark = pytest.mark.usefixtures("grades_by_code")
CHECK = """
import json, sys
from pathlib import Path
said = Path(sys.argv[1], "out.txt")
print(json.dumps({"there": said.exists(), "right": said.exists() and said.read_text() == "tool\\n"}))
"""
SOLVE = "tool > /root/.openclaw/workspace/out.txt"


@pytest.fixture
def tools():
    """Tools that the sandboxes' user can reach: one program."""
    path = place_for_roots() / f"suite-tools-{os.getpid()}"
    (path / "bin").mkdir(parents=True)
    (path / "bin/tool").write_text("#!/bin/sh\necho tool\n")
    for made in (path, path / "bin", path / "bin/tool"):
        made.chmod(0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def source(tmp_path, tools):
    folder = tmp_path / "suite/train/task_0"
    (folder / "reward").mkdir(parents=True)
    (folder / "reward/check.py").write_text(CHECK)
    (folder / "input_files").mkdir()
    (folder / "input_files/data.bin").write_bytes(b"\xff")
    (folder / "data_entry.json").write_text(json.dumps({"user_query": "run the tool"}))
    return clawgym.ClawGym(Opening(tmp_path / "suite", tools))


def play(source, script, **changes):
    (task,) = source.tasks("train")
    task = replace(task, **changes)

    async def once():
        watched = Watched(open_sandboxes("bubblewrap"))
        try:
            world = replace(make_world(ScriptedPolicy(script), watched), tasks=source)
            return await roll_out_once(world, Assignment(0, task, "S0T0O0C0W0", 1), "r")
        finally:
            assert watched.left == []
            await watched.close()

    return asyncio.run(once())


def test_a_white_box_harness(source):
    rollout = play(source, [bash(SOLVE), say("done")])
    assert (rollout.error, rollout.passed, dict(rollout.reward.parts)) == (None, True, {"there": 1.0, "right": 1.0})
    assert rollout.timings_s["grade"] > 0
    half = play(source, [bash("echo other > out.txt"), say("done")])
    assert (half.error, half.passed, half.reward.value) == (None, False, 0.5)


def test_a_grader_that_breaks_is_an_infrastructure_error(source, tmp_path):
    (tmp_path / "suite/train/task_0/reward/check.py").write_text("raise RuntimeError('no verdict')")
    rollout = play(source, [bash(SOLVE), say("done")])
    assert (rollout.reward, rollout.stop_reason) == (None, StopReason.ERROR)
    assert rollout.error.startswith("GradingError: clawgym/train/task_0: its grader ended with exit code 70; it said: ")
    assert "no verdict" in rollout.error


def test_a_task_may_end_a_rollout_earlier_than_the_run(source):
    rollout = play(source, [bash(SOLVE), bash("sleep 60")], timeout_s=2.0)
    assert (rollout.stop_reason, rollout.passed) == (StopReason.TIMEOUT, True)


def test_an_agent_program(source, tmp_path):
    (task,) = source.tasks("train")
    call = Message("assistant", "", (ToolCall("", "bash", json.dumps({"command": SOLVE})),))
    policy = ScriptedPolicy([call, say("done")])
    (tmp_path / "program").mkdir()
    rollout = play_program(tmp_path / "program", "act()", policy, tasks=source, task=task)
    assert (rollout.error, rollout.passed) == (None, True)

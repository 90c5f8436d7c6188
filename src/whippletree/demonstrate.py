"""Rollouts of a scripted expert in any harness: a first set to fine-tune on where a policy finds no reward yet."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from whippletree.errors import TaskError
from whippletree.gateway.capture import CaptureSession
from whippletree.rollout.blackbox import BlackBox
from whippletree.rollout.dictated import DictatedSession
from whippletree.rollout.engine import roll_out
from whippletree.rollout.expert import Expert
from whippletree.rollout.lifecycle import World
from whippletree.rollout.timing import Stopwatch
from whippletree.rollout.whitebox import WhiteBox
from whippletree.run import Run
from whippletree.types import Assignment, Rollout, Task

CHUNK = 16
"""Rollouts that are stored together."""


async def demonstrate(
    run: Run, per_harness: int, progress: Callable[[Rollout], None], careless: float = 0.0
) -> tuple[int, int]:
    """The expert's rollouts on the first tasks of the training split in every training harness.

    On a share `careless` of those tasks that know a weak habit, drawn by the run's seed, it acts by the habit instead.
    Returns how many passed, and how many were made now. Those that the run holds already are not made again. Raises
    TaskError where a task has no solution.
    """
    names = run.harnesses.names(run.config.harnesses.train, run.config.seed)
    tasks = run.tasks.tasks(run.config.tasks.split)[:per_harness]
    if unsolved := next((task.id for task in tasks if not task.gold), None):
        raise TaskError(f"no solution of {unsolved} is known, so that nobody can demonstrate it")
    known = {rollout.id for rollout in run.store.rollouts()}
    todo = [Assignment(-1, task, name, 1, "search") for name in names for task in tasks]
    todo = [a for a in todo if f"search/-1/{a.harness}/{a.task.id}/0" not in known]
    world = replace(run.world, session=partial(expert_session, careless=careless))
    passed = 0
    for start in range(0, len(todo), CHUNK):
        groups = await roll_out(
            world, todo[start : start + CHUNK], concurrency=run.config.rollout.concurrency, progress=progress
        )
        rollouts = [rollout for group in groups for rollout in group.rollouts]
        passed += sum(rollout.passed for rollout in rollouts)
        run.store.commit_scores("demonstration", "expert", -1, [], rollouts)
    return passed, len(todo)


def expert_session(
    world: World, assignment: Assignment, rollout_id: str, stopwatch: Stopwatch, *, careless: float = 0.0
) -> CaptureSession:
    """The boundary with an expert behind it that knows the task's gold commands, and the habit to leave some out."""
    runner, task = world.harness(assignment.harness), assignment.task
    by_habit = task.habit and random.Random(f"careless {world.seed} {task.id}").random() < careless
    commands = task.habit.split("\n") if by_habit else gold(task)
    renderer = world.policy.renderer
    match runner:
        case BlackBox():
            return DictatedSession(rollout_id, renderer, runner.adapter.shell, commands)
        case WhiteBox():
            return Expert(runner.spec, commands, renderer, files=assignment.task.files, rollout_id=rollout_id)
        case _:
            raise TypeError(f"no expert knows {runner}")


def gold(task: Task) -> list[str]:
    return task.gold.split("\n")

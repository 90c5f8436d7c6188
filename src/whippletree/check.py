"""Checks of tasks in real sandboxes: gold passes, and what is wrong does not. Kinds of paddock, and tasks of suites."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from whippletree.errors import GradingError, TaskError
from whippletree.sandbox import open_sandboxes
from whippletree.sandbox.base import BARE, Sandboxes, Scene
from whippletree.tasks import quarantine
from whippletree.tasks.base import Ending
from whippletree.tasks.paddock.kinds import KINDS
from whippletree.tasks.paddock.selfcheck import KindReport, check_kind
from whippletree.tasks.quarantine import TaskCheck
from whippletree.tasks.suites import Found
from whippletree.types import Reward, Sandbox, Task

LOW = 0.25
"""What doing nothing may be worth at most."""


async def check_kinds(names: Sequence[str], seeds: int, sandbox: str) -> list[KindReport]:
    """One report per kind, in the table's order; raises TaskError for an unknown name."""
    if unknown := set(names) - set(KINDS):
        raise TaskError(f"paddock has no kind '{unknown.pop()}'; `whippletree tasks list` lists them")
    sandboxes = open_sandboxes(sandbox)
    opened: list[Sandbox] = []

    async def run_commands(files: Mapping[str, str], commands: Sequence[str]) -> Path:
        for old in opened:
            await old.close()
        opened[:] = [await _played(sandboxes, files, BARE, commands)]
        return opened[0].workspace

    try:
        kinds = [kind for kind in KINDS.values() if not names or kind.name in names]
        return [await check_kind(kind, range(seeds), run_commands) for kind in kinds]
    finally:
        await sandboxes.close()


async def check_tasks(
    found: Found, tasks: Sequence[Task], sandbox: str, jobs: int, progress: Callable[[TaskCheck], None]
) -> None:
    """Check tasks of a suite and write down what came of each; `progress` hears of it."""
    sandboxes = open_sandboxes(sandbox)
    left = iter(tasks)

    async def work() -> None:
        for task in left:
            check = await check_task(found, task, sandboxes)
            quarantine.append(found.checks, check)
            progress(check)

    try:
        async with asyncio.TaskGroup() as workers:
            for _ in range(jobs):
                workers.create_task(work())
    finally:
        await sandboxes.close()


async def check_task(found: Found, task: Task, sandboxes: Sandboxes) -> TaskCheck:
    """Grade the untouched workspace twice and, where there is a solution, what it leaves; all without network."""
    untouched = gold = None
    grading_s, problem = 0.0, ""
    try:
        started = time.perf_counter()
        first, second = await _graded(found, task, sandboxes, (), times=2)
        grading_s = (time.perf_counter() - started) / 2
        untouched = first.value
        if first != second:
            problem = f"two gradings of the untouched workspace differ: {first.value:g} and {second.value:g}"
        elif untouched > LOW:
            problem = f"doing nothing earns {untouched:g}"
        if task.gold:
            (reward,) = await _graded(found, task, sandboxes, task.gold.split("\n"), times=1)
            gold = reward.value
            if not reward.passed:
                problem = problem or f"the solution earns {gold:g}"
    except GradingError as error:
        problem = problem or str(error).removeprefix(f"{task.id}: ")
    return TaskCheck(task.id, problem, untouched, gold, grading_s, found.files)


async def _graded(
    found: Found, task: Task, sandboxes: Sandboxes, commands: Sequence[str], *, times: int
) -> list[Reward]:
    """The grades of what the commands leave."""
    scene = Scene(task.tree, task.workspace_at, task.tools)
    sandbox = await _played(sandboxes, task.files, scene, commands)
    try:
        return [await found.source.grade(task, Ending(sandbox.workspace, (), sandboxes)) for _ in range(times)]
    finally:
        await sandbox.close()


async def _played(sandboxes: Sandboxes, files: Mapping[str, str], scene: Scene, commands: Sequence[str]) -> Sandbox:
    """A sandbox in which the commands were run, and no process is left."""
    sandbox = await sandboxes.open(files, None, scene)
    for command in commands:
        await sandbox.run(command)
    await sandbox.stop()
    return sandbox

"""Many rollouts at once, in groups: bounded concurrency, and the same order of work whatever the timing."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Sequence

from whippletree.rollout.lifecycle import World, roll_out_once
from whippletree.types import Assignment, Group, Rollout

Progress = Callable[[Rollout], None]


async def roll_out(
    world: World, assignments: Sequence[Assignment], *, concurrency: int, progress: Progress | None = None
) -> list[Group]:
    """Roll out every assignment; the groups come in the order of the assignments.

    An exception that is no rollout's failure ends all of them and is raised, in an ExceptionGroup.
    """
    ids = rollout_ids(assignments)
    jobs = deque((index, place) for index, names in enumerate(ids) for place in range(len(names)))
    done: dict[tuple[int, int], Rollout] = {}

    async def work() -> None:
        with world.policy.worker():
            while jobs:
                index, place = jobs.popleft()
                rollout = await roll_out_once(world, assignments[index], ids[index][place])
                done[index, place] = rollout
                if progress is not None:
                    progress(rollout)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(jobs))):
            workers.create_task(work())
    return [
        Group(assignment, tuple(done[index, place] for place in range(assignment.num_rollouts)))
        for index, assignment in enumerate(assignments)
    ]


def rollout_ids(assignments: Sequence[Assignment]) -> list[list[str]]:
    """Per assignment the ids of its rollouts, unique in a run; a cell that comes twice in a step is counted on."""
    found: list[list[str]] = []
    attempts: Counter[str] = Counter()
    for assignment in assignments:
        cell = f"{assignment.purpose}/{assignment.step}/{assignment.harness}/{assignment.task.id}"
        first = attempts[cell]
        attempts[cell] += assignment.num_rollouts
        found.append([f"{cell}/{attempt}" for attempt in range(first, attempts[cell])])
    return found

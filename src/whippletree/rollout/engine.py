"""Many rollouts at once, in groups: bounded concurrency, and the same order of work whatever the timing."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from whippletree.rollout.lifecycle import World, roll_out_once
from whippletree.types import Assignment, Group, Rollout

Progress = Callable[[Rollout], None]


async def roll_out(
    world: World, assignments: Sequence[Assignment], *, concurrency: int, progress: Progress | None = None
) -> list[Group]:
    """Roll out every assignment; the groups come in the order of the assignments."""
    jobs = deque(
        (index, attempt) for index, assignment in enumerate(assignments) for attempt in range(assignment.num_rollouts)
    )
    done: dict[tuple[int, int], Rollout] = {}

    async def work() -> None:
        with world.policy.worker():
            while jobs:
                index, attempt = jobs.popleft()
                assignment = assignments[index]
                rollout = await roll_out_once(world, assignment, rollout_id(assignment, attempt))
                done[index, attempt] = rollout
                if progress is not None:
                    progress(rollout)

    async with asyncio.TaskGroup() as workers:
        for _ in range(min(concurrency, len(jobs))):
            workers.create_task(work())
    return [
        Group(assignment, tuple(done[index, attempt] for attempt in range(assignment.num_rollouts)))
        for index, assignment in enumerate(assignments)
    ]


def rollout_id(assignment: Assignment, attempt: int) -> str:
    """Unique in a run as long as a step does not hold the same task under the same harness twice."""
    return f"{assignment.purpose}/{assignment.step}/{assignment.harness}/{assignment.task.id}/{attempt}"

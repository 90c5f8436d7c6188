"""Evaluate one policy: harnesses x tasks, each set of harnesses a column, every cell kept as soon as it is known."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from whippletree.rollout.engine import roll_out
from whippletree.run import Run, require_graded
from whippletree.types import Assignment, Group, Score

CHUNKS_OF_CONCURRENCY = 4
"""Cells are kept after this many rounds of rollouts."""


async def evaluate(run: Run, *, label: str, step: int) -> dict[str, list[Score]]:
    """Scores per set of the configuration of the policy after `step`, which is -1 before the first.

    Cells that are in the store already are not evaluated again.
    """
    section, concurrency = run.config.evaluate, run.config.rollout.concurrency
    world = run.world_for(section.seed)
    for name in section.sets:
        finished = run.store.finished_cells(name, label, step)
        todo = [a for a in matrix(run, name, step) if (a.harness, a.task.id) not in finished]
        for start in range(0, len(todo), concurrency * CHUNKS_OF_CONCURRENCY):
            chunk = todo[start : start + concurrency * CHUNKS_OF_CONCURRENCY]
            groups = await roll_out(world, chunk, concurrency=concurrency, progress=run.progress)
            if not finished:
                require_graded(groups, f"the evaluation under '{name}'")
            rollouts = [rollout for group in groups for rollout in group.rollouts if rollout.reward is not None]
            run.store.commit_scores(name, label, step, scores(groups), rollouts)
    return {name: run.store.scores(name, label, step) for name in section.sets}


def matrix(run: Run, set_name: str, step: int) -> list[Assignment]:
    """The cells of one set: its harnesses share `rollouts_per_set` equally, on tasks that are all distinct.

    Distinct tasks make the mean over the set as exact as its number of rollouts allows; two policies that are
    evaluated under the same configuration meet the same cells, so that they can be compared task by task.
    """
    harnesses, per_harness = run.evaluation_share(set_name)
    tasks = run.evaluation_tasks
    return [
        Assignment(step, tasks[index * per_harness + place], harness, 1, "evaluate")
        for index, harness in enumerate(harnesses)
        for place in range(per_harness)
    ]


def scores(groups: Sequence[Group]) -> Iterator[Score]:
    """One cell per group; rollouts that infrastructure broke are left out, and so are cells without any other."""
    for group in groups:
        graded = [rollout.reward for rollout in group.graded if rollout.reward is not None]
        if graded:
            task = group.assignment.task
            yield Score(
                task_id=task.id,
                task_kind=task.kind,
                harness=group.assignment.harness,
                passes=tuple(reward.passed for reward in graded),
                rewards=tuple(reward.value for reward in graded),
            )

"""What every schedule is given, and the scheduler that all stateless strategies share.

Invariant: what is drawn follows from the seed and a key, and no generator is kept. So a strategy is a function of its
settings, the seed, the step and what it observed, and a resumed run goes on as if nothing had happened.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from whippletree.types import Assignment, Floats, Group, Json, Task

TASKS, ANCHORS, TIES, INDEPENDENT, CYCLES, WARM_UP, CHOICES = range(7)
"""Streams of random numbers, one per purpose; keys from 100 on are left to schedules outside the package."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The material of a schedule: every step takes `batch_size` tasks, `group_size` rollouts each."""

    harnesses: tuple[str, ...]
    """The training set, in the design's order."""
    distance: Callable[[str, str], int]
    """Of two harnesses by name: how many factors differ."""
    tasks: Sequence[Task]
    batch_size: int
    group_size: int
    seed: int

    def rng(self, *key: int) -> np.random.Generator:
        """A generator that depends on the seed and the key only."""
        return np.random.default_rng((self.seed, *key))

    def batch(self, block: int) -> list[Task]:
        """The tasks of one block; the tasks are gone through in an order that is shuffled anew every epoch."""
        return [self.tasks[index] for index in self.balanced(len(self.tasks), block, stream=TASKS)]

    def balanced(self, size: int, block: int, *, stream: int) -> list[int]:
        """One block of an endless sequence of shuffled copies of range(size): all are met equally often."""
        places = range(block * self.batch_size, (block + 1) * self.batch_size)
        orders = {epoch: self.rng(stream, epoch).permutation(size) for epoch in {place // size for place in places}}
        return [int(orders[place // size][place % size]) for place in places]


class Scheduler(Protocol):
    """Decides which task meets which harness, and when."""

    @property
    def sketch_size(self) -> int:
        """How many numbers `observe` wants to know of the gradient; 0 where it wants none, and none are made."""
        ...

    def assign(self, step: int) -> list[Assignment]:
        """What to roll out in a step, counted from 0; a function of the step and of what was observed before it.

        Steps are assigned in order, and observed in order. All steps before `step` were observed, but for the last
        `rollout.staleness` of them, which may still be rolled out.
        """
        ...

    def observe(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], sketch: Floats) -> None:
        """Take in a finished step: its rollouts, its metrics, and the sketch of its gradient, shape (sketch_size,).

        Inner products of sketches estimate those of the gradients before clipping; zeros where there was no gradient.
        """
        ...

    def state(self) -> Json:
        """All that resuming needs, as JSON."""
        ...

    def restore(self, state: Json) -> None: ...


Pick = Callable[[Plan, int, int], Sequence[str]]
"""(plan, block, visit) -> the harness of each task of the block's batch at its visit-th step."""


@dataclass(frozen=True, slots=True)
class BlockScheduler:
    """`steps_per_task` consecutive steps on the same tasks, each under the harnesses that `pick` names."""

    plan: Plan
    steps_per_task: int
    pick: Pick
    sketch_size: int = 0

    def assign(self, step: int) -> list[Assignment]:
        block, visit = divmod(step, self.steps_per_task)
        tasks, harnesses = self.plan.batch(block), self.pick(self.plan, block, visit)
        return [
            Assignment(step, task, harness, self.plan.group_size)
            for task, harness in zip(tasks, harnesses, strict=True)
        ]

    def observe(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], sketch: Floats) -> None:
        """Nothing is learned from outcomes."""

    def state(self) -> Json:
        return {}

    def restore(self, state: Json) -> None:
        """Nothing is kept."""

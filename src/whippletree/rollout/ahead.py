"""When the rollouts of a step are made: as the step asks for them, or while the policy still learns from those before.

Invariant: those of step s begin when the update of step s - 1 - staleness is published, and no earlier. So none of
their tokens is by weights that are more than `staleness` updates older than those that it trains.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

from whippletree.rollout.engine import Progress, roll_out, rollout_ids
from whippletree.rollout.lifecycle import World, roll_out_once
from whippletree.types import Assignment, Group, Rollout


class Acting(Protocol):
    """The rollouts of a run's steps; steps are begun and taken in order."""

    def due(self, step: int) -> range:
        """The steps whose rollouts are to begin now that `step` is next to be learned from."""
        ...

    def begin(self, step: int, assignments: Sequence[Assignment]) -> None: ...

    async def groups(self, step: int) -> list[Group]:
        """All of a step, in the order of its assignments."""
        ...

    async def rest(self) -> None:
        """Wait until no rollout is running."""
        ...


@asynccontextmanager
async def acting(
    world: World, *, concurrency: int, progress: Progress, staleness: int, num_steps: int
) -> AsyncGenerator[Acting]:
    """Leaves no rollout running. Without staleness a step's rollouts begin when its groups are asked for."""
    if staleness == 0:
        yield InTime(world, concurrency, progress)
        return
    ahead = Ahead(world, progress, staleness, num_steps)
    workers = [asyncio.create_task(ahead.work()) for _ in range(concurrency)]
    try:
        yield ahead
    finally:
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        ahead.forget()


class InTime:
    """Acting and learning take turns."""

    def __init__(self, world: World, concurrency: int, progress: Progress) -> None:
        self._world, self._concurrency, self._progress = world, concurrency, progress
        self._assignments: Sequence[Assignment] = ()

    def due(self, step: int) -> range:
        return range(step, step + 1)

    def begin(self, step: int, assignments: Sequence[Assignment]) -> None:
        self._assignments = assignments

    async def groups(self, step: int) -> list[Group]:
        return await roll_out(self._world, self._assignments, concurrency=self._concurrency, progress=self._progress)

    async def rest(self) -> None:
        """Nothing runs between steps."""


Place = tuple[Assignment, str, asyncio.Future[Rollout]]
"""A rollout to be made, its id, and who waits for it."""


class Ahead:
    """One queue for the rollouts of all steps that have begun: nobody waits for the last rollout of a step."""

    def __init__(self, world: World, progress: Progress, staleness: int, num_steps: int) -> None:
        self._world, self._progress = world, progress
        self._staleness, self._num_steps = staleness, num_steps
        self._queue: asyncio.Queue[Place] = asyncio.Queue()
        self._begun: dict[int, list[tuple[Assignment, list[asyncio.Future[Rollout]]]]] = {}
        """Of the steps that are not taken yet."""

    def due(self, step: int) -> range:
        first = max(self._begun, default=step - 1) + 1
        return range(first, min(step + self._staleness + 1, self._num_steps))

    def begin(self, step: int, assignments: Sequence[Assignment]) -> None:
        loop = asyncio.get_running_loop()
        self._begun[step] = []
        for assignment, ids in zip(assignments, rollout_ids(assignments), strict=True):
            futures: list[asyncio.Future[Rollout]] = [loop.create_future() for _ in ids]
            self._begun[step].append((assignment, futures))
            for id, future in zip(ids, futures, strict=True):
                self._queue.put_nowait((assignment, id, future))

    async def groups(self, step: int) -> list[Group]:
        """Raises what ended a rollout and is no failure of it, of a later step, too."""
        await self._ended([future for _, futures in self._begun[step] for future in futures])
        return [Group(a, tuple(future.result() for future in futures)) for a, futures in self._begun.pop(step)]

    async def rest(self) -> None:
        await self._ended(self._futures())

    async def _ended(self, wanted: Sequence[asyncio.Future[Rollout]]) -> None:
        """Wait for these, unless any that has begun fails."""
        left = {future for future in self._futures() if not future.done()}
        while not all(future.done() for future in wanted):
            _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            for future in self._futures():
                if future.done():
                    future.result()

    def _futures(self) -> list[asyncio.Future[Rollout]]:
        return [future for groups in self._begun.values() for _, futures in groups for future in futures]

    async def work(self) -> None:
        """Make one rollout after the other, those of earlier steps first."""
        while True:
            assignment, id, future = await self._queue.get()
            try:
                with self._world.policy.worker():
                    rollout = await roll_out_once(self._world, assignment, id)
                self._progress(rollout)
            except Exception as error:
                future.set_exception(error)
                future.exception()  # whoever waits is told; where nobody does any more, nobody need be warned
            else:
                future.set_result(rollout)

    def forget(self) -> None:
        """Nobody waits any more: what failed meanwhile has been told, or does not matter."""
        for future in self._futures():
            if future.cancel() or future.cancelled():
                continue
            future.exception()
